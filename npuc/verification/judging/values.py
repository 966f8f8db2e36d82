"""Regression: how far values are from the labels, or from fp32's, and how they go together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from npuc.errors import DataError
from npuc.ir import Array
from npuc.verification.judging.intervals import bootstrap
from npuc.verification.judging.metric import FP32, Outputs, Truth, finite

CONSTANT = 1e-12
"""A variance below this share of the mean square is rounding: the values are all the same."""


@dataclass(frozen=True)
class Values:
    """Pearson's correlation and the mean absolute error (L1) of every output; of the first against labels."""

    outputs: tuple[str, ...]
    labelled: bool
    """Whether the first output is compared with labels; else all are compared with fp32."""
    name: str = "regression"

    def digest(self, outputs: Outputs, exact: Outputs, truth: Truth) -> Array:
        """Sums over the elements: (outputs, 7) float64: count, x, y, xx, yy, xy, |x - y|; y is the truth."""
        wanted = {self.outputs[0]: np.asarray(truth)} if self.labelled else exact
        return np.stack([_sums(finite(outputs[name], name), finite(wanted[name], name)) for name in self.judged])

    @property
    def judged(self) -> tuple[str, ...]:
        """The first output where there are labels, else all."""
        return self.outputs[:1] if self.labelled else self.outputs

    def report(self, digests: Mapping[str, Sequence[Any]], truths: Array | None) -> dict[str, Any]:  # noqa: ARG002
        """A row of each output, and those of the first for the whole; intervals by the bootstrap over samples."""
        sums = {name: np.stack(found) for name, found in digests.items()}
        return {name: self._row(found, sums[FP32]) for name, found in sums.items()}

    def _row(self, found: Array, exact: Array) -> dict[str, Any]:
        """found, exact: (samples, outputs, 7)."""
        rows = [{"name": name, **_figures(found[:, at], exact[:, at])} for at, name in enumerate(self.judged)]
        return {**{key: value for key, value in rows[0].items() if key != "name"}, "outputs": rows}


def _sums(found: Array, wanted: Array) -> Array:
    x, y = found.ravel(), wanted.ravel()
    if x.size != y.size:
        reason = f"the labels have {y.size} values a sample, and the output {x.size}"
        raise DataError("E402", reason, tensor="y", remedy="compare with fp32's values: --truth fp32")
    return np.array([x.size, x.sum(), y.sum(), (x * x).sum(), (y * y).sum(), (x * y).sum(), np.abs(x - y).sum()])


def _figures(found: Array, exact: Array) -> dict[str, Any]:
    """found, exact: (samples, 7)."""

    def of(weights: Array) -> tuple[float, float, float]:
        total = weights @ found
        return _pearson(total), _l1(total), _l1(total) - _l1(weights @ exact)

    names = ("pearson", "l1", "difference")
    values, limits = of(np.ones(len(found))), bootstrap(of, len(found))
    row: dict[str, Any] = {}
    for name, value, ends in zip(names, values, limits, strict=True):
        row[name] = None if np.isnan(value) else value
        row[f"{name}_interval"] = None if ends is None else list(ends)
    return row


def _l1(total: Array) -> float:
    return float(total[6] / total[0])


def _pearson(total: Array) -> float:
    """The correlation; NaN where one side is constant."""
    count, x, y, xx, yy, xy, _ = (float(each) for each in total)
    spread_x, spread_y = xx - x * x / count, yy - y * y / count
    if spread_x <= CONSTANT * xx or spread_y <= CONSTANT * yy:
        return float("nan")
    return min(max((xy - x * y / count) / float(np.sqrt(spread_x * spread_y)), -1.0), 1.0)
