"""An imported model: its ONNX nodes one by one, each with the canonical nodes that compute the same.

A node that npuc cannot import stays as it is, with the reason, and with result types by ONNX's own rules. A node
of the rewritten model comes from nodes of the model's file.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import onnx
from onnx import TypeProto

from npuc.errors import ModelError, Problem, UnsupportedOperator
from npuc.frontend.foreign import all_inputs, rename_inputs
from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node, TensorType
from npuc.onnx_files.subgraphs import graphs, nodes_in, subgraphs
from npuc.ops import build
from npuc.text.escaping import Names


@frozen
class ImportedNode:
    """One node of the model: `proto` uses the tensors' own names; the canonical `nodes` compute the same."""

    name: str
    proto: onnx.NodeProto
    nodes: tuple[Node, ...]
    """Empty if it cannot be imported."""
    problem: Problem | None
    """Why npuc cannot import it."""
    source: str
    """The node of the file that it belongs to, by its key: itself, or the call or the If that it came from."""
    follows: bool = False
    """Whether the reason is only that npuc cannot import what it reads."""

    @property
    def op(self) -> str:
        """The ONNX operator."""
        return self.proto.op_type

    @cached_property
    def reads(self) -> tuple[str, ...]:
        """The tensors that the host would read."""
        return tuple(dict.fromkeys(all_inputs(self.proto)))

    @cached_property
    def writes(self) -> tuple[str, ...]:
        """The tensors that the host would write."""
        return tuple(filter(None, self.proto.output))

    @cached_property
    def made(self) -> tuple[str, ...]:
        """The tensors that the target would write."""
        return tuple(name for node in self.nodes for name in node.outputs)

    @cached_property
    def imported(self) -> tuple[str, ...]:
        """The tensors that the target would read, constants included."""
        made = {*self.made}
        return tuple(
            dict.fromkeys(name for node in self.nodes for name in node.inputs if name and name not in made)
        )

    def rename(self, names: Mapping[str, str]) -> ImportedNode:
        """The node with other names of tensors."""
        proto = rename_inputs(self.proto, names)
        proto.output[:] = [names.get(each, each) for each in proto.output]
        nodes = (
            replace(
                node,
                inputs=tuple(names.get(each, each) for each in node.inputs),
                outputs=tuple(names.get(each, each) for each in node.outputs),
            )
            for node in self.nodes
        )
        return replace(self, proto=proto, nodes=tuple(nodes))


@frozen
class FileNode:
    """A node of the model's file. key: its name, or its operator and number."""

    key: str
    op: str
    reads: tuple[str, ...]
    writes: tuple[str, ...]
    within: tuple[str, ...]
    """Names of nodes and tensors in its subgraphs, and in the function that it calls."""


@frozen
class ImportedModel:
    """A model. `types`: of tensors with static shape; `protos`: what is known of all tensors."""

    name: str
    nodes: tuple[ImportedNode, ...]
    """Those with a result that is read, in topological order."""
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array]
    types: Mapping[str, TensorType]
    protos: Mapping[str, TypeProto]
    opsets: tuple[onnx.OperatorSetIdProto, ...]
    ir_version: int
    reserved: frozenset[str]
    """The tensors of the model, and those made by the import: no pass on a part makes one of this name."""
    written: frozenset[str]
    """Operators and names of all nodes in the file, including those that were folded or left out."""
    unreadable: Problem | None
    """Why npuc knows none of its operators."""
    file_nodes: tuple[FileNode, ...]
    """All nodes of the file, in its order, also those that none of `nodes` comes from."""
    aliases: Mapping[str, str]
    """The tensor that has the value of a tensor of the file, where an identity was left out."""

    @cached_property
    def producers(self) -> Mapping[str, ImportedNode]:
        """The node that writes each tensor, on the host or within the target."""
        inside = {name: node for node in self.nodes for name in node.made}
        return {**inside, **{name: node for node in self.nodes for name in node.writes}}

    @cached_property
    def by_name(self) -> Mapping[str, ImportedNode]:
        """The nodes by name."""
        return {node.name: node for node in self.nodes}

    @cached_property
    def by_source(self) -> Mapping[str, tuple[ImportedNode, ...]]:
        """The nodes that each node of the file became, by its key."""
        found: dict[str, tuple[ImportedNode, ...]] = {}
        for node in self.nodes:
            found[node.source] = (*found.get(node.source, ()), node)
        return found

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """Why npuc cannot import all of it: causes, not what follows from them."""
        if self.unreadable is not None:
            return (self.unreadable,)
        return tuple(each.problem for each in self.nodes if each.problem and not each.follows)

    def graph(self) -> Graph:
        """The graph of all nodes. Raises ModelError or UnsupportedOperator with every problem."""
        if self.problems:
            kind = UnsupportedOperator if all(each.code.startswith("E2") for each in self.problems) else ModelError
            raise kind.of(self.problems)
        nodes = [made for node in self.nodes for made in node.nodes]
        inputs = {name: self.types[name] for name in self.inputs}
        return build(self.name, nodes, inputs, self.outputs, self.constants, reserved=self.reserved)


def live(nodes: Iterable[ImportedNode], outputs: Iterable[str]) -> tuple[ImportedNode, ...]:
    """The nodes with a result that is read, and malformed ones, which onnxruntime refuses wherever they are.

    Of some, only the shape was read, which is a constant by now.
    """
    read = set(outputs)
    found: list[ImportedNode] = []
    for node in reversed([*nodes]):
        malformed = node.problem is not None and node.problem.code == "E105"
        if malformed or not read.isdisjoint((*node.writes, *node.made)):
            read.update(node.reads, node.imported)
            found.append(node)
    return tuple(reversed(found))


def file_nodes(model: onnx.ModelProto) -> tuple[FileNode, ...]:
    """The nodes of a file with their keys: no key of a node without a name is another node's name."""
    given = [node.name for node in model.graph.node]
    names, first = Names(given), dict(zip(reversed(given), reversed(range(len(given))), strict=True))
    functions = {(each.domain, each.name, each.overload): each for each in model.functions}
    found: list[FileNode] = []
    for at, node in enumerate(model.graph.node):
        own = bool(node.name) and first[node.name] == at
        key = node.name if own else names.new(node.name or f"{node.op_type}_{at}")
        reads, writes = (tuple(dict.fromkeys(filter(None, each))) for each in (all_inputs(node), node.output))
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
    for node in nodes_in(nodes):
        yield from (node.name, *node.input, *node.output)


def origins(graph: onnx.GraphProto, given: Sequence[FileNode]) -> list[str]:
    """For each node of a rewritten graph, the key of the file's node that it belongs to.

    A rewrite keeps the names of a node's results. What it makes beside them is read by the node's other parts.
    """
    sources = {name: node.key for node in given for name in node.writes}
    found, last = list[str](), given[-1].key if given else ""
    for node in reversed(graph.node):
        last = next((sources[name] for name in node.output if name in sources), last)
        sources |= {name: last for name in all_inputs(node) if name not in sources}
        found.append(last)
    return found[::-1]
