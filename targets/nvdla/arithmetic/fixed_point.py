"""Real factors as the integer multipliers and shifts of SDP."""

from __future__ import annotations

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.quantize.arithmetic.weights import blocks

MOST_MULTIPLIER = 32767
"""Multipliers and adder operands are signed 16-bit numbers."""
MOST_SHIFT = 31
"""The largest right shift of a stage, and left shift of an operand, that npuc uses."""
MOST_PRODUCT_SHIFT = 46
"""The largest right shift after two multipliers, whose product has so many bits; a stage supports 63."""
MOST_CONVERTER_SHIFT = 63
FRACTION = 8
"""Fractional bits of a value between the stages, if a later one rounds again."""


def factor(ratio: float, most_shift: int = MOST_SHIFT) -> tuple[int, int]:
    """The multiplier and right shift nearest to a ratio.

    >>> factor(0.75), factor(-3.0)
    ((24576, 15), (-24576, 13))
    """
    if ratio == 0:
        return 0, 0
    shift = int(np.clip(np.floor(np.log2(MOST_MULTIPLIER / abs(ratio))), 0, most_shift))
    return int(np.clip(np.rint(ratio * 2.0**shift), -MOST_MULTIPLIER, MOST_MULTIPLIER)), shift


def factors(ratios: Array) -> tuple[Array, int]:
    """int16 multipliers and their common right shift."""
    _, shift = factor(float(np.abs(ratios).max(initial=0)))
    scaled = np.rint(ratios * 2.0**shift).clip(-MOST_MULTIPLIER, MOST_MULTIPLIER)
    return scaled.astype(np.int16), shift


@frozen
class Factors:
    """The factors of X2 and the converter: first * 2^-shift * scale * 2^-scale_shift."""

    first: int
    shift: int
    scale: int
    scale_shift: int


def two_factors(ratio: float, reach: float) -> Factors:
    """Two multipliers and their shifts whose product is nearest to the ratio.

    Inputs up to `reach` fit 32 bits after the first shift.

    >>> two_factors(1 / 3, 2**20)
    Factors(first=25487, shift=4, scale=14043, scale_shift=26)
    """
    first = np.arange(MOST_MULTIPLIER // 2 + 1, MOST_MULTIPLIER + 1)
    _, both = factor(ratio / first[0], MOST_SHIFT + MOST_CONVERTER_SHIFT)
    wanted = ratio * 2.0**both / first
    best = int(np.argmin(np.abs(np.rint(wanted) - wanted) * first))
    shift = min(max(int(np.ceil(np.log2(reach * first[best]))) - 31, 0), both)
    return Factors(int(first[best]), shift, int(np.rint(wanted[best])), both - shift)


@frozen
class SumShare:
    """The share of the first map in a sum of two: weight * multiplier for 2^left of the other."""

    weight: int
    multiplier: int
    left: int

    def error(self, ratio: float) -> float:
        """The relative error with respect to a ratio."""
        return abs(self.weight * self.multiplier / (ratio * 2.0**self.left) - 1)


def share(ratio: float, most_left: int, most_weight: int = 1) -> SumShare:
    """The share nearest to a ratio, with a weight up to `most_weight`.

    >>> share(0.75, 22), share(-1 / 3, 22, 127)
    (SumShare(weight=1, multiplier=24576, left=15), SumShare(weight=89, multiplier=-15709, left=22))
    """
    weights = np.arange(most_weight // 2 + 1, most_weight + 1)
    left = int(np.clip(np.floor(np.log2(MOST_MULTIPLIER * weights[0] / abs(ratio))), 0, most_left))
    wanted = ratio * 2.0**left / weights
    rounded = np.rint(wanted).clip(-MOST_MULTIPLIER, MOST_MULTIPLIER)
    best = int(np.argmin(np.abs(rounded - wanted) * weights))
    return SumShare(int(weights[best]), int(rounded[best]), left)


def addends(values: Array) -> tuple[Array, int]:
    """int16 operands of an adder and their common left shift, the smallest for which all fit."""
    largest = float(np.abs(values).max(initial=0))
    shift = max(int(np.ceil(np.log2(max(largest, 1) / MOST_MULTIPLIER))), 0)
    return np.rint(values / 2.0**shift).clip(-MOST_MULTIPLIER, MOST_MULTIPLIER).astype(np.int16), shift


@frozen
class FixedWeights:
    """w: integers in the float weights' shape; bias and multiplier: (Co,) int16, with their shifts."""

    w: Array
    bias: Array
    bias_shift: int
    multiplier: Array
    shift: int
    truncate: int
    """Right shift of the sums before bias and multiplier."""


BIAS_ERROR = {"int8": 1 / 16, "int16": 1 / 2}
"""The largest error from rounding the bias to 16 bits, in steps of the result."""
SUM_BITS = 31
"""Bits of truncated sums, without the sign."""


def quantise_weights(
    w: Array,
    bias: Array | None,
    x_scale: float,
    unit: float,
    x_zero: int = 0,
    precision: str = "int8",
    fraction: int = 0,
    common: Array | None = None,
) -> FixedWeights:
    """Integer weights of a convolution: (sums + bias) * multiplier is in steps of `unit`.

    w: (Co, ...) float; bias: (Co,) float; x_zero: the input's zero point, which the bias compensates exactly
    except for its rounding; common: which weights of a channel it applies to, if not all. fraction: a step of the
    result is 2^fraction units. The multiplier of a channel is chosen first, so that its rounding changes the scale
    of the weights and not the result: weight scale = multiplier * 2^-shift * unit / x_scale. It is large enough
    for the largest weight, and for the bias to fit 16 bits behind a left shift that costs at most BIAS_ERROR:
    nothing saturates. Sums that could exceed 32 bits (int16) are truncated.
    """
    largest_weight = np.iinfo(precision).max
    met = slice(None) if common is None else np.broadcast_to(common, w.shape[1:]).ravel()
    flat = w.reshape(len(w), -1)
    truncate = _truncation(flat, largest_weight)
    ratio = x_scale * 2.0**truncate / unit
    offset = np.zeros(len(w)) if bias is None else bias.astype(np.float64) / unit
    wanted = largest_magnitudes(flat) * ratio / largest_weight
    largest = float(max(wanted.max(), 2.0**-40))
    bias_shift = int(np.clip(np.floor(np.log2(2 * BIAS_ERROR[precision] * 2.0**fraction / largest)), 0, 16))
    most = MOST_MULTIPLIER * 2.0**bias_shift
    wanted = np.maximum(wanted, np.abs(offset) / most)
    while True:
        _, shift = factor(float(max(wanted.max(), 2.0**-40)))
        multiplier = np.clip(np.ceil(wanted * 2.0**shift - 1e-9), 1, MOST_MULTIPLIER)
        steps = multiplier * 2.0**-shift
        scaled = np.empty(flat.shape, precision)
        for rows in blocks(flat):
            quotients = np.rint(flat[rows].astype(np.float64) * ratio / steps[rows, None])
            scaled[rows] = quotients.clip(-largest_weight, largest_weight)
        total = offset / steps - x_zero * scaled[:, met].sum(axis=1, dtype=np.int64) / 2.0**truncate
        if not x_zero or (np.abs(total) <= most).all():
            break
        wanted = np.maximum(wanted, np.abs(total) * steps / most * 1.01)
    rounded = np.rint(total / 2.0**bias_shift).clip(-MOST_MULTIPLIER, MOST_MULTIPLIER)
    return FixedWeights(
        scaled.reshape(w.shape), rounded.astype(np.int16), bias_shift, multiplier.astype(np.int16), shift, truncate
    )


def _truncation(flat: Array, most: int) -> int:
    """Bits by which the largest sum exceeds 32, if weights are at most `most` and inputs at most one more."""
    elements = flat.shape[1]
    if elements * (most + 0.5) * (most + 1) <= 2.0**SUM_BITS:  # sums of so few elements always fit
        return 0
    sums = [np.abs(flat[rows], dtype=np.float64).sum(axis=1) for rows in blocks(flat)]
    largest = np.maximum(largest_magnitudes(flat), np.finfo(np.float64).tiny)
    reach = (float((np.concatenate(sums) / largest).max()) * most + elements / 2) * (most + 1)
    return max(int(np.ceil(np.log2(max(reach, 1)))) - SUM_BITS, 0)


def largest_magnitudes(flat: Array) -> Array:
    """The largest magnitude of each row (Co, elements), float64."""
    return np.maximum(flat.max(axis=1), -flat.min(axis=1)).astype(np.float64)
