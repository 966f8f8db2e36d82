"""A graph whose nodes have changed what some tensors hold: those get other names, as their values are others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from npuc.ir import Array, Graph, Node
from npuc.ops import build as build_graph


def renamed(
    graph: Graph, nodes: Iterable[Node], names: Mapping[str, str], constants: Mapping[str, Array]
) -> Graph:
    """The graph of these nodes and constants, with the inputs and outputs of another; names: new ones by old."""
    changed = [
        replace(
            node,
            inputs=tuple(names.get(name, name) for name in node.inputs),
            outputs=tuple(names.get(name, name) for name in node.outputs),
        )
        for node in nodes
    ]
    types = {name: graph.tensors[name] for name in graph.inputs}
    return build_graph(graph.name, changed, types, graph.outputs, constants, graph.operators)
