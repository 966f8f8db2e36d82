"""int16 beside int8 in one graph: a Rescale wherever a tensor passes from one number format to the other.

SDP converts between them on a map in memory (table 30); a convolution, a pool and CDP keep the format of their map
(tables 29, 31, 32). So every tensor has one format, and a Rescale is a layer of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from npuc.ir import Graph, Node
from npuc.ops import rebuild
from npuc.ops.movement import MOVEMENT
from npuc.ops.windows import SELECTION
from npuc.quantize.network.renaming import reading
from npuc.quantize.scales.constraints import data_inputs


def wide_tensors(graph: Graph, wide: Collection[str]) -> set[str]:
    """The tensors in int16 of a graph in which nodes of these names are: results, and inputs that they read."""
    found = {name for node in graph.nodes if node.name in wide for name in node.outputs}
    read = {name for node in graph.nodes if node.name in wide for name in data_inputs(node)}
    return found | read.intersection(graph.inputs)


def widened(
    graph: Graph, nodes: Sequence[Node], wide: Collection[str]
) -> tuple[Graph, frozenset[str], Mapping[str, str]]:
    """The graph with borders between int8 and int16, the names of its nodes in int16, and what borders copy.

    nodes: those that NVDLA computes. wide: the names of those that compute in int16; what only moves or selects
    elements of their results does so in int16. The last value: the tensor of which each border is a copy.
    """
    names, device, count = graph.names(), {*nodes}, Counter(node.name for node in graph.nodes)
    found, tensors = {*wide}, wide_tensors(graph, wide)
    made: list[Node] = []
    copies: dict[tuple[str, bool], str] = {}
    for node in graph.nodes:
        read = [name for name in data_inputs(node) if name not in graph.constants]
        moves = node.op in (*MOVEMENT, *SELECTION) and count[node.name] == 1
        if node in device and moves and tensors.issuperset(data_inputs(node)):  # no constant among them
            found.add(node.name)
            tensors.update(node.outputs)
        for name in dict.fromkeys(read) if node in device else ():
            other = node.name in found
            if (name in tensors) == other or (name, other) in copies:
                continue
            copy = copies[name, other] = names.new(f"{name}/{'wide' if other else 'narrow'}")
            made.append(Node("Rescale", (name,), (copy,), {}, copy, node.sources))
            if other:
                found.add(copy)
                tensors.add(copy)
        given = {name: copies.get((name, node.name in found), name) for name in read} if node in device else {}
        made.append(reading(node, given))
    copied = {copy: name for (name, _), copy in copies.items()}
    return (rebuild(graph, made, {}) if copies else graph), frozenset(found), copied
