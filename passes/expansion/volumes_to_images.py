"""Operators on volumes (N, C, D, H, W), computed on images."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from npuc.ir import Array, Attr, Graph, Node
from npuc.ops.attributes import KERNEL_SHAPE, OUTPUT_PADDING
from npuc.ops.windows import Window, window_of
from npuc.passes.expansion.images import TIDY
from npuc.passes.rewriting.rules import Rewriter, rewrite

POOLS = ("MaxPool", "AveragePool")
GLOBAL = ("GlobalMaxPool", "GlobalAveragePool")
MOST_WEIGHTS = 1 << 22
"""The most elements of a kernel that covers the depth; a Conv that needs more stays."""


def volumes_to_images(graph: Graph) -> Graph:
    """Pooling, convolution and transposed convolution over three axes become those over two.

    A window is a product of windows: pooling goes over rows and columns of (N, C * D, H, W), then over the depth
    of (N, C, D, Ho * Wo). A convolution has the depth among its channels, and a kernel with zeros where a depth of
    the output does not use a depth of the input: (Co * Do, Ci * D, Hk, Wk).
    """
    return rewrite(graph, _pool, _global_pool, _convolution, *TIDY)


def _is_volume(rewriter: Rewriter, node: Node, ops: Sequence[str]) -> bool:
    return node.op in ops and len(rewriter.shape(node.inputs[0])) == 5


def _reshape(rewriter: Rewriter, x: str, shape: tuple[int, ...], node: Node) -> Node:
    return rewriter.part(node, "Reshape", (x,), f"{x}@{'x'.join(map(str, shape))}", shape=shape)


def _pool(rewriter: Rewriter, node: Node) -> bool:
    if not _is_volume(rewriter, node, POOLS):
        return False
    (N, C, D, H, W), (_, _, _, Ho, Wo) = rewriter.shape(node.inputs[0]), rewriter.shape(node.output)
    window = window_of(node, KERNEL_SHAPE(node))
    image = _reshape(rewriter, node.inputs[0], (N, C * D, H, W), node)
    plane = rewriter.fresh(f"{node.output}/planes")
    column = _reshape(rewriter, plane, (N, C, D, Ho * Wo), node)
    y = rewriter.fresh(f"{node.output}/depths")
    inner = replace(node, inputs=image.outputs, outputs=(plane,)).with_attrs(**_axes(window, (1, 2)))
    outer = replace(node, inputs=column.outputs, outputs=(y,)).with_attrs(**_axes(window, (0, None)))
    rewriter.replace(node, image, inner, column, outer, rewriter.back(node, y))
    return True


def _axes(window: Window, axes: Sequence[int | None]) -> Mapping[str, Attr]:
    """The attributes of a window over some axes of another; None is an axis without a window."""

    def of(values: Sequence[int], neutral: int) -> tuple[int, ...]:
        return tuple(neutral if axis is None else values[axis] for axis in axes)

    return {
        "kernel_shape": of(window.kernel, 1),
        "strides": of(window.strides, 1),
        "dilations": of(window.dilations, 1),
        "pads": of(window.begins, 0) + of(window.ends, 0),
    }


def _global_pool(rewriter: Rewriter, node: Node) -> bool:
    if not _is_volume(rewriter, node, GLOBAL):
        return False
    N, C, D, H, W = rewriter.shape(node.inputs[0])
    image = _reshape(rewriter, node.inputs[0], (N, C, D, H * W), node)
    y = rewriter.fresh(f"{node.output}/image")
    rewriter.replace(node, image, replace(node, inputs=image.outputs, outputs=(y,)), rewriter.back(node, y))
    return True


def _convolution(rewriter: Rewriter, node: Node) -> bool:
    if not _is_volume(rewriter, node, ("Conv", "ConvTranspose")) or node.inputs[1] not in rewriter.constants:
        return False
    (N, C, D, H, W), (_, _, Do, _, _) = rewriter.shape(node.inputs[0]), rewriter.shape(node.output)
    w = rewriter.constants[node.inputs[1]]
    bias = rewriter.constants.get(node.inputs[2]) if "".join(node.inputs[2:]) else np.zeros(0, np.float32)
    if bias is None or prod(w.shape) // w.shape[2] * D * Do > MOST_WEIGHTS:
        return False
    window = window_of(node, w.shape[2:])
    x = _reshape(rewriter, node.inputs[0], (N, C * D, H, W), node)
    inputs = [*x.outputs, rewriter.constant(_deep(node.op, w, window, D, Do), f"{node.output}/kernel")]
    if bias.size:
        inputs.append(rewriter.constant(np.repeat(bias, Do), f"{node.output}/bias"))
    y = rewriter.fresh(f"{node.output}/image")
    attrs: dict[str, Attr] = {**node.attrs, **_axes(window, (1, 2))}
    if "output_padding" in node.attrs:
        attrs["output_padding"] = OUTPUT_PADDING(node)[1:]
    inner = replace(node, inputs=tuple(inputs), outputs=(y,), attrs=attrs)
    rewriter.replace(node, x, inner, rewriter.back(node, y))
    return True


def _deep(op: str, w: Array, window: Window, depth: int, depths: int) -> Array:
    """The kernel with all depths of input and output among its channels.

    w: Conv (Co, Ci / group, Dk, Hk, Wk) and ConvTranspose (Ci, Co / group, Dk, Hk, Wk); both have the depth that
    moves with the stride first: the output of a Conv, the input of a ConvTranspose.
    """
    first, second = (depths, depth) if op == "Conv" else (depth, depths)
    found = np.zeros((w.shape[0], first, w.shape[1], second, *w.shape[3:]), w.dtype)
    for at in range(first):
        for tap in range(w.shape[2]):
            met = at * window.strides[0] - window.begins[0] + tap * window.dilations[0]
            if 0 <= met < second:
                found[:, at, :, met] = w[:, :, tap]
    return found.reshape(w.shape[0] * first, w.shape[1] * second, *w.shape[3:])
