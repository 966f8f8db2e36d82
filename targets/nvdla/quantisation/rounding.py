"""Weights as fp16, rounded so that the errors of a kernel cancel on its typical input, whose statistics are here.

A weight's error is the same for every pixel and sample: nothing behind averages out its effect on the mean of a
result, and it matters most where a network's results are means. Each weight becomes one of the two adjacent fp16
numbers: the nearest, except for the few that restore the mean of a kernel's results at the least cost in
precision.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from npuc.errors import DoesNotFit
from npuc.frozen import frozen
from npuc.ir import Array, Graph
from npuc.quantize.arithmetic.steadiness import round_to_bits
from npuc.quantize.arithmetic.weights import blocks
from npuc.quantize.calibration.histograms import tensor_values
from npuc.targets.nvdla.formats.precision import FP16_MOST, FP16_SMALLEST


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
    for values in _several(tensor_values(graph, samples, tensors)):
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
            yield _join_samples(held)
            held = []
    if held:
        yield _join_samples(held)


def _join_samples(samples: Sequence[Mapping[str, Array]]) -> dict[str, Array]:
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
    return Moments(round_to_bits(mean, BITS), round_to_bits(variance, BITS), largest)


TURNED = 256
"""The most weights of a kernel rounded the other way: some sqrt(K / 12) restore the mean of K weights."""


def half(values: Array) -> Array:
    """Numbers rounded to fp16. Raises DoesNotFit (E301) for numbers beyond its range."""
    largest = float(np.abs(values).max(initial=0))
    if not largest <= FP16_MOST:
        raise _beyond(f"a constant of the network is {largest:g}", f"+/-{FP16_MOST:g} in fp16")
    return values.astype(np.float16)


def half_factors(values: Array) -> Array:
    """Factors rounded to fp16. Raises DoesNotFit (E301) for numbers beyond its range, at either end."""
    largest = float(np.abs(values).max(initial=0))
    if 0 < largest < FP16_SMALLEST:
        raise _beyond(f"no factor is larger than {largest:g}", f"{FP16_SMALLEST:.2g} in fp16")
    return half(values)


def _beyond(reason: str, limit: str) -> DoesNotFit:
    return DoesNotFit("E301", reason, limit=limit, remedy="scale the layer, or compile with --precision int8")


def round_weights(w: Array, mean: Array, variance: Array, off: Array) -> Array:
    """Weights (K, C, R, S) as float16. Raises DoesNotFit (E301) for weights beyond its range at either end.

    mean, variance: of the values that weights are multiplied by, broadcast against w; off: (K,), other errors of
    the results. Every weight rounded the other way reduces the squared mean error plus the variance of the error.
    Zeros stay zeros.
    """
    nearest = np.ascontiguousarray(half_factors(w))
    found = nearest.reshape(len(w), -1)
    means, variances = (np.broadcast_to(each, w.shape) for each in (mean, variance))
    for rows in blocks(found):
        exact, *seen = (each[rows].reshape(found[rows].shape) for each in (w, means, variances))
        _turn(found[rows], exact, seen[0], seen[1], off[rows])
    return nearest


def _turn(found: Array, exact: Array, mean: Array, variance: Array, off: Array) -> None:
    """Rounds some of the numbers `found` (kernels, weights) the other way, in place."""
    error = found - exact.astype(np.float64)
    with np.errstate(over="ignore"):
        other = np.nextafter(found, np.where(error > 0, -np.inf, np.inf).astype(np.float16))
    change = np.where((exact != 0) & np.isfinite(other), (other.astype(np.float64) - found) * mean, 0)
    cost = ((other - exact) ** 2 - error**2) * variance
    with np.errstate(divide="ignore", invalid="ignore"):
        worth = np.where(change != 0, cost / np.abs(change), np.inf)
    cheapest = least_places(worth, min(TURNED, worth.shape[1]))
    rows, total = np.arange(len(found)), np.cumsum(error * mean, axis=1)[:, -1] + off
    for column in cheapest.T:
        by = change[rows, column]
        taken = (total + by) ** 2 + cost[rows, column] < total**2
        found[rows[taken], column[taken]] = other[rows[taken], column[taken]]
        total = np.where(taken, total + by, total)


def least_places(values: Array, count: int) -> Array:
    """The places (rows, count) of the least values of each row, in order: of equal ones, the first.

    numpy's own order of equal values, and of the terms of a sum, depends on the processor.
    """
    limit = np.partition(values, count - 1, axis=1)[:, count - 1 : count]
    near = np.argsort((values > limit).astype(np.int8) - (values < limit), axis=1, kind="stable")[:, :count]
    order = np.argsort(np.take_along_axis(values, near, 1), axis=1, kind="stable")
    return np.take_along_axis(near, order, 1)
