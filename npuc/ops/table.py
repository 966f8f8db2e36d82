"""The operator table and how a typed graph is made from it.

A graph is made (and remade by passes) with `build`, which orders the nodes, drops what no output needs, and
gives every tensor its type by the shape rules.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from npuc.errors import ModelError, UnsupportedOperator
from npuc.ir import Array, Graph, Node, TensorType, topological, type_of

ShapeRule = Callable[[Node, Sequence[TensorType]], tuple[TensorType, ...]]
Meaning = Callable[[Node, Sequence[Array]], tuple[Array, ...]]


@dataclass(frozen=True)
class Op:
    """A row of the table. An omitted optional input reaches the rules as a type () / an empty array."""

    name: str
    summary: str
    infer: ShapeRule
    compute: Meaning


OPS: dict[str, Op] = {}


def register(*rows: Op) -> None:
    """Adds rows to the table; a name stands once."""
    for row in rows:
        if row.name in OPS:
            raise KeyError(f"operator {row.name} is declared twice")
        OPS[row.name] = row


def bad_node(node: Node, reason: str, *, tensor: str | None = None, limit: str | None = None) -> ModelError:
    """The error (E105) of a shape rule: the node's inputs contradict its operator."""
    return ModelError("E105", reason, node=node.name, op=node.op, tensor=tensor, limit=limit)


def infer(node: Node, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """The types of a node's outputs by its operator's shape rule.

    Raises UnsupportedOperator (E201) for an operator without a row, ModelError (E105) from the rule.
    """
    if node.op not in OPS:
        raise UnsupportedOperator("E201", "the operator is not known", node=node.name, op=node.op)
    return OPS[node.op].infer(node, inputs)


def build(
    name: str,
    nodes: Iterable[Node],
    inputs: Mapping[str, TensorType],
    outputs: Sequence[str],
    constants: Mapping[str, Array],
) -> Graph:
    """A typed graph of these nodes, ordered, without what no output needs, and checked.

    Raises ModelError (E104) for a cycle or an unwritten tensor, and what the shape rules raise.
    """
    ordered = topological(nodes, {*inputs, *constants})
    needed = set(outputs)
    alive: list[Node] = []
    for node in reversed(ordered):
        if needed.intersection(node.outputs):
            needed.update(node.inputs)
            alive.append(node)
    kept = {key: value for key, value in constants.items() if key in needed}
    types = {**inputs, **{key: type_of(value) for key, value in kept.items()}}
    absent = TensorType(())
    for node in reversed(alive):
        found = infer(node, [types[key] if key else absent for key in node.inputs])
        types.update(zip(node.outputs, found, strict=True))
    types.pop("", None)
    graph = Graph(name, tuple(reversed(alive)), tuple(inputs), tuple(outputs), kept, types)
    graph.check()
    return graph


def rebuild(graph: Graph, nodes: Iterable[Node], new_constants: Mapping[str, Array] | None = None) -> Graph:
    """The graph with other nodes (and more constants): what a pass returns."""
    inputs = {key: graph.tensors[key] for key in graph.inputs}
    return build(graph.name, nodes, inputs, graph.outputs, {**graph.constants, **(new_constants or {})})
