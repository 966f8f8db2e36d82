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


def nodes_in(outer: Iterable[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    """Nodes, and those of their subgraphs."""
    for node in outer:
        yield node
        for inner in subgraphs(node):
            yield from nodes_in(inner.node)


def tensor_names(graph: onnx.GraphProto) -> Iterator[str]:
    """The names of all tensors of a graph and of those inside its nodes, some of them several times."""
    for node in nodes_in(graph.node):
        yield from (*node.input, *node.output)
    yield from (each.name for each in graph.initializer)


def tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The constants of a model: initialisers and attributes, also in subgraphs and functions."""
    yield from model.graph.initializer
    yield from inner_tensors(model)


def inner_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    """The constants of a model beside its own initialisers."""
    yield from (part for each in model.graph.sparse_initializer for part in (each.values, each.indices))
    nodes = (
        *nodes_in(model.graph.node),
        *(node for each in model.functions for node in nodes_in(each.node)),
    )
    for graph in (inner for node in nodes for inner in subgraphs(node)):
        yield from graph.initializer
        yield from (part for each in graph.sparse_initializer for part in (each.values, each.indices))
    for attribute in (each for node in nodes for each in node.attribute):
        yield from (
            attribute.t,
            *attribute.tensors,
            attribute.sparse_tensor.values,
            attribute.sparse_tensor.indices,
        )
