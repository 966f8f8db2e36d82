"""Weights as fp16, rounded so that the errors of a kernel cancel on what it sees.

An error of the weights is the same for every pixel and sample: what it does to the mean of a result nothing behind
it averages out, and it weighs most where a network's results are means. Each weight becomes one of the two fp16
numbers beside it: the nearest, but for those few that cost a kernel the least precision and bring the mean of its
results back.
"""

from __future__ import annotations

import numpy as np

from npuc.errors import DoesNotFit
from npuc.ir import Array
from npuc.targets.nvdla.arithmetic.fixed_point import blocks_of_rows
from npuc.targets.nvdla.formats.precision import FP16_MOST

TURNED = 256
"""The most weights of a kernel that are rounded to the other side: some sqrt(K / 12) bring the mean of K back."""


def half(values: Array) -> Array:
    """Numbers rounded to fp16. Raises DoesNotFit (E301) for those that fp16 has not."""
    largest = float(np.abs(values).max(initial=0))
    if not largest <= FP16_MOST:
        raise DoesNotFit(
            "E301",
            f"a constant of the network is {largest:g}",
            limit=f"+/-{FP16_MOST:g} in fp16",
            remedy="scale the layer, or compile with --precision int8",
        )
    return values.astype(np.float16)


def rounded(w: Array, mean: Array, variance: Array, off: Array) -> Array:
    """Weights (K, C, R, S) as float16. Raises DoesNotFit (E301) for those that fp16 has not.

    mean, variance: of what the weights are multiplied by, broadcast against w; off: (K,), what else the results
    are off by. The square of the mean error plus the variance of the error falls with every weight that is turned.
    Zeros stay zeros.
    """
    nearest = np.ascontiguousarray(half(w))
    found = nearest.reshape(len(w), -1)
    means, variances = (np.broadcast_to(each, w.shape) for each in (mean, variance))
    for rows in blocks_of_rows(found):
        exact, *seen = (each[rows].reshape(found[rows].shape) for each in (w, means, variances))
        _turn(found[rows], exact, seen[0], seen[1], off[rows])
    return nearest


def _turn(found: Array, exact: Array, mean: Array, variance: Array, off: Array) -> None:
    """Rounds some of the numbers found (kernels, weights) to the other side, in place."""
    error = found - exact.astype(np.float64)
    with np.errstate(over="ignore"):
        other = np.nextafter(found, np.where(error > 0, -np.inf, np.inf).astype(np.float16))
    change = np.where((exact != 0) & np.isfinite(other), (other.astype(np.float64) - found) * mean, 0)
    cost = ((other - exact) ** 2 - error**2) * variance
    with np.errstate(divide="ignore", invalid="ignore"):
        worth = np.where(change != 0, cost / np.abs(change), np.inf)
    count = min(TURNED, worth.shape[1])
    cheapest = np.argpartition(worth, count - 1, axis=1)[:, :count]
    cheapest = np.take_along_axis(cheapest, np.argsort(np.take_along_axis(worth, cheapest, 1), axis=1), 1)
    rows, total = np.arange(len(found)), (error * mean).sum(axis=1) + off
    for column in cheapest.T:
        by = change[rows, column]
        taken = (total + by) ** 2 + cost[rows, column] < total**2
        found[rows[taken], column[taken]] = other[rows[taken], column[taken]]
        total = np.where(taken, total + by, total)
