"""Marks additions that a machine can compute as the last step of a convolution."""

from __future__ import annotations

from dataclasses import replace

from npuc.ir import Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import FUSED_INPUT

PRODUCERS = frozenset(("Conv", "ConvTranspose", "Gemm"))


def mark_residual_add(graph: Graph) -> Graph:
    """Add gets the attribute `fused_input`: the operand that the preceding operator can compute.

    That operand comes from a Conv, ConvTranspose or Gemm without other readers, so that it can be scheduled right
    before the Add, and has the shape of the sum (the other one may broadcast). Of two such operands the one
    computed later is marked; sums with a constant are not marked.
    """
    places = {node.output: place for place, node in enumerate(graph.nodes)}
    nodes = [_marked(graph, node, places) if node.op == "Add" else node for node in graph.nodes]
    changed = any(new is not old for new, old in zip(nodes, graph.nodes, strict=True))
    return rebuild(graph, nodes) if changed else graph


def _marked(graph: Graph, add: Node, places: dict[str, int]) -> Node:
    found = [index for index in (0, 1) if _last_step(graph, add, index)]
    best = max(found, key=lambda index: places[add.inputs[index]], default=None)
    if FUSED_INPUT(add) == best:
        return add
    attrs = {key: value for key, value in add.attrs.items() if key != FUSED_INPUT.name}
    return replace(add, attrs=attrs if best is None else {**attrs, FUSED_INPUT.name: best})


def _last_step(graph: Graph, add: Node, index: int) -> bool:
    name, other = add.inputs[index], add.inputs[1 - index]
    producer = graph.producers.get(name)
    if producer is None or producer.op not in PRODUCERS or graph.constant(other) is not None or name == other:
        return False
    return graph.only_reader(name) is not None and graph.shape(name) == graph.shape(add.output)
