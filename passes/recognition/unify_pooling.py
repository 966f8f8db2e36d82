"""Canonical forms of pooling: windows that do not cover the image, and global pooling."""

from __future__ import annotations

from dataclasses import replace

from npuc.ir import Attr, Graph, Node
from npuc.ops.attributes import AXES, KERNEL_SHAPE, PADS
from npuc.passes.cleanup.remove_dead_code import drop_no_op
from npuc.passes.rewriting.patterns import only_float
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
