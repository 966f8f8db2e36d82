"""Concatenations that exceed the DTCMs: the host stores their operands and never joins them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from npuc.ir import Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import AXIS
from npuc.targets.easynpu.layers.addressing import concat_offsets
from npuc.targets.easynpu.layers.fusion import ARRAY_OPS


def with_maps_apart(graph: Graph, exceeds: Callable[[str], bool]) -> Graph:
    """The integer graph in which every reader of such a concatenation has its own, right before it.

    A map that is read several times is thus stored once, as its operands, and no plan has to hold it from one
    range of layers to the next. Nested concatenations are flattened. exceeds: whether a map is too large for the
    DTCMs. Unchanged are concatenations that fit, that no address arithmetic can do, that the array does not read,
    that repeat an operand, or that are outputs of the network.
    """
    apart = {node.output: node for node in graph.nodes if _is_apart(graph, node, exceeds)}
    nodes: list[Node] = []
    names, met = graph.names(), set[str]()
    for node in graph.nodes:
        if node.output in apart:
            continue
        inputs = list(node.inputs)
        for at, name in enumerate(inputs):
            if name in apart:
                inputs[at] = names.new(f"{name}/apart") if name in met else name
                met.add(name)
                nodes.append(replace(apart[name], inputs=_parts(apart, name), outputs=(inputs[at],)))
        nodes.append(replace(node, inputs=tuple(inputs)))
    return rebuild(graph, nodes) if apart else graph


def _is_apart(graph: Graph, node: Node, exceeds: Callable[[str], bool]) -> bool:
    if node.op != "Concat" or AXIS(node) != 1 or node.output in graph.outputs:
        return False
    if graph.tensors[node.output].dtype != "int8" or concat_offsets(graph, node) is None:
        return False
    if any(reader.op not in (*ARRAY_OPS, "Concat") for reader in graph.readers[node.output]):
        return False
    return len(set(node.inputs)) == len(node.inputs) and exceeds(node.output)


def _parts(apart: dict[str, Node], name: str) -> tuple[str, ...]:
    """The operands of a concatenation, those of nested ones included."""
    found: list[str] = []
    waiting: Sequence[str] = (name,)
    while waiting:
        first, *rest = waiting
        if first in apart:
            rest = [*apart[first].inputs, *rest]
        else:
            found.append(first)
        waiting = rest
    return tuple(found)
