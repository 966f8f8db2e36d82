"""Reductions over any axes, as global pooling of images or convolutions that sum."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Graph, Node
from npuc.ops.attributes import AXES
from npuc.passes.expansion.images import TIDY, extents, sides, to_image
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite

POOLS = {"ReduceMean": "GlobalAveragePool", "ReduceMax": "GlobalMaxPool", "ReduceMin": "GlobalMaxPool"}


def reductions_to_pools(graph: Graph) -> Graph:
    """ReduceMean, ReduceMax, ReduceMin and ReduceSum: kept axes become channels, the others pixels.

    The minimum is -max(-x); the sum is a depthwise Conv of ones over all pixels. The mean or sum over the channels
    of an image is a 1x1 Conv to one channel, without data movement.
    """
    return rewrite(graph, _over_channels, _over_pixels, *TIDY)


def _over_channels(rewriter: Rewriter, node: Node) -> bool:
    shape = rewriter.shape(node.inputs[0]) if node.op in ("ReduceMean", "ReduceSum") else ()
    if len(shape) != 4 or AXES(node) != (1,) or not only_float(rewriter, node.inputs[0]):
        return False
    weight = 1 / shape[1] if node.op == "ReduceMean" else 1.0
    kernel = rewriter.constant(np.full((1, shape[1], 1, 1), weight, np.float32), f"{node.output}/kernel")
    y = rewriter.fresh(f"{node.output}/channel")
    conv = Node("Conv", (node.inputs[0], kernel), (y,), {}, node.name, node.sources)
    rewriter.replace(node, conv, rewriter.back(node, y))
    return True


def _over_pixels(rewriter: Rewriter, node: Node) -> bool:
    x = node.inputs[0] if node.op in (*POOLS, "ReduceSum") else ""
    axes = AXES(node) if x else ()
    if not axes or not rewriter.types[x].size or not only_float(rewriter, x):
        return False
    shape = rewriter.shape(x)
    kept = tuple(axis for axis in range(len(shape)) if axis not in axes)
    image = (1, extents(shape, kept), *sides(extents(shape, axes)))
    tensor, before = to_image(rewriter, x, (*kept, *sorted(axes)), image, node.sources)
    y = rewriter.fresh(f"{node.output}/pooled")
    inner = _sum(rewriter, node, image, tensor, y) if node.op == "ReduceSum" else _pool(rewriter, node, tensor, y)
    rewriter.replace(node, *before, *inner, rewriter.back(node, y))
    return True


def _sum(rewriter: Rewriter, node: Node, image: tuple[int, ...], tensor: str, y: str) -> list[Node]:
    _, channels, *kernel = image
    ones = rewriter.constant(np.ones((channels, 1, *kernel), np.float32), f"{node.output}/ones")
    return [Node("Conv", (tensor, ones), (y,), {"group": channels}, node.name, node.sources)]


def _pool(rewriter: Rewriter, node: Node, tensor: str, y: str) -> list[Node]:
    pool = Node(POOLS[node.op], (tensor,), (y,), {}, node.name, node.sources)
    if node.op != "ReduceMin":
        return [pool]
    turned = rewriter.part(node, "Neg", (tensor,), f"{node.output}/negative")
    least = rewriter.fresh(f"{node.output}/largest")
    return [
        turned,
        replace(pool, inputs=turned.outputs, outputs=(least,)),
        Node("Neg", (least,), (y,), {}, y, node.sources),
    ]
