"""Padding that no operator absorbs, as a convolution."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from math import inf, isfinite

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Attr, Graph, Node
from npuc.ops.attributes import PAD_MODE, SIDES, VALUE
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite

MOST_PARTS = 8
"""Padding that takes more convolutions is left unchanged."""


@frozen
class PadsToConvs:
    """Pad of an image (1, C, H, W) with zeros becomes a depthwise Conv by 1 with that padding.

    For another number c it is subtracted before and added after: c + pad(x - c). More rows or columns than a
    window may have take several Convs, up to 8. Padding of other axes, with elements of the tensor, or beyond
    that is left unchanged.

    most_padding: before the image; most_behind: behind it.
    """

    most_padding: int
    most_behind: float = inf
    __name__ = "pads_to_convs"

    def __call__(self, graph: Graph) -> Graph:
        """The graph without such padding."""
        return rewrite(
            graph, partial(_padded, (self.most_padding, self.most_padding, self.most_behind, self.most_behind))
        )


def _padded(most: Sequence[float], rewriter: Rewriter, node: Node) -> bool:
    shape = rewriter.shape(node.inputs[0])
    if node.op != "Pad" or PAD_MODE(node) != "constant" or len(shape) != 4 or shape[0] != 1:
        return False
    begins, ends, value = SIDES(node)[:4], SIDES(node)[4:], VALUE(node)
    spatial = begins[2:] + ends[2:]
    if any(begins[:2] + ends[:2]) or min(spatial) < 0 or not isfinite(value):
        return False
    if not only_float(rewriter, node.inputs[0]) or not rewriter.types[node.inputs[0]].size:
        return False
    if any(side > MOST_PARTS * limit for side, limit in zip(spatial, most, strict=True)):
        return False
    nodes: list[Node] = []
    x = node.inputs[0]
    if value:
        nodes.append(_conv(rewriter, node, x, rewriter.fresh(f"{node.output}/above"), -value, {}))
        x = nodes[-1].output
    *parts, last = _parts(spatial, most)
    for part in parts:
        nodes.append(_conv(rewriter, node, x, rewriter.fresh(f"{node.output}/part"), 0, {"pads": part}))
        x = nodes[-1].output
    rewriter.replace(node, *nodes, _conv(rewriter, node, x, node.output, value, {"pads": last}))
    return True


def _parts(pads: tuple[int, ...], most: Sequence[float]) -> list[tuple[int, ...]]:
    """Pads that add up to these, with at most so many on each side.

    >>> _parts((17, 2, 40, 0), (15, 15, inf, inf))
    [(15, 2, 40, 0), (2, 0, 0, 0)]
    """
    found: list[tuple[int, ...]] = []
    while any(side > limit for side, limit in zip(pads, most, strict=True)):
        found.append(tuple(int(min(side, limit)) for side, limit in zip(pads, most, strict=True)))
        pads = tuple(side - taken for side, taken in zip(pads, found[-1], strict=True))
    return [*found, pads]


def _conv(rewriter: Rewriter, node: Node, x: str, y: str, shift: float, attrs: dict[str, Attr]) -> Node:
    """A depthwise Conv by 1 that adds a number."""
    channels = rewriter.shape(node.inputs[0])[1]
    w = rewriter.constant(np.ones((channels, 1, 1, 1), np.float32), f"{y}/ones")
    bias = (rewriter.constant(np.full(channels, shift, np.float32), f"{y}/shift"),) if shift else ()
    return Node("Conv", (x, w, *bias), (y,), {**attrs, "group": channels}, node.name, node.sources)
