"""The order of the layers of a run where branches leave a choice: the one with the lowest peak of memory.

Candidates are the network's own order and two depth-first orders, which at every join finish the branch with the
larger (or the smaller) result first. The network's own order is kept unless another one needs fewer words.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from npuc.ir import Graph, Node
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.plan.ranges import whole_peak
from npuc.targets.easynpu.plan.regions import outputs_of


def best_order(graph: Graph, nodes: Sequence[Node], machine: Machine) -> tuple[Node, ...]:
    """The nodes in the candidate order whose live maps take the fewest words at the peak."""
    outputs = outputs_of(graph, nodes)
    sizes = {name: graph.tensors[name].size for node in nodes for name in node.outputs}
    orders = [
        tuple(nodes),
        depth_first(graph, nodes, outputs, lambda name: -sizes[name]),
        depth_first(graph, nodes, outputs, lambda name: sizes[name]),
    ]
    return min(orders, key=lambda order: whole_peak(graph, order, outputs, machine))


def depth_first(
    graph: Graph, nodes: Sequence[Node], outputs: Sequence[str], first: Callable[[str], int]
) -> tuple[Node, ...]:
    """A topological order that finishes one operand of a node before it begins the next, smallest key first."""
    inside = set(nodes)
    ordered: dict[Node, Node] = {}
    waiting: list[tuple[Node, bool]] = [(graph.producers[name], False) for name in reversed(outputs)]
    while waiting:
        node, complete = waiting.pop()
        if node in ordered:
            continue
        if complete:
            ordered[node] = node
            continue
        waiting.append((node, True))
        names = [name for name in node.inputs if name in graph.producers and graph.producers[name] in inside]
        waiting += [(graph.producers[name], False) for name in sorted(names, key=first, reverse=True)]
    return tuple(ordered.values())
