"""Convolutions in one or both SDP stages: any bias and any ratio of scales, with zero points or given weights.

`Multiplied` reads them back from an NvConv: weights, a 16-bit bias behind a shift, multipliers.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Node
from npuc.ops.accumulators import accumulator_bound
from npuc.ops.attributes import AVERAGE
from npuc.quantize.arithmetic.weights import blocks
from npuc.quantize.network.construction import IntegerLayer, LayerWeights, Quantised
from npuc.quantize.scales.model_scales import integers_of
from npuc.targets.nvdla.arithmetic.fixed_point import (
    FRACTION,
    MOST_MULTIPLIER,
    MOST_PRODUCT_SHIFT,
    addends,
    factor,
    factors,
    largest_magnitudes,
)
from npuc.targets.nvdla.arithmetic.integer import IDLE, WINOGRAD, SdpStage, operands, stages
from npuc.targets.nvdla.quantisation.builder import SUM

TOLERANCE = 2.0**-16
"""The error allowed for multiplier and bias of a single stage, in steps of the result: that of float32."""
COLUMN = (-1, 1, 1)
LARGEST_BIAS = 2.0**22
"""The largest bias in steps of the sums, for channels whose weights have become tiny in training."""
FINEST_STEP = 2.0**-24
"""The smallest step of the sums, in steps of the result."""


@frozen
class Sums:
    """The sums of a convolution: its integer weights, and per channel the bias in steps of the sums.

    w: (Co, ...) int8. bias: (Co,) whole numbers that include the input's zero point. ratio: (Co,), a step of the
    sums divided by a step of the result.
    """

    w: Array
    bias: Array
    ratio: Array

    @property
    def bound(self) -> Array:
        """The largest magnitude of sum and bias, (Co,)."""
        return accumulator_bound(self.w, np.zeros(len(self.w), np.int32)) + np.abs(self.bias)


def exact_sums(
    w: Array, bias: Array | None, x_scale: float, x_zero: int, unit: float, *, twice: bool = False
) -> Sums | None:
    """The sums of float weights (Co, ...) that are multiples of int8 integers; None for other weights.

    bias: (Co,) float. unit: the scale of the result. twice: split 9-bit integers into two 8-bit ones, for an input
    that contains every channel twice: (Co, 2 * Ci, ...).
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
    given = np.float32(x_scale) * scales.astype(np.float32)  # in float32, as in onnxruntime
    step = np.where(integers.any(axis=tuple(range(1, w.ndim))), given, alone)
    total = integers.astype(np.float64).reshape(len(w), -1).sum(axis=1)
    ratio = np.where(step == given, (given / np.float32(unit)).astype(np.float64), step / unit)
    return Sums(parts.astype(np.int8), np.rint(held / step) - x_zero * total, ratio)


def choose_sums(w: Array, bias: Array | None, x_scale: float, x_zero: int, unit: float) -> Sums:
    """The sums of float weights (Co, ...); each channel's largest weight becomes 127, or less if it is tiny."""
    flat = w.reshape(len(w), -1)
    held = np.zeros(len(w)) if bias is None else bias.astype(np.float64)
    alone = np.maximum(np.abs(held) / MOST_MULTIPLIER, unit * 2.0**-8)
    finest = np.maximum(np.abs(held) / LARGEST_BIAS, unit * FINEST_STEP) / x_scale
    scales = np.where(flat.any(axis=1), np.maximum(largest_magnitudes(flat) / 127, finest), alone / x_scale)
    integers = np.empty(flat.shape, np.int8)
    for rows in blocks(flat):
        integers[rows] = np.rint(flat[rows].astype(np.float64) / scales[rows, None])
    step = x_scale * scales
    total = np.rint(held / step) - x_zero * integers.sum(axis=1, dtype=np.float64)
    return Sums(integers.reshape(w.shape), total, step / unit)


Operands = dict[str, Array]
SATURATED = 256
"""A result this many steps from the zero point saturates to int8, whatever the zero point."""


def one_stage(sums: Sums) -> tuple[SdpStage, Operands, float]:
    """X1 with bias and multiplier, and its largest error in steps of the result."""
    bias, left = addends(sums.bias)
    multiplier, shift = factors(sums.ratio)
    wrong_ratio = np.abs(multiplier * 2.0**-shift - sums.ratio) * sums.bound
    wrong_bias = np.abs(bias * 2.0**left - sums.bias) * sums.ratio
    operands = {"x1_alu": bias.reshape(COLUMN), "x1_mul": multiplier.reshape(COLUMN)}
    return SdpStage(SUM, left, 1, 0, shift), operands, float((wrong_ratio + wrong_bias).max())


def two_stages(sums: Sums) -> tuple[SdpStage, SdpStage, Operands]:
    """X1 and X2, whose two multipliers represent the ratio as exactly as onnxruntime's floats do.

    X1 adds the upper part of the bias and multiplies by a factor that fits 32 bits; X2 adds the rest of the bias,
    multiplies and shifts. Nothing is rounded before the result, and no sum saturates unless its result does.
    """
    upper, left = addends(sums.bias)
    reach = np.minimum(sums.bound, SATURATED / sums.ratio)
    most = np.clip(np.floor(2.0**31 / (reach + 2.0**left)), 1, MOST_MULTIPLIER)
    first, second, shift = _split(sums.ratio, most)
    _, lower_left = addends(first * 2.0**left / 2)  # room for the rest of any bias
    lower = np.rint((sums.bias - upper * 2.0**left) * first / 2.0**lower_left).astype(np.int16)
    operands = {"x1_alu": upper, "x1_mul": first.astype(np.int16), "x2_alu": lower, "x2_mul": second}
    columns = {key: value.reshape(COLUMN) for key, value in operands.items()}
    return SdpStage(SUM, left, 1), SdpStage(SUM, lower_left, 1, 0, shift), columns


def _split(ratio: Array, most: Array) -> tuple[Array, Array, int]:
    """Factors up to `most`, int16 multipliers and their common shift, whose products are the ratios.

    Larger ratios get larger factors, so that the multipliers have similar magnitudes. Of the upper half of a
    factor's range the one with the smallest error is chosen.
    """
    largest = np.clip(np.minimum(most, most.min() * ratio / ratio.min()), 1, MOST_MULTIPLIER)
    _, shift = factor(float((ratio / np.maximum(largest // 2, 1)).max()), MOST_PRODUCT_SHIFT)
    wanted = ratio * 2.0**shift
    rows = (slice(start, start + ROWS) for start in range(0, len(ratio), ROWS))
    found = [_closest(largest[each], wanted[each]) for each in rows]
    first, second = (np.concatenate(column) for column in zip(*found, strict=True))
    return first, second.astype(np.int16), shift


def _closest(largest: Array, wanted: Array) -> tuple[Array, Array]:
    """Of the candidates from half of `largest` up, the factor that comes closest, and its multiplier."""
    candidates = np.multiply.outer(largest, 1 - np.arange(CANDIDATES) / (2 * CANDIDATES))
    np.maximum(np.floor(candidates, out=candidates), 1, out=candidates)
    error = wanted[:, None] / candidates
    rounded = np.rint(error)
    np.clip(rounded, 0, MOST_MULTIPLIER, out=rounded)
    error -= rounded
    np.abs(error, out=error)
    error *= candidates
    best = np.argmin(error, axis=1)[:, None]
    first, second = (np.take_along_axis(each, best, axis=1)[:, 0] for each in (candidates, rounded))
    return first, second


CANDIDATES = 4096
"""Factors tried for each channel."""
ROWS = 16
"""Channels at once: their candidates stay in the cache."""


def stages_of(sums: Sums, *, free: bool) -> tuple[SdpStage, SdpStage, Operands]:
    """X1 and X2 of a convolution; uses both if one stage alone exceeds TOLERANCE and X2 is free."""
    stage, operands, error = one_stage(sums)
    if error <= TOLERANCE or not free:
        return stage, IDLE, operands
    return two_stages(sums)


class Multiplied:
    """NvConv: X1 or both stages give steps of the result, or X1 gives fractions of steps if X2 does more."""

    def layer(self, quantised: Quantised, node: Node) -> IntegerLayer | None:
        """The convolution of an NvConv in int8; None for others, averages, transformed or two-part weights."""
        if node.op != "NvConv" or AVERAGE(node) or WINOGRAD(node):
            return None
        if node.inputs[0] not in quantised.scales:  # every channel twice, as weights have 9 bits
            return None
        if quantised.graph.tensors[node.output].dtype != "int8":
            return None
        first, second = stages(node)
        operand, step = operands(node)[2], quantised.scales[node.output]
        zero = quantised.zeros.get(node.output, 0)
        lowest, largest = -128.0 - zero, 127.0 - zero
        if operand in quantised.scales or second.prelu:
            step = quantised.scales.get(operand, step) * 2.0**-FRACTION
            lowest, largest = -inf, inf
        relu = first.relu or (second.relu and operand not in quantised.scales)
        weights, source = self._weights(quantised, node), quantised.sources[node.inputs[1]]
        return IntegerLayer(source, weights, step, 0, max(lowest, 0) if relu else lowest, largest)

    def _weights(self, quantised: Quantised, node: Node) -> LayerWeights:
        first, second = stages(node)
        constants = quantised.graph.constants
        names = operands(node)[:4]
        upper, multiplier, lower, other = (
            constants[name].ravel().astype(np.int64) if name in constants else None for name in names
        )
        assert upper is not None
        assert multiplier is not None
        w, grain = constants[node.inputs[1]], 1 << first.alu_shift
        if not second.multiply or second.prelu:
            power = 2.0**first.shift / multiplier
            return LayerWeights(w, upper * grain, power, grain, MOST_MULTIPLIER * grain)
        assert lower is not None
        assert other is not None
        bias = upper * grain + np.rint((lower << second.alu_shift) / multiplier).astype(np.int64)
        power = 2.0**second.shift / np.maximum(multiplier * other, 0.5)
        return LayerWeights(w, bias, power, 1, MOST_MULTIPLIER * grain)

    def constants(self, quantised: Quantised, node: Node, weights: LayerWeights) -> Mapping[str, Array]:
        """The weights, and the bias in one or two parts."""
        first, second = stages(node)
        upper, multiplier, lower, _, _ = operands(node)
        grain = 1 << first.alu_shift
        parts = np.rint(weights.bias / grain).astype(np.int64)
        found = {node.inputs[1]: weights.w, upper: parts.astype(np.int16).reshape(COLUMN)}
        if second.multiply and not second.prelu:
            rest = (weights.bias - parts * grain) * quantised.graph.constants[multiplier].ravel()
            limited = np.rint(rest / 2.0**second.alu_shift).clip(-MOST_MULTIPLIER, MOST_MULTIPLIER)
            found[lower] = limited.astype(np.int16).reshape(COLUMN)
        return found
