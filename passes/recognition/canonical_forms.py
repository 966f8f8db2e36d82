"""Canonical forms of operators with windows: global pooling, and one axis as images of height 1."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Attr, Graph, Node
from npuc.ops.attributes import AXES, KERNEL_SHAPE, PADS, SCALES, SIZES
from npuc.passes.cleanup.clutter import drop_no_op
from npuc.passes.cleanup.pads import PAD_RULES
from npuc.passes.cleanup.sink_reshapes import RESHAPE_RULES
from npuc.passes.rewriting.patterns import only_float, quantisation_axis, restored_weight, stored_weight
from npuc.passes.rewriting.rules import Rewriter, rewrite

_GLOBAL = {"AveragePool": "GlobalAveragePool", "MaxPool": "GlobalMaxPool"}
_POOL = {"ReduceMean": "AveragePool", "ReduceMax": "MaxPool"}
MOST_RANK = 5
"""The most dimensions of a map: no machine has windows over more than three axes."""


def unify_pooling(graph: Graph) -> Graph:
    """Means and maxima over the image (Reduce, windows that cover it) become global pooling.

    Over one of its two axes they become a window as long as the axis. Dropped axes become a Reshape; a Reshape of
    the image before global pooling is removed.
    """
    return rewrite(graph, _reduction, _covering_window, _whole_image, drop_no_op)


def _reduction(rewriter: Rewriter, node: Node) -> bool:
    """ReduceMean or ReduceMax over spatial axes of a (N, C, ...) tensor with up to three, or over all of them."""
    shape = rewriter.shape(node.inputs[0])
    axes = AXES(node) if node.op in _POOL else ()
    if not axes or min(axes) < 2 or not only_float(rewriter, node.inputs[0]):
        return False
    if len(shape) > MOST_RANK and len(axes) < len(shape) - 2:
        return False
    reduced = tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    kernel = tuple(extent if axis in axes else 1 for axis, extent in enumerate(shape))[2:]
    ones, zeros = (1,) * len(kernel), (0,) * 2 * len(kernel)
    window: dict[str, Attr] = {"kernel_shape": kernel, "strides": ones, "pads": zeros, "dilations": ones}
    pool = replace(node, op=_POOL[node.op], attrs=window)
    if rewriter.shape(node.output) == reduced:
        rewriter.replace(node, pool)
        return True
    y = rewriter.fresh(f"{node.output}@{'x'.join(map(str, reduced))}")
    reshape = Node(
        "Reshape", (y,), node.outputs, {"shape": rewriter.shape(node.output)}, node.output, node.sources
    )
    rewriter.replace(node, replace(pool, outputs=(y,)), reshape)
    return True


def _covering_window(rewriter: Rewriter, node: Node) -> bool:
    """A window as large as the image, without padding."""
    shape = rewriter.shape(node.inputs[0])
    if node.op not in _GLOBAL or KERNEL_SHAPE(node) != shape[2:] or any(PADS(node)):
        return False
    if not only_float(rewriter, node.inputs[0]):
        return False
    rewriter.replace(node, replace(node, op=_GLOBAL[node.op], attrs={}))
    return True


def _whole_image(rewriter: Rewriter, node: Node) -> bool:
    """Global pooling of a Reshape that keeps samples and channels separate: pools the original image."""
    reshape = rewriter.producer(node.inputs[0]) if node.op in _GLOBAL.values() else None
    if reshape is None or reshape.op != "Reshape":
        return False
    before, after = rewriter.shape(reshape.inputs[0]), rewriter.shape(reshape.output)
    if before[:2] != after[:2] or len(before) < 3:
        return False
    pooled = replace(node, inputs=reshape.inputs, sources=rewriter.sources(reshape, node))
    if len(before) == len(after):
        rewriter.replace(node, pooled)
        return True
    extents = (*before[:2], *(1 for _ in before[2:]))
    y = rewriter.fresh(f"{node.output}@{'x'.join(map(str, extents))}")
    back = rewriter.back(node, y)
    rewriter.replace(node, replace(pooled, outputs=(y,)), back)
    return True


WINDOWED = frozenset(("Conv", "ConvTranspose", "MaxPool", "AveragePool"))
CHANNELWISE = frozenset(
    ("GlobalAveragePool", "GlobalMaxPool", "BatchNormalization", "InstanceNormalization", "LRN")
)


def lift_to_2d(graph: Graph) -> Graph:
    """(N, C, L) operators compute on (N, C, 1, L), between Reshapes that merge between adjacent such operators.

    A Pad before its window is merged into it before a Reshape separates them.
    """
    return rewrite(graph, _merge_pad, _lift, *RESHAPE_RULES)


def _merge_pad(rewriter: Rewriter, node: Node) -> bool:
    along_one_axis = node.op in WINDOWED and len(rewriter.shape(node.inputs[0])) == 3
    return along_one_axis and any(rule(rewriter, node) for rule in PAD_RULES)


def _lift(rewriter: Rewriter, node: Node) -> bool:
    if node.op not in (*WINDOWED, *CHANNELWISE, "Resize") or len(rewriter.shape(node.inputs[0])) != 3:
        return False
    x, y = node.inputs[0], node.output
    (N, Ci, L), (samples, Co, Lo) = rewriter.shape(x), rewriter.shape(y)
    if node.op == "Resize" and (N, Ci) != (samples, Co):
        return False
    inputs, nodes = node.inputs[1:], list[Node]()
    if node.op in ("Conv", "ConvTranspose"):
        stored = stored_weight(rewriter, inputs[0])
        if stored is None:
            return False
        axis = quantisation_axis(rewriter, inputs[0])
        flat = np.expand_dims(stored, 2)
        weight, nodes = restored_weight(rewriter, inputs[0], flat, f"{y}/weight", axis + (axis > 1))
        inputs = (weight, *inputs[1:])
    image, result = rewriter.fresh(f"{x}@{N}x{Ci}x1x{L}"), rewriter.fresh(f"{y}@{N}x{Co}x1x{Lo}")
    attrs = {**node.attrs, **_second_dimension(node)}
    rewriter.replace(
        node,
        *nodes,
        Node("Reshape", (x,), (image,), {"shape": (N, Ci, 1, L)}, image, node.sources),
        replace(node, inputs=(image, *inputs), outputs=(result,), attrs=attrs),
        Node("Reshape", (result,), (y,), {"shape": (N, Co, Lo)}, y, node.sources),
    )
    return True


def _second_dimension(node: Node) -> dict[str, Attr]:
    """The attributes with one entry for each dimension, with another for the rows."""
    attrs: dict[str, Attr] = {}
    if node.op == "Resize":  # an axis of one element whose scale is 1 keeps its value in every mode
        (n, c, scale), (batch, channels, length) = SCALES(node), SIZES(node)
        return {"scales": (n, c, 1.0, scale), "sizes": (batch, channels, 1, length)}
    if node.op in WINDOWED:
        (begin, end) = PADS(node) or (0, 0)
        attrs["pads"] = (0, begin, 0, end)
    for key, neutral in (("kernel_shape", 1), ("strides", 1), ("dilations", 1), ("output_padding", 0)):
        if key in node.attrs:
            attrs[key] = (neutral, *node.integers(key))
    return attrs
