"""Weights, biases and shifts of a layer on a machine that requantises only by shifts, and bounds of its sums.

The weight scale of output channel c is Sw[c] = (Sy / Sx) * 2^-n[c]: the weights absorb the ratio of the activation
scales, whatever it is, and requantisation is a right shift by n[c].

The largest accumulator that a node of the integer graph can reach for any int8 inputs is a proof per layer: it is
below 2^31 for every node of a program, so no sum wraps, and includes the rounding constant of the requantisation.
Values that exceed int8 after the shift saturate, by design: scales are chosen for it.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops.accumulators import accumulator_bound
from npuc.ops.attributes import PADDING, SHIFT

MOST_SHIFT = 31
FINEST_SHIFT = 15
ACCUMULATOR_LIMIT = 1 << 31
TOGETHER = 1 << 18
"""Weights processed at once, in whole kernels: temporary arrays stay in the cache."""
LARGEST_WEIGHT = 127.5
"""Smaller weights round to 8 bits."""


@frozen
class IntegerWeights:
    """w: int8 in the float weight's shape; bias: (Co,) int32 in units of Sy * 2^-shift; shift: (Co,) int8."""

    w: Array
    bias: Array
    shift: Array


def quantise_weights(
    w: Array, bias: Array | None, x_scale: float, y_scale: float, x_zero: int = 0, y_zero: int = 0
) -> IntegerWeights:
    """int8 weights with the least squared error per output channel.

    w: (Co, ...) float; bias: (Co,) float or None. x_zero, y_zero: the zero points; the bias absorbs them exactly
    if the input is padded with x_zero. Two shifts are compared per channel: the largest that saturates no weight,
    and one more. A weight of LARGEST_WEIGHT or more in units of Sy / Sx saturates even at shift 0: the caller must
    refuse it if saturation would change the sum (it would not for a single factor, as in PRelu).
    """
    flat = w.reshape(len(w), -1)
    offset = np.zeros(len(w)) if bias is None else bias.astype(np.float64) / y_scale
    offset = offset + y_zero
    integers, shift = np.empty(flat.shape, np.int8), np.empty(len(w))
    for at in blocks(flat):
        integers[at], shift[at] = _quantise(flat[at].astype(np.float64) * (x_scale / y_scale), offset[at])
    centre = np.rint(offset * np.exp2(shift)) - x_zero * integers.sum(axis=1, dtype=np.int64)
    rounded = centre.clip(-ACCUMULATOR_LIMIT, ACCUMULATOR_LIMIT - 1)
    return IntegerWeights(integers.reshape(w.shape), rounded.astype(np.int32), shift.astype(np.int8))


def in_groups(w: Array, groups: int) -> Array:
    """The weights (Co, C / groups, *taps) of a convolution by groups: (groups, Co / groups, C / groups, taps)."""
    return w.reshape(groups, -1, w.shape[1], w[0, 0].size)


def blocks(kernels: Array) -> Iterator[slice]:
    """Slices of successive kernels (Co, weights of a kernel) with at most TOGETHER weights, or one kernel."""
    rows = max(TOGETHER // max(kernels.shape[1], 1), 1)
    return (slice(start, start + rows) for start in range(0, len(kernels), rows))


def _quantise(flat: Array, offset: Array) -> tuple[Array, Array]:
    """Integers (Co, weights of a channel), and for each channel the better of two shifts, (Co,)."""
    largest = np.maximum(np.abs(flat).max(axis=1), 1e-30)
    safe, limit = np.floor(np.log2(127.499 / largest)), _limit(flat, offset)
    candidates = [np.clip(np.minimum(safe + more, limit), 0, MOST_SHIFT) for more in (0, 1)]
    found = [_integers(flat, shift) for shift in candidates]
    errors = [
        ((each / _power(shift) - flat) ** 2).sum(axis=1) for each, shift in zip(found, candidates, strict=True)
    ]
    finer = errors[1] < errors[0]
    return np.where(finer[:, None], found[1], found[0]), np.where(finer, candidates[1], candidates[0])


def _power(shift: Array) -> Array:
    return np.exp2(shift)[:, None]


def _integers(flat: Array, shift: Array) -> Array:
    return np.clip(np.rint(flat * _power(shift)), -128, 127)


def _limit(flat: Array, offset: Array) -> Array:
    """The largest usable shift: no accumulator reaches 2^30, no bias 2^22, and no weight step is below 2^-15.

    The last two matter for tiny weights (channels switched off by training): finer steps would not show in the
    output, but would take accumulators beyond float32, in which simulators and other runtimes compute.
    """
    reach = 128 * np.abs(flat).sum(axis=1) + np.abs(offset) + 1
    most = np.minimum((1 << 30) / reach, (1 << 22) / (np.abs(offset) + 1))
    return np.minimum(np.floor(np.log2(most)), FINEST_SHIFT)


def average_taps(kernel: tuple[int, int], ratio: float = 1.0, most: int | None = None) -> tuple[Array, int]:
    """int8 taps of an average over the kernel, and the shift S: their sum is the ratio times 2^S, rounded.

    ratio: the input's scale over the result's. most: the largest S. The taps differ by at most 1; the larger ones
    are spread evenly, so that no constant error remains. Source: quantisation notes, Average pooling with int8
    weights.
    """
    count = kernel[0] * kernel[1]
    exponent = min(int(np.floor(np.log2(127 * count / ratio))), MOST_EXPONENT if most is None else most)
    total = round(ratio * 2.0**exponent)
    edges = np.arange(count + 1, dtype=np.int64) * total // count
    return np.diff(edges).astype(np.int8).reshape(kernel), exponent


def sum_factors(left: float, right: float) -> tuple[int, int, int]:
    """int8 factors a, b and a shift so that left * x + right * y is about (a * x + b * y) / 2^shift.

    left, right: each operand's scale over the result's, below LARGEST_WEIGHT.
    """
    shift = min(int(np.floor(np.log2(LARGEST_WEIGHT / max(left, right) * (1 - 1e-9)))), MOST_EXPONENT)
    first, second = (round(ratio * 2.0**shift) for ratio in (left, right))
    return first, second, shift


MOST_EXPONENT = 22
"""Up to this shift the largest zero point, in accumulator units, still fits 32 bits."""


LARGEST = 128
"""The largest magnitude of an int8."""


def node_bound(graph: Graph, node: Node) -> int | None:
    """The bound of a node's accumulator, rounding included; None for a node without arithmetic.

    If the input is padded with a zero point, the accumulator holds a second sum over the weights.
    """
    match node.op:
        case "IntConv":
            w, bias, shift = (graph.constants[name] for name in node.inputs[1:4])
            sums = accumulator_bound(w, bias)
            if PADDING(node):
                sums = sums + accumulator_bound(w, np.zeros_like(bias))
            return int((sums + (1 << np.maximum(shift.astype(np.int64) - 1, 0))).max())
        case "IntAdd":
            return 2 * LARGEST + _rounding(node)
        case "IntSum":
            factors, bias = (graph.constants[name].astype(np.int64) for name in node.inputs[2:])
            return int(LARGEST * np.abs(factors).sum() + np.abs(bias)) + _rounding(node)
        case "IntMul":
            return LARGEST * LARGEST + _rounding(node)
        case "IntPRelu":
            sides = [[graph.constants[name].astype(np.int64) for name in node.inputs[k : k + 2]] for k in (1, 3)]
            return max(int((LARGEST * np.abs(w) + ((1 << shift) >> 1)).max()) for w, shift in sides)
        case "IntTable":
            starts, a, b = (graph.constants[name].astype(np.int64) for name in node.inputs[1:4])
            ends = np.append(starts[1:] - 1, 127)
            reached = [np.abs(a * edge + b).max(initial=0) for edge in (starts, ends)]
            return int(max(reached)) + _rounding(node)
        case _:
            return None


def _rounding(node: Node) -> int:
    return (1 << SHIFT(node)) >> 1
