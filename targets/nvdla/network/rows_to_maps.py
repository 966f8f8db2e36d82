"""Elementwise operators on rows (1, C) as operators on maps, like the convolutions of fully connected layers."""

from __future__ import annotations

from dataclasses import replace

from npuc.ir import Graph, Node
from npuc.passes.cleanup.clutter import merge_duplicates
from npuc.passes.expansion.images import TIDY, Shape
from npuc.passes.rewriting.layout import UNARY
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite
from npuc.targets.nvdla.network.limits import IMAGES

ELEMENTWISE = UNARY - {"Cast", "Identity", "FakeQuantize"} | {"Add", "Sub", "Mul", "Max", "Min", "PRelu"}
MOST_CHANNELS = 8192
"""The most channels of a map; a longer row is folded into rows and columns."""


def rows_to_maps(graph: Graph) -> Graph:
    """An elementwise operator on rows (1, C) becomes one on maps (1, C, 1, 1), between Reshapes.

    For machines that only compute on maps. Constants must be a single number, or have one per element if the row
    has no more elements than a map has channels. Operators on a row and a computed number stay.
    """
    return merge_duplicates(rewrite(graph, _on_maps, *TIDY))


def _on_maps(rewriter: Rewriter, node: Node) -> bool:
    row = rewriter.shape(node.output)
    if node.op not in ELEMENTWISE or len(row) != 2 or row[0] != 1 or not row[1]:
        return False
    computed = {name for name in node.inputs if name not in rewriter.constants}
    whole = all(rewriter.shape(name) == row for name in computed)
    if not computed or not whole or not only_float(rewriter, *computed, node.output):
        return False
    numbers = all(rewriter.types[name].size == 1 for name in node.inputs if name not in computed)
    if row[1] > MOST_CHANNELS and not numbers:
        return False
    shape = (1, row[1], 1, 1) if row[1] <= MOST_CHANNELS else IMAGES.image_shape(row[1])
    before: list[Node] = []
    names = {name: _as_map(rewriter, node, name, shape, before) for name in dict.fromkeys(node.inputs)}
    result = rewriter.fresh(f"{node.output}/map")
    inner = replace(node, inputs=tuple(names[name] for name in node.inputs), outputs=(result,))
    after = Node("Reshape", (result,), node.outputs, {"shape": row}, f"{node.name}/row", node.sources)
    rewriter.replace(node, *before, inner, after)
    return True


def _as_map(rewriter: Rewriter, node: Node, name: str, shape: Shape, before: list[Node]) -> str:
    """An operand in the map's shape; appends the Reshape of a computed one to `before`."""
    if name not in rewriter.constants:
        before.append(rewriter.part(node, "Reshape", (name,), f"{name}/map", shape=shape))
        return before[-1].output
    value = rewriter.constants[name]
    return rewriter.constant(value.reshape(shape if value.size > 1 else (1, 1, 1, 1)), f"{name}/map")
