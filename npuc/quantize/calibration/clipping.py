"""The calibration methods, which choose a tensor's range, as costs of candidate scales.

minmax      no value saturates
percentile  all but one value in ten thousand are within the range
entropy     the range whose 128 levels lose the least information   (Kullback-Leibler divergence)
mse         the least expected squared error of the tensor, rounding and saturation together
output      as mse, with channels weighted by the gain of the layers that read them: the error at their outputs
"""

from __future__ import annotations

from math import inf

import numpy as np

from npuc.flag import CHOICES
from npuc.ir import Array
from npuc.quantize.calibration.histograms import BINS, Histogram

METHODS = CHOICES["method"]
SHARE = 1 - 1e-4
"""Share of the values inside the range that percentile chooses."""
LEVELS = 128
"""Magnitude levels of an int8."""
BEYOND = 1e6
"""The cost of a scale per octave by which its range falls short of the one that a method demands."""


def range_cost(histogram: Histogram, scales: Array, method: str, most: float = inf) -> Array:
    """The cost of each scale for a tensor: relative squared error, plus a penalty for exceeding a method's range.

    histogram: with some value other than 0. most: an upper bound on the values, which bin edges may exceed.
    """
    if method in ("mse", "output"):
        return histogram.error(scales) / histogram.energy
    limit = min(range_limit(histogram, method), most)
    kept = histogram.within(limit)
    if not kept.energy:  # every value is at the limit, where a bin begins
        kept = histogram
    return kept.error(scales) / kept.energy + BEYOND * octaves_above(limit / 127, scales)


def range_limit(histogram: Histogram, method: str) -> float:
    """The magnitude that the range must reach. method: minmax, percentile or entropy."""
    match method:
        case "percentile":
            inside = np.cumsum(histogram.counts) >= SHARE * histogram.counts.sum()
            return float((np.argmax(inside) + 1) * histogram.width)
        case "entropy":
            return _least_divergence(histogram)
        case _:
            return histogram.largest


def octaves_above(value: Array | float, limit: Array | float) -> Array:
    """Octaves by which the value exceeds the limit, beyond the accuracy of a 32-bit float."""
    return np.maximum(np.log2(value / limit) - 1e-6, 0.0)


def _least_divergence(histogram: Histogram) -> float:
    """The range whose quantised histogram is closest to the histogram with its tail gathered in the last bin.

    Source: Migacz, "8-bit Inference with TensorRT", 2017.
    """
    filled = int(np.flatnonzero(histogram.counts)[-1]) + 1
    candidates = range(min(LEVELS, filled), filled + 1, max((filled - LEVELS) // 64, 1))
    divergences = [_divergence(histogram.counts[:filled].astype(np.float64), bins) for bins in candidates]
    return candidates[int(np.argmin(divergences))] * histogram.width


def _divergence(counts: Array, bins: int) -> float:
    """Kullback-Leibler divergence between the first bins, with the tail, and their form in LEVELS levels."""
    gathered = counts[:bins].copy()
    gathered[-1] += counts[bins:].sum()
    level = np.arange(bins) * LEVELS // bins
    filled = counts[:bins] > 0
    total = np.bincount(level, counts[:bins], LEVELS)
    share = np.bincount(level, filled, LEVELS)
    spread_out = np.where(filled, total[level] / np.maximum(share[level], 1), 0)
    p, q = gathered / gathered.sum(), spread_out / max(spread_out.sum(), 1e-30)
    both = (p > 0) & (q > 0)
    lost = p[(p > 0) & (q == 0)].sum()
    return float((p[both] * np.log(p[both] / q[both])).sum() + lost * np.log(BINS))
