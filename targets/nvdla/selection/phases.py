"""Phases of host and NVDLA: which one computes a node, what they exchange, and the lifetimes of buffers."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from npuc.host.allocation import Buffer as Lifetime
from npuc.ir import Graph, Node
from npuc.ops.attributes import ON_DEVICE
from npuc.targets.nvdla.formats.precision import HOST_DTYPES
from npuc.targets.nvdla.operations.surfaces import Surfaces, is_view
from npuc.targets.nvdla.selection import COMPUTED

UNIT = 256
"""Buffer addresses and sizes are multiples of this many bytes."""


def computed_nodes(graph: Graph) -> list[Node]:
    """The nodes that NVDLA computes or moves, in order."""
    return [node for on_device, part in phases_of(graph) if on_device for node in part]


def phases_of(graph: Graph) -> Iterator[tuple[bool, list[Node]]]:
    """All nodes in alternating phases (on device, nodes), each with every node whose inputs are ready by then."""
    device = _on_device(graph)
    waiting = list(graph.nodes)
    ready = {*graph.inputs, *graph.constants, ""}
    on_device = False
    while waiting:
        part: list[Node] = []
        later: list[Node] = []
        for node in waiting:
            if (node in device) is on_device and all(name in ready for name in node.inputs):
                part.append(node)
                ready.update(node.outputs)
            else:
                later.append(node)
        if part:
            yield on_device, part
        waiting, on_device = later, not on_device


def _on_device(graph: Graph) -> set[Node]:
    """The nodes that NVDLA computes, and the views of their results, which need no copy; Concats of maps only."""
    found: set[Node] = set()
    held: set[str] = set()
    for node in graph.nodes:
        ours = node.op != "Interleave" or ON_DEVICE(node)
        computed = ours and node.op in COMPUTED and graph.tensors[node.output].dtype in HOST_DTYPES.values()
        if computed or (not held.isdisjoint(node.inputs) and _moves(graph, node)):
            found.add(node)
            held.update(node.outputs)
    return found


def _moves(graph: Graph, node: Node) -> bool:
    """Whether a node is a view of maps, none of them constant."""
    return is_view(graph, node) and not any(name in graph.constants for name in node.inputs)


def loads_of(graph: Graph, nodes: Sequence[Node]) -> list[str]:
    """The tensors that the host loads before a phase."""
    own = {name for node in nodes for name in node.outputs}
    read = (name for node in nodes for name in node.inputs)
    return [name for name in dict.fromkeys(read) if name and name not in own and name not in graph.constants]


def stores_of(graph: Graph, nodes: Sequence[Node]) -> list[str]:
    """The tensors that the host reads, or that are outputs of the network."""
    device = set(nodes)
    return [
        name
        for node in nodes
        for name in node.outputs
        if name in graph.outputs or any(reader not in device for reader in graph.readers[name])
    ]


def steps_of(phases: Sequence[tuple[bool, list[Node]]], flying: Collection[str]) -> dict[str, int]:
    """The step in which NVDLA computes each of its nodes, by output; a node that reads a flying tensor shares its
    step.
    """
    nodes = [node for on_device, part in phases if on_device for node in part]
    found: dict[str, int] = {}
    for position, node in enumerate(nodes):
        found[node.output] = found[node.inputs[0]] if node.inputs[0] in flying else position
    return found


def lifetimes_of(
    graph: Graph,
    phases: Sequence[tuple[bool, list[Node]]],
    surfaces: Surfaces,
    loaded: Sequence[str],
    flying: Collection[str],
) -> list[Lifetime]:
    """The lifetime of each buffer, from the first layer that writes it to one step past the last that reads it.

    A layer may begin while the previous one still runs, so it must not write what that one reads. Loaded tensors
    live from the start of their phase, stored tensors to the end of theirs. Flying tensors, which PDP takes from
    SDP, have no buffer; the node that reads one is computed in the same step.
    """
    all_nodes = [node for on_device, part in phases if on_device for node in part]
    steps = steps_of(phases, flying)
    stored = set(stores_of(graph, all_nodes))
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    step = 0
    for on_device, part in phases:
        begin, step = step, step + (len(part) if on_device else 0)
        for node in part if on_device else ():
            at = steps[node.output]
            for name in (*node.inputs, *node.outputs):
                if name not in surfaces.views or name in flying:
                    continue
                buffer = surfaces.views[name].buffer.name
                first[buffer] = min(first.get(buffer, at), begin if name in loaded else at)
                last[buffer] = max(last.get(buffer, at), step if name in stored else at + 1)
    sizes = {each.name: -(-each.bytes // UNIT) for each in surfaces.buffers}
    return [Lifetime(name, sizes[name], first[name], last[name]) for name in first]
