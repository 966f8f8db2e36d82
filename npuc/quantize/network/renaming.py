"""Renaming of tensors whose values a change of nodes has altered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from npuc.ir import Array, Graph, Node
from npuc.ops import build as build_graph


def renamed(
    graph: Graph, nodes: Iterable[Node], names: Mapping[str, str], constants: Mapping[str, Array]
) -> Graph:
    """The graph with these nodes and constants, and the inputs and outputs of `graph`; names: new ones by old."""
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
