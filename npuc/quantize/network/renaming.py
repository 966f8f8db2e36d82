"""Renaming of tensors whose values a change of nodes has altered, and of those whose names integer forms need."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from npuc.ir import Array, Graph, Node
from npuc.ops import build as build_graph
from npuc.text.names import Names

FORM = re.compile("/(int8|int16|fp16)(?=/|$)")
"""The end of the names of integer forms, and the beginning of those of their constants."""


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


def apart_from_integers(graph: Graph) -> Graph:
    """The graph in which no tensor is named as the integer form of another, such as `x/int8` beside `x`.

    Inputs and outputs keep their names.
    """
    fixed, clashing = {*graph.inputs, *graph.outputs}, set[str]()
    for name in graph.tensors:
        stems = (name[: each.start()] for each in FORM.finditer(name))
        clashing.update(stem if name in fixed else name for stem in stems if stem in graph.tensors)
    names = Names(graph.tensors)
    new = {name: names.new(name) for name in sorted(clashing - fixed)}
    if not new:
        return graph
    constants = {new.get(name, name): value for name, value in graph.constants.items()}
    return renamed(graph, graph.nodes, new, constants)
