"""Linear interpolation by whole factors as transposed convolutions of every channel by itself."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npuc.ir import Array, Attr, Graph, Node
from npuc.ops.attributes import COORDINATES, EXCLUDE_OUTSIDE, RESIZE_MODE, SCALES, SIZES
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite

MOST_FACTOR = 8
"""A larger enlargement, which takes more than 64 convolutions, stays as it is."""
HALF_PIXEL = ("half_pixel", "pytorch_half_pixel")


@dataclass(frozen=True)
class _Along:
    """An axis of the map: taps of the transposed kernel, and what is cut off the full result on either side."""

    taps: Array
    begin: int
    end: int

    @property
    def enlarges(self) -> bool:
        return len(self.taps) > 1


def interpolation_to_conv_transpose(graph: Graph) -> Graph:
    """Linear Resize of a map's rows and columns by whole factors up to 8 becomes Concat -> ConvTranspose.

    The Concats repeat the first and the last row and column, as interpolation beyond them does. The kernel is the
    product of two triangles, one tap for each element of the result that an element takes part in: exact in real
    numbers, for half-pixel and asymmetric coordinates. Other factors and coordinates stay.
    """
    return rewrite(graph, _interpolated)


def _interpolated(rewriter: Rewriter, node: Node) -> bool:
    shape = rewriter.shape(node.inputs[0]) if node.op == "Resize" else ()
    if len(shape) != 4 or RESIZE_MODE(node) != "linear" or not only_float(rewriter, node.inputs[0]):
        return False
    factors = [round(scale) for scale in SCALES(node)]
    whole = [float(factor) for factor in factors] == list(SCALES(node))
    fits = tuple(extent * factor for extent, factor in zip(shape, factors, strict=True)) == SIZES(node)
    if not whole or not fits or EXCLUDE_OUTSIDE(node) or factors[:2] != [1, 1] or max(factors) > MOST_FACTOR:
        return False
    coordinates = COORDINATES(node)
    if max(factors) == 1 or 0 in shape or coordinates not in (*HALF_PIXEL, "asymmetric"):
        return False
    along = [_along(factor, centred=coordinates in HALF_PIXEL) for factor in factors[2:]]
    x, nodes = node.inputs[0], list[Node]()
    for axis, each in enumerate(along, 2):
        if each.enlarges:
            x = _repeated(rewriter, node, x, axis, nodes)
    kernel = np.multiply.outer(along[0].taps, along[1].taps).astype(np.float32)
    weights = np.ascontiguousarray(np.broadcast_to(kernel, (shape[1], 1, *kernel.shape)))
    inputs = (x, rewriter.constant(weights, f"{node.output}/triangles"))
    attrs: dict[str, Attr] = {
        "group": shape[1],
        "strides": tuple(factors[2:]),
        "pads": (along[0].begin, along[1].begin, along[0].end, along[1].end),
    }
    nodes.append(Node("ConvTranspose", inputs, node.outputs, attrs, node.name, node.sources))
    rewriter.replace(node, *nodes)
    return True


def _along(factor: int, *, centred: bool) -> _Along:
    """centred: elements lie in the middle of their pixels, for an even factor between two taps."""
    if factor == 1:
        return _Along(np.ones(1), 0, 0)
    between = centred and factor % 2 == 0
    distance = np.arange(2 * factor) - factor + 0.5 if between else np.arange(2 * factor - 1) - factor + 1.0
    taps = 1 - np.abs(distance) / factor
    surplus = factor + len(taps)  # that the full result of two elements more has
    begin = surplus // 2 if centred else 2 * factor - 1
    return _Along(taps, begin, surplus - begin)


def _repeated(rewriter: Rewriter, node: Node, x: str, axis: int, nodes: list[Node]) -> str:
    """The map with its first and last row or column twice."""
    extent = rewriter.shape(node.inputs[0])[axis]
    ends: list[str] = []
    for role, start in (("first", 0), ("last", extent - 1)):
        name = rewriter.fresh(f"{node.output}/{role}{axis}")
        attrs: dict[str, Attr] = {"axes": (axis,), "starts": (start,), "ends": (start + 1,), "steps": (1,)}
        nodes.append(Node("Slice", (x,), (name,), attrs, name, node.sources))
        ends.append(name)
    whole = rewriter.fresh(f"{node.output}/wide{axis}")
    nodes.append(Node("Concat", (ends[0], x, ends[1]), (whole,), {"axis": axis}, whole, node.sources))
    return whole
