"""Convolution and transposed convolution over any number of spatial dimensions."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops.activation import activate
from npuc.ops.rules import expect_float, expect_rank, expect_shape, given
from npuc.ops.table import Op, bad_node, register
from npuc.ops.windows import Window, window_of


def _checked(node: Node, types: Sequence[TensorType]) -> tuple[int, ...]:
    """Checks what both convolutions share and gives the kernel's spatial shape."""
    expect_float(node, types)
    x, w = types[0], types[1]
    expect_rank(node, x, 3)
    if len(w.shape) != len(x.shape):
        reason = f"weight of shape {list(w.shape)} for an input of shape {list(x.shape)}"
        raise bad_node(node, reason, tensor=node.inputs[1], limit="weight and input have the same rank")
    kernel = node.integers("kernel_shape", w.shape[2:])
    if kernel != w.shape[2:]:
        reason = f"kernel_shape is {list(kernel)}, the weight's is {list(w.shape[2:])}"
        raise bad_node(node, reason, tensor=node.inputs[1])
    group = node.integer("group", 1)
    if group < 1 or x.shape[1] % group:
        raise bad_node(node, f"group {group} does not divide {x.shape[1]} input channels")
    return kernel


def _conv_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    kernel = _checked(node, types)
    x, w = types[0].shape, types[1].shape
    group = node.integer("group", 1)
    if w[1] * group != x[1]:
        reason = f"the weight has {w[1]} input channels per group, the input {x[1]} in {group} groups"
        limit = f"weight of shape [Co, {x[1] // group}, ...]"
        raise bad_node(node, reason, tensor=node.inputs[1], limit=limit)
    if w[0] % group:
        raise bad_node(node, f"group {group} does not divide {w[0]} output channels", tensor=node.inputs[1])
    if given(node, 2):
        expect_shape(node, 2, types[2], (w[0],))
    extents = window_of(node, kernel).extents(node, x[2:])
    return (TensorType((x[0], w[0], *extents)),)


def _conv(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """The windows as columns, then one matrix product per sample and group."""
    x, w = inputs[0], inputs[1]
    group, window = node.integer("group", 1), window_of(node, w.shape[2:])
    extents = window.extents(node, x.shape[2:])
    padded = window.padded(x, 0, extents)
    taps = [padded[(..., *index)] for index in window.taps(extents)]
    columns = np.stack(taps, axis=2) if len(taps) > 1 else np.ascontiguousarray(taps[0])
    columns = columns.reshape(x.shape[0], group, w.shape[1] * len(taps), prod(extents))
    y = w.reshape(group, w.shape[0] // group, -1) @ columns
    y = y.reshape(x.shape[0], w.shape[0], *extents)
    if given(node, 2):
        y += inputs[2].reshape(-1, *(1 for _ in extents))
    return (activate(node, y),)


def _transposed_extents(node: Node, window: Window, spatial: Sequence[int]) -> tuple[int, ...]:
    """(in - 1) * stride + reach + output_padding - pads per dimension; raises E105 if none is left."""
    extra = node.integers("output_padding", (0,) * len(window.kernel))
    if len(extra) != len(window.kernel) or any(
        not 0 <= more < max(s, d) for more, s, d in zip(extra, window.strides, window.dilations, strict=False)
    ):
        limit = "one value per dimension, smaller than its stride or dilation"
        raise bad_node(node, f"output_padding is {list(extra)}", limit=limit)
    extents = tuple(
        (extent - 1) * s + reach + more - begin - end
        for extent, s, reach, more, begin, end in zip(
            spatial, window.strides, window.reach, extra, window.begins, window.ends, strict=True
        )
    )
    if min(extents) < 1:
        raise bad_node(node, f"the pads leave an output of {list(extents)}", limit="at least 1")
    return extents


def _conv_transpose_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    kernel = _checked(node, types)
    x, w = types[0].shape, types[1].shape
    if w[0] != x[1]:
        reason = f"the weight has {w[0]} input channels, the input {x[1]}"
        raise bad_node(node, reason, tensor=node.inputs[1], limit=f"weight of shape [{x[1]}, Co/group, ...]")
    channels = w[1] * node.integer("group", 1)
    if given(node, 2):
        expect_shape(node, 2, types[2], (channels,))
    extents = _transposed_extents(node, window_of(node, kernel), x[2:])
    return (TensorType((x[0], channels, *extents)),)


def _conv_transpose(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    """Every tap's product is added to the elements that it meets; then the pads are cut off."""
    x, w = inputs[0], inputs[1]
    group, window = node.integer("group", 1), window_of(node, w.shape[2:])
    batch, spatial = x.shape[0], x.shape[2:]
    extents = _transposed_extents(node, window, spatial)
    weights = w.reshape(group, w.shape[0] // group, w.shape[1], -1).transpose(3, 0, 2, 1)
    pixels = x.reshape(batch, group, w.shape[0] // group, -1)
    whole = [e + b + a for e, b, a in zip(extents, window.begins, window.ends, strict=True)]
    y = np.zeros((batch, w.shape[1] * group, *whole), np.float32)
    for index, weight in zip(window.taps(spatial), weights, strict=True):
        y[(..., *index)] += (weight @ pixels).reshape(batch, -1, *spatial)
    y = y[(..., *(slice(b, b + e) for b, e in zip(window.begins, extents, strict=True)))]
    if given(node, 2):
        y = y + inputs[2].reshape(-1, *(1 for _ in extents))
    return (activate(node, y),)


register(
    Op(
        "Conv",
        "Convolution with strides, pads, dilations and groups, over any number of spatial dimensions.",
        _conv_types,
        _conv,
    ),
    Op(
        "ConvTranspose",
        "Transposed convolution with strides, pads, dilations, output padding and groups.",
        _conv_transpose_types,
        _conv_transpose,
    ),
)
