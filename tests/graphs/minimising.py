"""The smallest part of a graph that still shows a finding: fewer outputs, fewer nodes, inputs in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from npuc.errors import NpucError
from npuc.ir import Array, Graph
from npuc.ops import build

Values = Sequence[Mapping[str, Array]]
"""A mapping a sample: the value of every tensor."""


@dataclass(frozen=True)
class Sample:
    """A graph and the values of all its tensors."""

    graph: Graph
    values: Values

    @property
    def feeds(self) -> list[dict[str, Array]]:
        """The inputs of every sample."""
        return [{name: values[name] for name in self.graph.inputs} for values in self.values]


def minimised(sample: Sample, fails: Callable[[Sample], bool], most: int = 150) -> Sample:
    """The sample after all changes that keep it failing; `most`: how many changes are tried."""
    tried = 0
    changed = True
    while changed:
        changed = False
        for graph in _smaller(sample.graph):
            tried += 1
            if tried > most:
                return sample
            candidate = Sample(graph, sample.values)
            if fails(candidate):
                sample, changed = candidate, True
                break
    return sample


def _smaller(graph: Graph) -> Iterator[Graph]:
    """Graphs with one thing less, the largest cuts first."""
    for name in graph.outputs:
        if len(graph.outputs) > 1:
            yield from _built(graph, graph.inputs, [name])
    inner = [name for node in graph.nodes for name in node.outputs if name]
    for name in inner:  # the graph up to here
        if name not in graph.outputs or len(graph.outputs) > 1:
            yield from _built(graph, graph.inputs, [name])
    for name in reversed(inner):  # the graph from here on
        yield from _built(graph, (*graph.inputs, name), graph.outputs)
    for node in graph.nodes:
        x, y = (node.inputs or ("",))[0], node.output
        if x and y not in graph.outputs and graph.tensors[x] == graph.tensors[y]:
            nodes = [
                replace(each, inputs=tuple(x if name == y else name for name in each.inputs))
                for each in graph.nodes
                if each is not node
            ]
            yield from _built(replace(graph, nodes=tuple(nodes)), graph.inputs, graph.outputs)


def _built(graph: Graph, inputs: Sequence[str], outputs: Sequence[str]) -> Iterator[Graph]:
    """The graph between these tensors, with the inputs that it reads; none where it is no graph, or no smaller."""
    nodes = [node for node in graph.nodes if not set(node.outputs) & set(inputs)]
    types = {name: graph.tensors[name] for name in inputs}
    try:
        whole = build(graph.name, nodes, types, outputs, graph.constants)
        read = {name for node in whole.nodes for name in node.inputs}
        needed = {name: kind for name, kind in types.items() if name in read}
        if not whole.nodes or not needed or any(name in needed for name in outputs):
            return
        found = build(graph.name, whole.nodes, needed, outputs, graph.constants)
    except NpucError:
        return
    if _size(found) < _size(graph):
        yield found


def _size(graph: Graph) -> tuple[int, int, int]:
    return len(graph.nodes), len(graph.outputs), len(graph.inputs)
