"""Statistics of the float network's tensors over samples."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

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
TOGETHER = 1 << 22
"""The most bytes of values of several samples whose moments are taken together."""
UNKNOWN = Moments(np.zeros(1), np.ones(1), 0.0)
NOTHING_SEEN: Mapping[str, Moments] = {}


def moments(graph: Graph, samples: Iterable[Mapping[str, Array]], tensors: Sequence[str]) -> dict[str, Moments]:
    """The moments of these tensors over samples, each a feed of the graph's inputs.

    Values that are not finite are left out of means and variances.
    """
    sums: dict[str, Array] = {}
    largest = dict.fromkeys(tensors, 0.0)
    for values in _several(computed(graph, samples, tensors)):
        for name, value in values.items():
            largest[name] = max(largest[name], float(np.nanmax(np.abs(value), initial=0.0)))
            for each in _powers(value):
                sums[name] = sums.get(name, np.zeros(1)) + each
    return {name: _moments(found, largest[name]) for name, found in sums.items()}


def _several(samples: Iterable[Mapping[str, Array]]) -> Iterator[dict[str, Array]]:
    """The values of several samples together, along a new first axis: of many if they are small."""
    held: list[dict[str, Array]] = []
    for values in samples:
        one = {name: np.atleast_2d(value)[None] for name, value in values.items()}
        together = max(TOGETHER // max(sum(value.nbytes for value in one.values()), 1), 1)
        if together == 1:
            yield one
            continue
        held.append({name: value.copy() for name, value in one.items()})
        if len(held) == together:
            yield _joined(held)
            held = []
    if held:
        yield _joined(held)


def _joined(samples: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
    return {name: np.concatenate([each[name] for each in samples]) for name in samples[0]}


def _powers(value: Array) -> Array:
    """The count, sum and sum of squares of each channel's values, in each sample: (samples, 3, C)."""
    count, channels = len(value), value.shape[2]
    rows = np.moveaxis(value, 2, 1).reshape(count, channels, -1).astype(np.float64)
    finite = np.isfinite(rows)
    kept = np.where(finite, rows, 0.0)
    return np.stack([finite.sum(axis=2), kept.sum(axis=2), np.einsum("sci,sci->sc", kept, kept)], axis=1)


def _moments(sums: Array, largest: float) -> Moments:
    count, total, squares = sums
    mean = total / np.maximum(count, 1)
    variance = np.maximum(squares / np.maximum(count, 1) - mean**2, 0.0)
    return Moments(rounded(mean, BITS), rounded(variance, BITS), largest)
