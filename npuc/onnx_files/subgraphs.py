"""The graphs inside nodes of an ONNX model: the branches of If, the bodies of Loop and Scan."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import onnx


def subgraphs(node: onnx.NodeProto) -> Iterator[onnx.GraphProto]:
    """The graphs in a node's attributes."""
    for attribute in node.attribute:
        if attribute.HasField("g"):
            yield attribute.g
        yield from attribute.graphs


def graphs(graph: onnx.GraphProto) -> Iterator[onnx.GraphProto]:
    """A graph, and those in its nodes."""
    yield graph
    for node in graph.node:
        for inner in subgraphs(node):
            yield from graphs(inner)


def within(outer: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, and those of their subgraphs."""
    for node in outer:
        yield node
        for inner in subgraphs(node):
            yield from within(inner.node)


def tensor_names(graph: onnx.GraphProto) -> Iterator[str]:
    """The names of all tensors of a graph and of those inside its nodes, some of them several times."""
    for node in within(graph.node):
        yield from (*node.input, *node.output)
    yield from (each.name for each in graph.initializer)
