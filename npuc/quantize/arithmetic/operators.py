"""The operators of the integer graph: int8 tensors, 32-bit accumulators, requantisation by shifts.

Every activation is int8. The integer that stands for 0 is 0 but where a model gives another, which biases then
take and with which windows are padded. An accumulator is requantised per output channel by
sat8(floor(acc / 2^n + 1/2)): round half up, toward plus infinity, then saturate to -128..127.
Source: easynpu, chapter PE; the rounding and the saturation as the author's RTL has them.
The rows here join the operator table, so an integer graph is a Graph like any other.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops.rules import broadcast
from npuc.ops.table import Op, bad_node, register
from npuc.ops.windows import window_of

EXACT_FLOAT32 = 1 << 24
"""Integers below this are exact in float32, and so is every sum of them that stays below."""


KERNELS = 64
"""Kernels whose weights are widened at once: those of a large layer together would fill the memory."""


def requantise(acc: Array, shift: Array | int, relu: bool = False) -> Array:
    """int8 from accumulators: sat8(floor(acc / 2^shift + 1/2)), then the larger of it and 0 with relu.

    acc: any integer type; shift: 0..31, broadcast against acc.
    """
    wide = acc.astype(np.int64)
    amount = np.asarray(shift, np.int64)
    half = np.where(amount > 0, np.int64(1) << np.maximum(amount - 1, 0), 0)
    return np.clip((wide + half) >> amount, 0 if relu else -128, 127).astype(np.int8)


def accumulator_bound(w: Array, bias: Array) -> Array:
    """The largest |accumulator| per output channel for any int8 input: 128 * sum |w| + |bias|.

    w: (Co, ...) integers; bias: (Co,). Result: (Co,) int64.
    """
    sums = np.abs(bias.astype(np.int64))
    for first in range(0, len(w), KERNELS):
        kernels = slice(first, first + KERNELS)
        sums[kernels] += 128 * np.abs(w[kernels], dtype=np.int64).reshape(len(w[kernels]), -1).sum(axis=1)
    return sums


def _expect(node: Node, types: Sequence[TensorType], *dtypes: str) -> None:
    for name, found, wanted in zip(node.inputs, types, dtypes, strict=True):
        if found.dtype != wanted:
            raise bad_node(node, f"the element type is {found.dtype}", tensor=name, limit=wanted)


def _conv_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """x (1, Ci, H, W) int8, w (Co, Ci/group, Hk, Wk) int8, bias (Co,) int32, shift (Co,) int8.

    Behind these a target may put what its machine needs for the integer that surrounds x (`padding`).
    """
    _expect(node, types, "int8", "int8", "int32", "int8", *("int8" for _ in types[4:]))
    x, w = types[0].shape, types[1].shape
    if len(x) != 4 or len(w) != 4 or w[1] * node.integer("group", 1) != x[1]:
        raise bad_node(node, f"weight {list(w)} for input {list(x)}")
    if types[2].shape != (w[0],) or types[3].shape != (w[0],):
        raise bad_node(node, f"bias {list(types[2].shape)} and shift {list(types[3].shape)} for {w[0]} channels")
    extents = window_of(node, w[2:]).extents(node, x[2:])
    return (TensorType((x[0], w[0], *extents), "int8"),)


def convolve(node: Node, x: Array, w: Array) -> Array:
    """The sums of products of a convolution: int64 (N, Co, Ho, Wo); w: (Co, Ci/group, Hk, Wk) integers."""
    window, group = window_of(node, w.shape[2:]), node.integer("group", 1)
    extents = window.extents(node, x.shape[2:])
    padded = window.padded(x, node.integer("padding"), extents).astype(np.int64)
    split = padded.reshape(x.shape[0], group, -1, *padded.shape[2:])
    taps = w.astype(np.int64).reshape(group, w.shape[0] // group, w.shape[1], -1)
    acc = sum(
        np.einsum("ngchw,gkc->ngkhw", split[(..., *index)], taps[..., tap])
        for tap, index in enumerate(window.taps(extents))
    )
    return np.asarray(acc).reshape(x.shape[0], w.shape[0], *extents)


def _conv(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, w, bias, shift = inputs[:4]
    acc = convolve(node, x, w) + bias[:, None, None]
    return (requantise(acc, shift[:, None, None], bool(node.integer("relu"))),)


def _pair_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Two int8 maps; one may have a single row or column that is repeated."""
    _expect(node, types, "int8", "int8")
    return (TensorType(broadcast(node, types[0].shape, types[1].shape), "int8"),)


def _add(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    acc = inputs[0].astype(np.int32) + inputs[1]
    return (requantise(acc, node.integer("shift"), bool(node.integer("relu"))),)


def _sum_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Two int8 maps as of a sum, w (2,) int8, bias () int32."""
    _expect(node, types, "int8", "int8", "int8", "int32")
    return (TensorType(broadcast(node, types[0].shape, types[1].shape), "int8"),)


def _sum(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (left, right), (first, second) = (each.astype(np.int64) for each in inputs[:2]), inputs[2].astype(np.int64)
    acc = first * left + second * right + inputs[3]
    return (requantise(acc, node.integer("shift"), bool(node.integer("relu"))),)


def _mul(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return (requantise(inputs[0].astype(np.int32) * inputs[1], node.integer("shift")),)


def _relu_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    _expect(node, types, "int8")
    return (types[0],)


def _relu(_node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return (np.maximum(inputs[0], 0),)


def _table_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """x int8 of any shape; starts and a (segments,) int8, b (segments,) int32."""
    _expect(node, types, "int8", "int8", "int8", "int32")
    if len({each.shape for each in types[1:]}) != 1 or len(types[1].shape) != 1 or not types[1].shape[0]:
        raise bad_node(node, f"segments of {', '.join(str(list(each.shape)) for each in types[1:])}")
    return (types[0],)


def _table(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """The formula for all 256 inputs, of which each element takes one."""
    x, starts, a, b = inputs
    values = np.arange(-128, 128)
    segment = np.searchsorted(starts, values, side="right") - 1
    results = requantise(a[segment].astype(np.int64) * values + b[segment], node.integer("shift"))
    return (results[x.astype(np.int16) + 128],)


def _prelu_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """x (1, C, ...) int8; multiplier and shift for x >= 0, multiplier and shift for x < 0, (C,) int8 each."""
    _expect(node, types, "int8", "int8", "int8", "int8", "int8")
    x = types[0].shape
    if len(x) < 2 or any(each.shape != x[1:2] for each in types[1:]):
        raise bad_node(node, f"slopes of {', '.join(str(list(each.shape)) for each in types[1:])} for {list(x)}")
    return (types[0],)


def _prelu(_node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x = inputs[0].astype(np.int32)
    column = (-1, *(1,) * (x.ndim - 2))
    positive, positive_shift, negative, negative_shift = (each.reshape(column) for each in inputs[1:])
    return (np.where(x < 0, requantise(x * negative, negative_shift), requantise(x * positive, positive_shift)),)


register(
    Op("IntSum", "The requantised sum of two int8 tensors, each times a factor, and a bias.", _sum_types, _sum),
    Op("IntConv", "int8 convolution with bias, requantised per channel.", _conv_types, _conv),
    Op("IntAdd", "The requantised sum of two int8 tensors.", _pair_types, _add),
    Op("IntMul", "The requantised product of two int8 tensors.", _pair_types, _mul),
    Op("IntRelu", "The larger of an int8 element and 0.", _relu_types, _relu),
    Op("IntTable", "A function of an int8 element, piecewise linear.", _table_types, _table),
    Op("IntPRelu", "Per channel, the requantised product with one of two factors, by sign.", _prelu_types, _prelu),
)
