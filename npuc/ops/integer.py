"""The operators of the integer graph: int8 tensors, 32-bit accumulators, requantisation by shifts.

Every activation is int8. Zero points are 0 unless a model defines others; biases then absorb them, and windows are
padded with them. For the conversion of accumulators to int8 see ops.accumulators.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops import integer_onnx
from npuc.ops.accumulators import requantise
from npuc.ops.attributes import (
    AVERAGE,
    BLOCKS,
    DILATIONS,
    ERROR_LSB,
    FUSED_INPUT,
    GROUP,
    KERNEL_SHAPE,
    PADDING,
    PADS,
    RELU,
    SELECTS,
    SHIFT,
    STRIDES,
)
from npuc.ops.declaration import Op, Parameter, broadcast
from npuc.ops.windows import window_of


def convolve(node: Node, x: Array, w: Array) -> Array:
    """The sums of products of a convolution: int64 (N, Co, Ho, Wo); w: (Co, Ci/group, Hk, Wk) integers."""
    window, group = window_of(node, w.shape[2:]), GROUP(node)
    extents = window.extents(node, x.shape[2:])
    padded = window.pad(x, PADDING(node), extents).astype(np.int64)
    split = padded.reshape(x.shape[0], group, -1, *padded.shape[2:])
    taps = w.astype(np.int64).reshape(group, w.shape[0] // group, w.shape[1], -1)
    acc = sum(
        np.einsum("ngchw,gkc->ngkhw", split[(..., *index)], taps[..., tap])
        for tap, index in enumerate(window.taps(extents))
    )
    return np.asarray(acc).reshape(x.shape[0], w.shape[0], *extents)


def _conv_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, w = types[0].shape, types[1].shape
    return (TensorType((x[0], w[0], *window_of(node, w[2:]).extents(node, x[2:])), "int8"),)


def _pair_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Two int8 maps; one may have a single row or column, which is broadcast."""
    return (TensorType(broadcast(node, types[0].shape, types[1].shape), "int8"),)


def _conv(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, w, bias, shift = inputs[:4]
    acc = convolve(node, x, w) + bias[:, None, None]
    return (requantise(acc, shift[:, None, None], RELU(node)),)


def _add(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    acc = inputs[0].astype(np.int32) + inputs[1]
    return (requantise(acc, SHIFT(node), RELU(node)),)


def _sum(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (left, right), (first, second) = (each.astype(np.int64) for each in inputs[:2]), inputs[2].astype(np.int64)
    acc = first * left + second * right + inputs[3]
    return (requantise(acc, SHIFT(node), RELU(node)),)


def _mul(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return (requantise(inputs[0].astype(np.int32) * inputs[1], SHIFT(node)),)


def _relu(_node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return (np.maximum(inputs[0], 0),)


def _has_segments(_node: Node, types: Sequence[TensorType]) -> bool:
    """The table has at least one segment."""
    return types[1].size > 0


def _table(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Evaluates the formula for all 256 inputs; each element is looked up."""
    x, starts, a, b = inputs
    values = np.arange(-128, 128)
    segment = np.searchsorted(starts, values, side="right") - 1
    results = requantise(a[segment].astype(np.int64) * values + b[segment], SHIFT(node))
    return (results[x.astype(np.int16) + 128],)


def _prelu(_node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x = inputs[0].astype(np.int32)
    column = (-1, *(1,) * (x.ndim - 2))
    positive, positive_shift, negative, negative_shift = (each.reshape(column) for each in inputs[1:])
    return (np.where(x < 0, requantise(x * negative, negative_shift), requantise(x * positive, positive_shift)),)


INT8 = ("int8",)
INT32 = ("int32",)
X, Y = Parameter("x", INT8, "*X"), Parameter("y", INT8, "*X")
PAIR = Parameter("a", INT8), Parameter("b", INT8)


def _shifts(name: str, shape: str) -> Parameter:
    """Right shifts of accumulators."""
    return Parameter(name, INT8, shape, low=0, high=31)


OPERATORS = (
    Op(
        "IntConv",
        "int8 convolution with bias, requantised per channel.",
        (
            Parameter("x", INT8, "N group*I H W"),
            Parameter("w", INT8, "group*P I Hk Wk"),
            Parameter("bias", INT32, "group*P"),
            _shifts("shift", "group*P"),
            Parameter("surroundings", INT8, optional=True, variadic=True),
        ),
        (Parameter("y", INT8),),
        _conv,
        (KERNEL_SHAPE, STRIDES, PADS, DILATIONS, GROUP, RELU, PADDING, AVERAGE, SELECTS, BLOCKS),
        infer=_conv_types,
        to_onnx=integer_onnx.conv,
        origin="quantiser",
    ),
    Op(
        "IntAdd",
        "The requantised sum of two int8 tensors.",
        PAIR,
        (Parameter("y", INT8),),
        _add,
        (SHIFT, RELU, FUSED_INPUT),
        infer=_pair_types,
        to_onnx=integer_onnx.pair,
        origin="quantiser",
    ),
    Op(
        "IntSum",
        "The requantised sum of two int8 tensors, each times a factor, and a bias.",
        (*PAIR, Parameter("w", INT8, "2"), Parameter("bias", INT32, "")),
        (Parameter("y", INT8),),
        _sum,
        (SHIFT, RELU),
        infer=_pair_types,
        to_onnx=integer_onnx.weighted_sum,
        origin="quantiser",
    ),
    Op(
        "IntMul",
        "The requantised product of two int8 tensors.",
        PAIR,
        (Parameter("y", INT8),),
        _mul,
        (SHIFT,),
        infer=_pair_types,
        to_onnx=integer_onnx.pair,
        origin="quantiser",
    ),
    Op(
        "IntRelu",
        "The larger of an int8 element and 0.",
        (X,),
        (Y,),
        _relu,
        to_onnx=integer_onnx.relu,
        origin="quantiser",
    ),
    Op(
        "IntTable",
        "A function of an int8 element, piecewise linear.",
        (X, Parameter("starts", INT8, "G"), Parameter("a", INT8, "G"), Parameter("b", INT32, "G")),
        (Y,),
        _table,
        (SHIFT, ERROR_LSB),
        (_has_segments,),
        to_onnx=integer_onnx.table,
        origin="quantiser",
    ),
    Op(
        "IntPRelu",
        "Per channel, the requantised product with one of two factors, by sign.",
        (
            Parameter("x", INT8, "N C *S"),
            Parameter("positive", INT8, "C"),
            _shifts("positive_shift", "C"),
            Parameter("negative", INT8, "C"),
            _shifts("negative_shift", "C"),
        ),
        (Parameter("y", INT8, "N C *S"),),
        _prelu,
        to_onnx=integer_onnx.prelu,
        origin="quantiser",
    ),
)
