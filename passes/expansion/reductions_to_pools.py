"""Reductions over any axes become global pooling of images, or convolutions that add up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Graph, Node
from npuc.ops.attributes import AXES
from npuc.passes.expansion.images import TIDY, carried, extents, sides
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Draft, rewrite

POOLS = {"ReduceMean": "GlobalAveragePool", "ReduceMax": "GlobalMaxPool", "ReduceMin": "GlobalMaxPool"}


def reductions_to_pools(graph: Graph) -> Graph:
    """ReduceMean, ReduceMax, ReduceMin and ReduceSum: the axes that stay become channels, the others pixels.

    The minimum is -max(-x); the sum is a depthwise Conv with as many ones as pixels. The mean or sum over the
    channels of an image is a 1x1 Conv to one channel, without any movement.
    """
    return rewrite(graph, _over_channels, _over_pixels, *TIDY)


def _over_channels(draft: Draft, node: Node) -> bool:
    shape = draft.shape(node.inputs[0]) if node.op in ("ReduceMean", "ReduceSum") else ()
    if len(shape) != 4 or AXES(node) != (1,) or not only_float(draft, node.inputs[0]):
        return False
    weight = 1 / shape[1] if node.op == "ReduceMean" else 1.0
    kernel = draft.constant(np.full((1, shape[1], 1, 1), weight, np.float32), f"{node.output}/kernel")
    y = draft.fresh(f"{node.output}/channel")
    conv = Node("Conv", (node.inputs[0], kernel), (y,), {}, node.name, node.sources)
    draft.replace(node, conv, _back(draft, node, y))
    return True


def _over_pixels(draft: Draft, node: Node) -> bool:
    x = node.inputs[0] if node.op in (*POOLS, "ReduceSum") else ""
    axes = AXES(node) if x else ()
    if not axes or not draft.types[x].size or not only_float(draft, x):
        return False
    shape = draft.shape(x)
    kept = tuple(axis for axis in range(len(shape)) if axis not in axes)
    image = (1, extents(shape, kept), *sides(extents(shape, axes)))
    tensor, before = carried(draft, x, (*kept, *sorted(axes)), image, node.sources)
    y = draft.fresh(f"{node.output}/pooled")
    inner = _sum(draft, node, image, tensor, y) if node.op == "ReduceSum" else _pool(draft, node, tensor, y)
    draft.replace(node, *before, *inner, _back(draft, node, y))
    return True


def _sum(draft: Draft, node: Node, image: tuple[int, ...], tensor: str, y: str) -> list[Node]:
    _, channels, *kernel = image
    ones = draft.constant(np.ones((channels, 1, *kernel), np.float32), f"{node.output}/ones")
    return [Node("Conv", (tensor, ones), (y,), {"group": channels}, node.name, node.sources)]


def _pool(draft: Draft, node: Node, tensor: str, y: str) -> list[Node]:
    pool = Node(POOLS[node.op], (tensor,), (y,), {}, node.name, node.sources)
    if node.op != "ReduceMin":
        return [pool]
    turned, least = draft.fresh(f"{node.output}/negative"), draft.fresh(f"{node.output}/largest")
    return [
        Node("Neg", (tensor,), (turned,), {}, turned, node.sources),
        replace(pool, inputs=(turned,), outputs=(least,)),
        Node("Neg", (least,), (y,), {}, y, node.sources),
    ]


def _back(draft: Draft, node: Node, y: str) -> Node:
    return Node("Reshape", (y,), node.outputs, {"shape": draft.shape(node.output)}, node.output, node.sources)
