"""The nodes of a model's file, and which of them each node of the rewritten model comes from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import onnx

from npuc.frontend.foreign import captured
from npuc.frontend.model import FileNode
from npuc.onnx_files.subgraphs import graphs, subgraphs, within
from npuc.text.escaping import Names


def file_nodes(model: onnx.ModelProto) -> tuple[FileNode, ...]:
    """The nodes of a file with their keys: no key of a node without a name is another node's name."""
    given = [node.name for node in model.graph.node]
    names, first = Names(given), dict(zip(reversed(given), reversed(range(len(given))), strict=True))
    functions = {(each.domain, each.name, each.overload): each for each in model.functions}
    found: list[FileNode] = []
    for at, node in enumerate(model.graph.node):
        own = bool(node.name) and first[node.name] == at
        key = node.name if own else names.new(node.name or f"{node.op_type}_{at}")
        reads, writes = (tuple(dict.fromkeys(filter(None, each))) for each in (captured(node), node.output))
        body = functions.get((node.domain, node.op_type, node.overload))
        inside = {*_names_within(node)} | ({*_names_of(body.node), *body.input} if body else set())
        inside -= {"", key, *reads, *writes}
        found.append(FileNode(key, node.op_type, reads, writes, tuple(sorted(inside))))
    return tuple(found)


def _names_within(node: onnx.NodeProto) -> Iterator[str]:
    """The names of nodes, tensors and constants in a node's subgraphs."""
    for graph in (inner for outer in subgraphs(node) for inner in graphs(outer)):
        yield from _names_of(graph.node)
        yield from (each.name for each in (*graph.input, *graph.initializer))


def _names_of(nodes: Sequence[onnx.NodeProto]) -> Iterator[str]:
    for node in within(nodes):
        yield from (node.name, *node.input, *node.output)


def origins(graph: onnx.GraphProto, given: Sequence[FileNode]) -> list[str]:
    """For each node of a rewritten graph, the key of the file's node that it belongs to.

    A rewrite keeps the names of a node's results. What it makes beside them is read by the node's other parts.
    """
    sources = {name: node.key for node in given for name in node.writes}
    found, last = list[str](), given[-1].key if given else ""
    for node in reversed(graph.node):
        last = next((sources[name] for name in node.output if name in sources), last)
        sources |= {name: last for name in captured(node) if name not in sources}
        found.append(last)
    return found[::-1]
