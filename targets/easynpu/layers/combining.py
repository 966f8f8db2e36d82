"""Sums and products whose operands suit documented words: the latest result is read, the earlier map is kept."""

from __future__ import annotations

from dataclasses import replace

from npuc.ir import Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import FUSED_INPUT
from npuc.targets.easynpu.layers.operators import OPERATORS


def with_latest_first(graph: Graph) -> Graph:
    """The integer graph in which the first operand of every sum and product is the one computed last.

    Sums that continue on a convolution's psums keep their operands in order.
    """
    at = {name: position for position, node in enumerate(graph.nodes) for name in node.outputs}
    nodes = [_latest_first(graph, node, at) for node in graph.nodes]
    return rebuild(replace(graph, operators=OPERATORS), nodes) if nodes != list(graph.nodes) else graph


def _latest_first(graph: Graph, node: Node, at: dict[str, int]) -> Node:
    if node.op not in ("IntAdd", "IntMul") or (node.op == "IntAdd" and FUSED_INPUT(node) is not None):
        return node
    first, second, *rest = node.inputs
    swapped = at.get(second, -1) > at.get(first, -1) and graph.shape(first) == graph.shape(second)
    return replace(node, inputs=(second, first, *rest)) if swapped else node
