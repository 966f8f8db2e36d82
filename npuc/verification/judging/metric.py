"""The protocol of metrics, and 95 % confidence intervals of what they report.

A sample's outputs become a digest, the digests of all computations a report. The intervals of shares are closed
forms, those of everything else the bootstrap's.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import sqrt
from typing import Any, Protocol

import numpy as np

from npuc.errors import DataError
from npuc.ir import Array

Outputs = Mapping[str, Array]
"""Outputs of one sample by name, in the model's own shapes."""
Truth = Array | np.generic | None
"""The label of one sample."""
FP32 = "fp32"
"""The computation that serves as the reference for the others."""


class Metric(Protocol):
    """A frozen dataclass of plain values, so that it can be sent to workers of a cluster."""

    @property
    def name(self) -> str:
        """The name, as for --metric."""
        ...

    def digest(self, outputs: Outputs, exact: Outputs, truth: Truth) -> Any:
        """The data of one sample that the report needs: plain values and small arrays.

        exact: the same outputs in fp32. Raises DataError (E402) for labels or outputs that cannot be judged.
        """
        ...

    def report(self, digests: Mapping[str, Sequence[Any]], truths: Array | None) -> dict[str, Any]:
        """The figures by computation and their basis: JSON values, with a dict for each computation.

        truths: the labels of all samples. Raises DataError (E402) if there is nothing to judge.
        """
        ...


def finite(values: Array, name: str) -> Array:
    """The values as float64. Raises DataError (E402) if they are not finite."""
    found = np.asarray(values, np.float64)
    if not np.isfinite(found).all():
        raise DataError("E402", "the output has values that are not finite", tensor=name)
    return found


NORMAL_95 = 1.959964
"""95 % of a normal distribution lies within this many standard deviations."""
RESAMPLES, AT_ONCE = 1000, 50
SEED = 0

Interval = tuple[float, float]


def interval(right: int, count: int) -> Interval:
    """The 95 % confidence interval of a share: right of count. Source: Wilson, 1927.

    >>> low, high = interval(8, 10)
    >>> round(low, 3), round(high, 3)
    (0.49, 0.943)
    """
    share, z2 = right / count, NORMAL_95**2
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = NORMAL_95 / (1 + z2 / count) * sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    return max(min(centre - half, share), 0.0), min(max(centre + half, share), 1.0)


def paired_difference(first: Array, second: Array) -> tuple[float, float, float]:
    """The mean of second - first, both (samples,) bool, and its 95 % confidence interval.

    Source: Agresti and Min, 2005: half a sample is added to each of the four cells of the contingency table.
    """
    count = len(first) + 2
    gained, lost = (float((a & ~b).sum()) + 0.5 for a, b in ((second, first), (first, second)))
    mean = (gained - lost) / count
    half = NORMAL_95 * sqrt(max((gained + lost) / count - mean**2, 0.0) / count)
    return float(second.mean() - first.mean()), max(mean - half, -1.0), min(mean + half, 1.0)


Statistic = Callable[[Array], Array]
"""Maps weights, (drawings, samples) float64, where sample i counts weights[:, i] times, to values,
(drawings, values); NaN if a value is undefined."""


def estimate(statistic: Statistic, samples: int) -> list[tuple[float | None, Interval | None]]:
    """Each value of a statistic with its 95 % confidence interval: bootstrap percentiles over resampled samples.

    The drawings are the same in every call with the same number of samples, so differences between two
    computations on the same samples can be formed. An undefined value is None; below two samples there is no
    interval.
    Source: Efron, 1979; the percentile interval.
    """
    (values,) = statistic(np.ones((1, samples)))
    known = [None if np.isnan(value) else float(value) for value in values]
    if samples < 2:
        return [(value, None) for value in known]
    drawn = np.concatenate([statistic(weights) for weights in _drawings(samples)])
    return [(value, _percentiles(column[~np.isnan(column)])) for value, column in zip(known, drawn.T, strict=True)]


def ratio(above: Array, below: Array) -> Array:
    """above / below, NaN where below is 0."""
    return np.divide(above, below, out=np.full(np.broadcast(above, below).shape, np.nan), where=below != 0)


def _drawings(samples: int) -> Iterator[Array]:
    """The resampling weights, AT_ONCE drawings at a time."""
    random = np.random.default_rng(SEED)
    for _ in range(RESAMPLES // AT_ONCE):
        drawn = random.integers(0, samples, (AT_ONCE, samples))
        yield np.stack([np.bincount(each, minlength=samples) for each in drawn]).astype(np.float64)


def _percentiles(values: Array) -> Interval | None:
    if not len(values):
        return None
    low, high = np.percentile(values, (2.5, 97.5))
    return float(low), float(high)
