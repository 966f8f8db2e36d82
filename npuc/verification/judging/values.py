"""Regression: error and correlation of values with the labels, or with fp32's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from npuc.errors import DataError
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.verification.judging.intervals import estimated, ratio
from npuc.verification.judging.metric import FP32, Outputs, Truth, finite

CONSTANT = 1e-12
"""A variance below this share of the mean square is rounding: the values are considered constant."""


@frozen
class Values:
    """Pearson's correlation and the mean absolute error (L1) of every output; with labels, of the first only."""

    outputs: tuple[str, ...]
    labelled: bool
    """Whether the first output is compared with labels; otherwise all are compared with fp32."""
    name: str = "regression"

    def digest(self, outputs: Outputs, exact: Outputs, truth: Truth) -> Array:
        """Sums over the elements: (outputs, 7) float64: count, x, y, xx, yy, xy, |x - y|; y is the reference."""
        wanted = {self.outputs[0]: np.asarray(truth)} if self.labelled else exact
        return np.stack([_sums(finite(outputs[name], name), finite(wanted[name], name)) for name in self.judged])

    @property
    def judged(self) -> tuple[str, ...]:
        """The first output if there are labels, otherwise all."""
        return self.outputs[:1] if self.labelled else self.outputs

    def report(self, digests: Mapping[str, Sequence[Any]], truths: Array | None) -> dict[str, Any]:  # noqa: ARG002
        """A row for each output, and the first one's figures as the overall result; intervals by the bootstrap."""
        sums = {name: np.stack(found) for name, found in digests.items()}
        return {name: self._row(found, sums[FP32]) for name, found in sums.items()}

    def _row(self, found: Array, exact: Array) -> dict[str, Any]:
        """A row of the report. found, exact: (samples, outputs, 7)."""
        rows = [{"name": name, **_figures(found[:, at], exact[:, at])} for at, name in enumerate(self.judged)]
        return {**{key: value for key, value in rows[0].items() if key != "name"}, "outputs": rows}


def _sums(found: Array, wanted: Array) -> Array:
    x, y = found.ravel(), wanted.ravel()
    if x.size != y.size:
        reason = f"the labels have {y.size} values a sample, and the output {x.size}"
        raise DataError("E402", reason, tensor="y", remedy="leave the labels out to compare with fp32's values")
    return np.array([x.size, x.sum(), y.sum(), (x * x).sum(), (y * y).sum(), (x * y).sum(), np.abs(x - y).sum()])


def _figures(found: Array, exact: Array) -> dict[str, Any]:
    """The figures of one output. found, exact: (samples, 7)."""

    def of(weights: Array) -> Array:
        total, reference = weights @ found, weights @ exact
        l1, own = (each[:, 6] / each[:, 0] for each in (total, reference))
        return np.stack([_pearson(total), l1, l1 - own], axis=1)

    row: dict[str, Any] = {}
    for name, (value, ends) in zip(("pearson", "l1", "difference"), estimated(of, len(found)), strict=True):
        row |= {name: value, f"{name}_interval": None if ends is None else list(ends)}
    return row


def _pearson(total: Array) -> Array:
    """The correlation for each row of sums; NaN if one side is constant."""
    count, x, y, xx, yy, xy, _ = total.T
    spread_x, spread_y = xx - x * x / count, yy - y * y / count
    varied = (spread_x > CONSTANT * xx) & (spread_y > CONSTANT * yy)
    scale = np.sqrt(np.where(varied, spread_x * spread_y, 0))
    return np.clip(ratio(xy - x * y / count, scale), -1, 1)
