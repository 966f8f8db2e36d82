"""Metrics of one value a sample: top-1, regression (error and correlation), and a function of the user's own."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from npuc.errors import DataError
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.verification.judging.metric import (
    FP32,
    Outputs,
    Truth,
    estimate,
    finite,
    interval,
    paired_difference,
    ratio,
)
from npuc.verification.metrics import CLASSES_FOR_TOP5, ranks

OWN = "correct --metric FILE.py:FUNCTION; docs/cli.md says what the function gets"
"""The remedy for a metric of the user's own."""


@frozen
class Classes:
    """Top-1 and top-5 of the first output; the digest is the label's rank and the largest class, by element."""

    output: str
    classes: int
    batch: int = 1
    """Elements of a sample, with a label each."""
    name: str = "top1"

    def digest(self, outputs: Outputs, exact: Outputs, truth: Truth) -> Array:  # noqa: ARG002
        """The rank of the labelled class, and the class with the largest element: (batch, 2)."""
        values = outputs[self.output].reshape(self.batch, -1)
        return np.stack([ranks(values, np.asarray(truth)), values.argmax(axis=1)], axis=1)

    def report(self, digests: Mapping[str, Sequence[Any]], truths: Array | None) -> dict[str, Any]:  # noqa: ARG002
        """Shares of samples with Wilson's intervals, and the paired difference from fp32."""
        pairs = {name: np.array(found, np.int64).reshape(-1, 2) for name, found in digests.items()}
        return {"classes": self.classes, **{name: self._row(found, pairs[FP32]) for name, found in pairs.items()}}

    def _row(self, found: Array, exact: Array) -> dict[str, Any]:
        right, reference = (each[:, 0] == 0 for each in (found, exact))
        difference, low, high = paired_difference(reference, right)
        enough = self.classes >= CLASSES_FOR_TOP5
        return {
            "top1": float(np.mean(right)),
            "top5": float(np.mean(found[:, 0] < 5)) if enough else None,
            "interval": list(interval(int(right.sum()), len(right))),
            "agreement": float(np.mean(found[:, 1] == exact[:, 1])),
            "difference": difference,
            "difference_interval": [low, high],
        }


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
    for name, (value, ends) in zip(("pearson", "l1", "difference"), estimate(of, len(found)), strict=True):
        row |= {name: value, f"{name}_interval": None if ends is None else list(ends)}
    return row


def _pearson(total: Array) -> Array:
    """The correlation for each row of sums; NaN if one side is constant."""
    count, x, y, xx, yy, xy, _ = total.T
    spread_x, spread_y = xx - x * x / count, yy - y * y / count
    varied = (spread_x > CONSTANT * xx) & (spread_y > CONSTANT * yy)
    scale = np.sqrt(np.where(varied, spread_x * spread_y, 0))
    return np.clip(ratio(xy - x * y / count, scale), -1, 1)


@frozen
class Own:
    """The mean over samples of the number that FILE.py:FUNCTION returns for (outputs by name, truth).

    truth: the sample's label or, if fp32 is the reference, its outputs by name.
    """

    outputs: tuple[str, ...]
    labelled: bool
    file: str
    function: str

    @property
    def name(self) -> str:
        """As given to --metric."""
        return f"{self.file}:{self.function}"

    def digest(self, outputs: Outputs, exact: Outputs, truth: Truth) -> float:
        """The function's number. Raises DataError (E402) if it fails, or returns anything else."""
        function = load_function(self.file, self.function)
        try:
            found = float(function(dict(outputs), truth if self.labelled else dict(exact)))
        except Exception as error:  # the user's code may raise anything
            raise DataError("E402", f"{self.name} fails: {type(error).__name__}: {error}", remedy=OWN) from None
        if not np.isfinite(found):
            raise DataError("E402", f"{self.name} returns {found}", limit="a finite number", remedy=OWN)
        return found

    def report(self, digests: Mapping[str, Sequence[Any]], truths: Array | None) -> dict[str, Any]:  # noqa: ARG002
        """Means and their differences from fp32's; intervals by the bootstrap."""
        return {name: _row(np.array(found), np.array(digests[FP32])) for name, found in digests.items()}


def _row(found: Array, exact: Array) -> dict[str, Any]:
    def of(weights: Array) -> Array:
        means = [weights @ each / weights.sum(axis=1) for each in (found, found - exact)]
        return np.stack(means, axis=1)

    (mean, ends), (difference, apart) = estimate(of, len(found))
    return {
        "mean": mean,
        "interval": None if ends is None else list(ends),
        "difference": difference,
        "difference_interval": None if apart is None else list(apart),
    }


@cache
def load_function(file: str, function: str) -> Callable[..., Any]:
    """The function of a Python file. Raises DataError (E402) if there is none, or the file does not run."""
    try:
        found = runpy.run_path(file).get(function)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        raise DataError("E402", f"'{file}' does not run: {type(error).__name__}: {error}", remedy=OWN) from None
    if not callable(found):
        raise DataError("E402", f"'{file}' has no function '{function}'", remedy=OWN)
    return found
