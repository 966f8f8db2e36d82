"""Products with weights and of matrices: convolutions, fully connected layers, and their multiply-accumulates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops.attributes import (
    AVERAGE,
    BLOCKS,
    DILATIONS,
    FUSED,
    GROUP,
    KERNEL_SHAPE,
    OUTPUT_PADDING,
    PADS,
    SELECTS,
    STRIDES,
)
from npuc.ops.declaration import Op, Parameter, broadcast, has_input
from npuc.ops.elementwise import activate
from npuc.ops.windows import Window, window_of

if TYPE_CHECKING:
    from npuc.onnx_files.export import OnnxEmitter

PRODUCTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
"""Operators whose results are sums of products."""


def macs(node: Node, types: Mapping[str, TensorType]) -> int:
    """Those of a product with weights or of two matrices, per run; 0 for other nodes.

    types: of the node's tensors. Padding counts, as on every machine. Zeros that make a grouped convolution
    dense do not count, nor do integer convolutions that average or only move channels.
    """
    if node.op not in ("Conv", "ConvTranspose", "Gemm", "MatMul", "IntConv"):
        return 0
    x, w, y = (types[name] for name in (*node.inputs[:2], node.output))
    match node.op:
        case "Conv":
            return y.size * prod(w.shape[1:])
        case "IntConv":
            return 0 if AVERAGE(node) or SELECTS(node) else y.size * prod(w.shape[1:]) // BLOCKS(node)
        case "ConvTranspose":
            return x.size * prod(w.shape[1:])
        case _:
            return y.size * x.shape[-1]


def _same_rank(_node: Node, types: Sequence[TensorType]) -> bool:
    """Weight and input have the same rank."""
    return len(types[0].shape) == len(types[1].shape)


def _kernel_of_the_weight(node: Node, types: Sequence[TensorType]) -> bool:
    """The extents of the kernel are the weight's."""
    return KERNEL_SHAPE(node) in ((), types[1].shape[2:])


def _conv_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, w = types[0].shape, types[1].shape
    return (TensorType((x[0], w[0], *window_of(node, w[2:]).extents(node, x[2:]))),)


def _conv(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """im2col, then one matrix product per sample and group."""
    x, w = inputs[0], inputs[1]
    group, window = GROUP(node), window_of(node, w.shape[2:])
    extents = window.extents(node, x.shape[2:])
    padded = window.pad(x, 0, extents)
    taps = [padded[(..., *index)] for index in window.taps(extents)]
    columns = np.stack(taps, axis=2) if len(taps) > 1 else np.ascontiguousarray(taps[0])
    columns = columns.reshape(x.shape[0], group, w.shape[1] * len(taps), prod(extents))
    y = w.reshape(group, w.shape[0] // group, -1) @ columns
    y = y.reshape(x.shape[0], w.shape[0], *extents)
    if has_input(node, 2):
        y += inputs[2].reshape(-1, *(1 for _ in extents))
    return (activate(node, y),)


def _transposed_extents(node: Node, window: Window, spatial: Sequence[int]) -> tuple[int, ...]:
    """(in - 1) * stride + reach + output_padding - pads per dimension."""
    extra = OUTPUT_PADDING(node) or (0,) * len(window.kernel)
    return tuple(
        (extent - 1) * s + reach + more - begin - end
        for extent, s, reach, more, begin, end in zip(
            spatial, window.strides, window.reach, extra, window.begins, window.ends, strict=True
        )
    )


def _little_more(node: Node, types: Sequence[TensorType]) -> bool:
    """The output padding is smaller than stride or dilation."""
    window = window_of(node, types[1].shape[2:])
    return all(
        e < max(s, d) for e, s, d in zip(OUTPUT_PADDING(node), window.strides, window.dilations, strict=False)
    )


def _something_left(node: Node, types: Sequence[TensorType]) -> bool:
    """The pads leave at least one row and column."""
    x, w = types[0].shape, types[1].shape
    return min(_transposed_extents(node, window_of(node, w[2:]), x[2:])) > 0


def _conv_transpose_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, w = types[0].shape, types[1].shape
    extents = _transposed_extents(node, window_of(node, w[2:]), x[2:])
    return (TensorType((x[0], w[1] * GROUP(node), *extents)),)


def _conv_transpose(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Every tap's product is added to the elements that it covers; then the pads are cropped."""
    x, w = inputs[0], inputs[1]
    group, window = GROUP(node), window_of(node, w.shape[2:])
    batch, spatial = x.shape[0], x.shape[2:]
    extents = _transposed_extents(node, window, spatial)
    weights = w.reshape(group, w.shape[0] // group, w.shape[1], -1).transpose(3, 0, 2, 1)
    pixels = x.reshape(batch, group, w.shape[0] // group, -1)
    whole = [e + b + a for e, b, a in zip(extents, window.begins, window.ends, strict=True)]
    y = np.zeros((batch, w.shape[1] * group, *whole), np.float32)
    for index, weight in zip(window.taps(spatial), weights, strict=True):
        y[(..., *index)] += (weight @ pixels).reshape(batch, -1, *spatial)
    y = y[(..., *(slice(b, b + e) for b, e in zip(window.begins, extents, strict=True)))]
    if has_input(node, 2):
        y = y + inputs[2].reshape(-1, *(1 for _ in extents))
    return (activate(node, y),)


X, Y = Parameter("x", shape="N group*I L *S"), Parameter("y")
BIAS = Parameter("bias", shape="group*P", optional=True)
WINDOWED = (KERNEL_SHAPE, STRIDES, PADS, DILATIONS, GROUP)


def _gemm(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    y = inputs[0] @ inputs[1].T
    if has_input(node, 2):
        y += inputs[2]
    return (activate(node, y),)


def _gemm_onnx(node: Node, emit: OnnxEmitter) -> None:
    emit.activate(node, "Gemm", node.inputs, transB=1)


def _is_chained(_node: Node, types: Sequence[TensorType]) -> bool:
    """Both have two axes or more, and the last extent of a is the last but one of b."""
    a, b = (each.shape for each in types)
    return min(len(a), len(b)) > 1 and a[-1] == b[-2]


def _matmul_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    a, b = (each.shape for each in types)
    return (TensorType((*broadcast(node, a[:-2], b[:-2]), a[-2], b[-1])),)


def _matmul(_node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return (np.asarray(inputs[0] @ inputs[1], np.float32),)


OPERATORS = (
    Op(
        "Conv",
        "Convolution with strides, pads, dilations and groups, over any number of spatial dimensions.",
        (X, Parameter("w", shape="group*P I K *T"), BIAS),
        (Y,),
        _conv,
        (*WINDOWED, *FUSED, SELECTS, BLOCKS),
        (_same_rank, _kernel_of_the_weight),
        _conv_types,
    ),
    Op(
        "ConvTranspose",
        "Transposed convolution with strides, pads, dilations, output padding and groups.",
        (X, Parameter("w", shape="group*I P K *T"), BIAS),
        (Y,),
        _conv_transpose,
        (*WINDOWED, OUTPUT_PADDING, *FUSED),
        (_same_rank, _kernel_of_the_weight, _little_more, _something_left),
        _conv_transpose_types,
    ),
    Op(
        "Gemm",
        "Fully connected layer: x times the transposed weight, plus a bias.",
        (Parameter("x", shape="M K"), Parameter("w", shape="N K"), Parameter("bias", shape="N", optional=True)),
        (Parameter("y", shape="M N"),),
        _gemm,
        FUSED,
        to_onnx=_gemm_onnx,
    ),
    Op(
        "MatMul",
        "Matrix product of two tensors, batched as in numpy.",
        (Parameter("a"), Parameter("b")),
        (Parameter("y"),),
        _matmul,
        requires=(_is_chained,),
        infer=_matmul_types,
    ),
)
