"""Convolutions through both stages: any bias, any ratio of scales, as zero points and given weights ask."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npuc.ir import Array
from npuc.ops.accumulators import accumulator_bound
from npuc.quantize.scales.model_scales import integers_of
from npuc.targets.nvdla.arithmetic.fixed_point import (
    MOST_MULTIPLIER,
    MOST_PRODUCT_SHIFT,
    addends,
    blocks_of_rows,
    factor,
    factors,
    largest_magnitudes,
)
from npuc.targets.nvdla.arithmetic.integer import IDLE, Stage
from npuc.targets.nvdla.quantisation.form import SUM

TOLERANCE = 2.0**-16
"""What multipliers and biases of one stage may miss at most, in steps of the result: as much as floats do."""
COLUMN = (-1, 1, 1)
LARGEST_BIAS = 2.0**22
"""In steps of the sums: what a channel whose weights training has shut off may have."""
FINEST_STEP = 2.0**-24
"""Of the sums, in steps of the result."""


@dataclass(frozen=True)
class Sums:
    """What a convolution adds up: integers of its weights, and per channel the bias in steps of the sums.

    w: (Co, ...) int8. bias: (Co,) whole numbers, the input's zero point included. ratio: (Co,), of a step of the
    sums to a step of the result.
    """

    w: Array
    bias: Array
    ratio: Array

    @property
    def bound(self) -> Array:
        """The largest magnitude of sum and bias, (Co,)."""
        return accumulator_bound(self.w, np.zeros(len(self.w), np.int32)) + np.abs(self.bias)


def kept(
    w: Array, bias: Array | None, x_scale: float, x_zero: int, unit: float, *, twice: bool = False
) -> Sums | None:
    """The sums of float weights (Co, ...) that are multiples of int8 integers; None for other weights.

    bias: (Co,) float. unit: the scale of the result. twice: whether integers of 9 bits may become two of 8, for an
    input with every channel twice: (Co, 2 * Ci, ...).
    """
    found = integers_of(w)
    if found is None:
        return None
    integers, scales = found
    low = integers.clip(-128, 127)
    parts = low if np.array_equal(low, integers) else np.concatenate([low, integers - low], axis=1)
    if parts is not low and not twice:
        return None
    held = np.zeros(len(w)) if bias is None else bias.astype(np.float64)
    alone = np.maximum(np.abs(held) / MOST_MULTIPLIER, unit * 2.0**-8)
    given = np.float32(x_scale) * scales.astype(np.float32)  # in float32, as onnxruntime has it
    step = np.where(integers.any(axis=tuple(range(1, w.ndim))), given, alone)
    total = integers.astype(np.float64).reshape(len(w), -1).sum(axis=1)
    ratio = np.where(step == given, (given / np.float32(unit)).astype(np.float64), step / unit)
    return Sums(parts.astype(np.int8), np.rint(held / step) - x_zero * total, ratio)


def chosen(w: Array, bias: Array | None, x_scale: float, x_zero: int, unit: float) -> Sums:
    """The sums of float weights (Co, ...), whose largest of each channel becomes 127, or less where it is tiny."""
    flat = w.reshape(len(w), -1)
    held = np.zeros(len(w)) if bias is None else bias.astype(np.float64)
    alone = np.maximum(np.abs(held) / MOST_MULTIPLIER, unit * 2.0**-8)
    finest = np.maximum(np.abs(held) / LARGEST_BIAS, unit * FINEST_STEP) / x_scale
    scales = np.where(flat.any(axis=1), np.maximum(largest_magnitudes(flat) / 127, finest), alone / x_scale)
    integers = np.empty(flat.shape, np.int8)
    for rows in blocks_of_rows(flat):
        integers[rows] = np.rint(flat[rows].astype(np.float64) / scales[rows, None])
    step = x_scale * scales
    total = np.rint(held / step) - x_zero * integers.sum(axis=1, dtype=np.float64)
    return Sums(integers.reshape(w.shape), total, step / unit)


Operands = dict[str, Array]


SATURATED = 256
"""A result that is so many steps from the zero point saturates to int8, whatever the zero point."""


def one_stage(sums: Sums) -> tuple[Stage, Operands, float]:
    """X1 with bias and multiplier, and by how much it may miss, in steps of the result."""
    bias, left = addends(sums.bias)
    multiplier, shift = factors(sums.ratio)
    wrong_ratio = np.abs(multiplier * 2.0**-shift - sums.ratio) * sums.bound
    wrong_bias = np.abs(bias * 2.0**left - sums.bias) * sums.ratio
    operands = {"x1_alu": bias.reshape(COLUMN), "x1_mul": multiplier.reshape(COLUMN)}
    return Stage(SUM, left, 1, 0, shift), operands, float((wrong_ratio + wrong_bias).max())


def two_stages(sums: Sums) -> tuple[Stage, Stage, Operands]:
    """X1 and X2, whose two multipliers make the ratio as exactly as onnxruntime's floats do.

    X1 adds the upper part of the bias and multiplies by what leaves room in 32 bits; X2 adds the rest of the bias,
    multiplies and shifts. So nothing is rounded before the result is, and no sum saturates whose result does not.
    """
    upper, left = addends(sums.bias)
    reach = np.minimum(sums.bound, SATURATED / sums.ratio)
    room = np.clip(np.floor(2.0**31 / (reach + 2.0**left)), 1, MOST_MULTIPLIER)
    first, second, shift = _split(sums.ratio, room)
    _, lower_left = addends(first * 2.0**left / 2)  # room for the rest of any bias
    lower = np.rint((sums.bias - upper * 2.0**left) * first / 2.0**lower_left).astype(np.int16)
    operands = {"x1_alu": upper, "x1_mul": first.astype(np.int16), "x2_alu": lower, "x2_mul": second}
    columns = {key: value.reshape(COLUMN) for key, value in operands.items()}
    return Stage(SUM, left, 1), Stage(SUM, lower_left, 1, 0, shift), columns


def _split(ratio: Array, room: Array) -> tuple[Array, Array, int]:
    """Factors up to the room, multipliers int16 and the shift they share, so that their products give the ratios.

    Large ratios take large factors, so that the multipliers have the same magnitude; of the upper half of what a
    factor may be, the one with the least error is taken.
    """
    largest = np.clip(np.minimum(room, room.min() * ratio / ratio.min()), 1, MOST_MULTIPLIER)
    _, shift = factor(float((ratio / np.maximum(largest // 2, 1)).max()), MOST_PRODUCT_SHIFT)
    candidates = np.maximum(np.floor(largest[:, None] * (1 - np.arange(CANDIDATES) / (2 * CANDIDATES))), 1)
    wanted = ratio[:, None] * 2.0**shift / candidates
    rounded = np.rint(wanted).clip(0, MOST_MULTIPLIER)
    error = np.abs(rounded - wanted) * candidates
    best = np.argmin(error, axis=1)[:, None]
    first, second = (np.take_along_axis(each, best, axis=1)[:, 0] for each in (candidates, rounded))
    return first, second.astype(np.int16), shift


CANDIDATES = 4096
"""Factors that are tried for a channel."""


def stages_of(sums: Sums, *, free: bool) -> tuple[Stage, Stage, Operands]:
    """X1 and X2 of a convolution; both stages where one would miss more than TOLERANCE and X2 is free."""
    stage, operands, error = one_stage(sums)
    if error <= TOLERANCE or not free:
        return stage, IDLE, operands
    return two_stages(sums)
