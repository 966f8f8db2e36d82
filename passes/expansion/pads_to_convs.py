"""Padding that no other operator could absorb, as a convolution with padding."""

from __future__ import annotations

from functools import partial
from math import isfinite

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Attr, Graph, Node
from npuc.ops.attributes import PAD_MODE, SIDES, VALUE
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite


@frozen
class PadsToConvs:
    """Pad of an image (1, C, H, W) with zeros becomes a depthwise Conv by 1 with that padding.

    For another number c it is subtracted before and added after: c + pad(x - c). Padding of other axes, with
    elements of the tensor, and of more rows or columns before the image than a window may start in, is left
    unchanged.
    """

    most_padding: int
    __name__ = "pads_to_convs"

    def __call__(self, graph: Graph) -> Graph:
        """The graph without such padding."""
        return rewrite(graph, partial(_padded, self.most_padding))


def _padded(most: int, rewriter: Rewriter, node: Node) -> bool:
    shape = rewriter.shape(node.inputs[0])
    if node.op != "Pad" or PAD_MODE(node) != "constant" or len(shape) != 4 or shape[0] != 1:
        return False
    begins, ends, value = SIDES(node)[:4], SIDES(node)[4:], VALUE(node)
    spatial = begins[2:] + ends[2:]
    if any(begins[:2] + ends[:2]) or min(spatial) < 0 or max(begins) > most or not isfinite(value):
        return False
    if not only_float(rewriter, node.inputs[0]) or not rewriter.types[node.inputs[0]].size:
        return False
    nodes: list[Node] = []
    x = node.inputs[0]
    if value:
        x = rewriter.fresh(f"{node.output}/above")
        nodes.append(_conv(rewriter, node, node.inputs[0], x, -value, {}))
    rewriter.replace(node, *nodes, _conv(rewriter, node, x, node.output, value, {"pads": spatial}))
    return True


def _conv(rewriter: Rewriter, node: Node, x: str, y: str, shift: float, attrs: dict[str, Attr]) -> Node:
    """A depthwise Conv by 1 that adds a number."""
    channels = rewriter.shape(node.inputs[0])[1]
    w = rewriter.constant(np.ones((channels, 1, 1, 1), np.float32), f"{y}/ones")
    bias = (rewriter.constant(np.full(channels, shift, np.float32), f"{y}/shift"),) if shift else ()
    return Node("Conv", (x, w, *bias), (y,), {**attrs, "group": channels}, node.name, node.sources)
