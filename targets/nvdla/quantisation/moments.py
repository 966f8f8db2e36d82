"""Statistics of the float network's tensors over samples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Graph
from npuc.quantize.arithmetic.steadiness import rounded
from npuc.quantize.calibration.histograms import computed


@frozen
class Moments:
    """Mean and variance of every channel (axis 1) of a tensor, and its largest magnitude, possibly infinite.

    Mean and variance are rounded to a few digits, so that they are the same on every processor.
    """

    mean: Array
    variance: Array
    largest: float


BITS = 6
"""Significant bits of a mean or variance, which only weigh rounding errors."""
UNKNOWN = Moments(np.zeros(1), np.ones(1), 0.0)
NOTHING_SEEN: Mapping[str, Moments] = {}


def moments(graph: Graph, samples: Iterable[Mapping[str, Array]], tensors: Sequence[str]) -> dict[str, Moments]:
    """The moments of these tensors over samples, each a feed of the graph's inputs.

    Values that are not finite are left out of means and variances.
    """
    sums: dict[str, Array] = {}
    largest = dict.fromkeys(tensors, 0.0)
    for values in computed(graph, samples, tensors):
        for name, value in values.items():
            largest[name] = max(largest[name], float(np.nanmax(np.abs(value), initial=0.0)))
            sums[name] = sums.get(name, np.zeros(1)) + _powers(value)
    return {name: _moments(found, largest[name]) for name, found in sums.items()}


def _powers(value: Array) -> Array:
    """The count, sum and sum of squares of each channel's values: (3, C)."""
    rows = np.moveaxis(np.atleast_2d(value), 1, 0).reshape(np.atleast_2d(value).shape[1], -1).astype(np.float64)
    finite = np.isfinite(rows)
    kept = np.where(finite, rows, 0.0)
    return np.stack([finite.sum(axis=1), kept.sum(axis=1), np.einsum("ci,ci->c", kept, kept)])


def _moments(sums: Array, largest: float) -> Moments:
    count, total, squares = sums
    mean = total / np.maximum(count, 1)
    variance = np.maximum(squares / np.maximum(count, 1) - mean**2, 0.0)
    return Moments(rounded(mean, BITS), rounded(variance, BITS), largest)
