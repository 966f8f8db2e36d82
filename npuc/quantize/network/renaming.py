"""Renaming of tensors whose values a change of nodes has altered."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeVar

from npuc.ir import Array, Graph, Node
from npuc.ops import build as build_graph
from npuc.quantize.network.construction import Quantised

V = TypeVar("V")


def rename_tensors(
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
    return build_graph(graph.name, changed, types, graph.outputs, constants, graph.operators, graph.reserved)


def reading(node: Node, names: Mapping[str, str]) -> Node:
    """The node, reading other tensors; names: new ones by old."""
    return replace(node, inputs=tuple(names.get(name, name) for name in node.inputs)) if names else node


def integers_renamed(graph: Graph, quantised: Quantised, names: Mapping[str, str]) -> Quantised:
    """The network with its integers named after the model's tensors, whatever their channels were divided by.

    graph: the float graph of the network. names: the model's tensors by those of this graph.
    """
    integer = quantised.graph
    fresh = graph.names()
    fresh.take((*names.values(), *integer.tensors))
    wanted = {name: _old(graph, names, name) for name in integer.tensors if name not in graph.tensors}
    new = {name: fresh.new(stem) for name, stem in wanted.items() if stem != name}
    nodes = [replace(node, name=_old(graph, names, node.name)) for node in integer.nodes]
    constants = {new.get(name, name): value for name, value in integer.constants.items()}
    return Quantised(
        rename_tensors(integer, nodes, new, constants),
        _by_new(quantised.scales, new),
        {name: names.get(tensor, tensor) for name, tensor in _by_new(quantised.floats, new).items()},
        _by_new(quantised.zeros, new),
        _by_new(quantised.factors, new),
        {tensor: new.get(name, name) for tensor, name in quantised.forms.items()},
        _by_new(quantised.sources, new),
        frozenset(new.get(name, name) for name in quantised.unlimited),
    )


def _by_new(known: Mapping[str, V], new: Mapping[str, str]) -> dict[str, V]:
    return {new.get(name, name): value for name, value in known.items()}


def _old(graph: Graph, names: Mapping[str, str], name: str) -> str:
    """A name made of one of the graph's tensors, with the model's tensor in its place."""
    end = len(name)
    while end > 0 and name[:end] not in graph.tensors:
        end = name.rfind("/", 0, end)
    return f"{names.get(name[:end], name[:end])}{name[end:]}" if end > 0 else name
