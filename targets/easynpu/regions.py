"""Which nodes of the integer graph run on the PE array together, and which on the host in between."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from npuc.ir import Graph, Node
from npuc.targets.easynpu.placement import Run
from npuc.targets.easynpu.selection import Job, is_alias, map_shape, runs_on_array, select


@dataclass(frozen=True)
class Region:
    """Host nodes, then the array nodes that run without the host until the next region."""

    host: tuple[Node, ...]
    array: tuple[Node, ...]


def regions_of(graph: Graph) -> tuple[Region, ...]:
    """The graph as alternating host and array phases, as few as its dependencies allow."""
    waiting = list(graph.nodes)
    known = {*graph.inputs, *graph.constants, ""}
    found: list[Region] = []
    while waiting:
        host, waiting = _ready(waiting, known, lambda node: not on_array(graph, node))
        array, waiting = _ready(waiting, known, lambda node: on_array(graph, node))
        found.append(Region(tuple(host), tuple(array)))
    return tuple(found)


def on_array(graph: Graph, node: Node) -> bool:
    """Whether the array runs the node; a reshape that only the host reads is the host's."""
    if is_alias(graph, node):
        readers = graph.readers[node.output]
        return bool(readers) and all(on_array(graph, reader) for reader in readers)
    return runs_on_array(graph, node)


def _ready(waiting: Sequence[Node], known: set[str], wanted: Callable[[Node], bool]) -> tuple[list[Node], list[Node]]:
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


def run_of(graph: Graph, region: Region, *, documented: bool) -> Run:
    """The jobs of a region with the tensors that cross its border."""
    roots = alias_roots(graph, region.array)
    jobs = tuple(_rooted(job, roots) for job in select(graph, region.array, documented=documented))
    written = [job.result for job in jobs]
    read = [name for job in jobs for name in (job.source, job.operand) if name]
    inputs = tuple(dict.fromkeys(name for name in read if name not in written))
    inside = {id(node) for node in region.array}
    outside = {
        roots.get(name, name)
        for node in graph.nodes
        if id(node) not in inside
        for name in node.inputs
    } | set(graph.outputs)
    outputs = tuple(name for name in written if name in outside)
    shapes = {name: map_shape(graph.shape(name)) for name in (*inputs, *written)}
    return Run(jobs, inputs, outputs, shapes)


def alias_roots(graph: Graph, nodes: Sequence[Node]) -> Mapping[str, str]:
    """For each tensor that a free reshape gives: the tensor whose words it shares."""
    roots: dict[str, str] = {}
    for node in nodes:
        if is_alias(graph, node):
            roots[node.output] = roots.get(node.inputs[0], node.inputs[0])
    return roots


def _rooted(job: Job, roots: Mapping[str, str]) -> Job:
    operand = roots.get(job.operand, job.operand) if job.operand else None
    return replace(job, source=roots.get(job.source, job.source), operand=operand)
