"""Which nodes of the integer graph run on the PE array together, and which on the host in between."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from npuc.ir import Graph, Node
from npuc.targets.easynpu.machine import Machine
from npuc.targets.easynpu.placement import Run
from npuc.targets.easynpu.selection import ARRAY_OPS, runs_on_array, select
from npuc.targets.easynpu.views import views_of


@dataclass(frozen=True)
class Region:
    """Host nodes, then the array nodes that run without the host until the next region."""

    host: tuple[Node, ...]
    array: tuple[Node, ...]


def regions_of(graph: Graph) -> tuple[Region, ...]:
    """The graph as alternating host and array phases, as few as its dependencies allow."""
    array = array_nodes(graph)
    waiting = list(graph.nodes)
    known = {*graph.inputs, *graph.constants, ""}
    found: list[Region] = []
    while waiting:
        on_host, waiting = _ready(waiting, known, lambda node: id(node) not in array)
        on_array, waiting = _ready(waiting, known, lambda node: id(node) in array)
        found.append(Region(tuple(on_host), tuple(on_array)))
    return tuple(found)


def array_nodes(graph: Graph) -> set[int]:
    """The nodes that the array runs, by identity; address arithmetic only where an array node reads it."""
    found: set[int] = set()
    for node in reversed(graph.nodes):
        if runs_on_array(graph, node):
            read = any(id(reader) in found for name in node.outputs for reader in graph.readers[name])
            if node.op in ARRAY_OPS or read:
                found.add(id(node))
    return found


def _ready(
    waiting: Sequence[Node], known: set[str], wanted: Callable[[Node], bool]
) -> tuple[list[Node], list[Node]]:
    """Takes the wanted nodes whose inputs are known, one after the other; gives those and the rest."""
    taken: list[Node] = []
    rest: list[Node] = []
    for node in waiting:
        if wanted(node) and all(name in known for name in node.inputs):
            known.update(node.outputs)
            taken.append(node)
        else:
            rest.append(node)
    return taken, rest


def run_of(graph: Graph, region: Region, machine: Machine, *, documented: bool) -> Run:
    """The jobs of a region with the tensors that cross its border."""
    views = views_of(graph, region.array)
    jobs = tuple(select(graph, region.array, views, machine, documented=documented))
    written = {name for node in region.array for name in node.outputs}
    read = {name: None for node in region.array for name in node.inputs if name not in graph.constants}
    inputs = tuple(name for name in read if name not in written)
    inside = {id(node) for node in region.array}
    outside = {name for node in graph.nodes if id(node) not in inside for name in node.inputs} | set(graph.outputs)
    outputs = tuple(name for node in region.array for name in node.outputs if name in outside)
    return Run(
        jobs,
        {name: views.tensors[name] for name in inputs},
        {name: views.tensors[name] for name in outputs},
        views,
    )
