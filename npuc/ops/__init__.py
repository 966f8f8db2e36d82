"""The operators of the IR: one declaration each, with legal forms, types, and meaning in numpy and in ONNX.

`OPS` is the table; its rows are declared in the modules of this package, grouped as in the ONNX operator list. See
`ops.declaration` for the contents of a row and what derives from it, `ops.attributes` for the attributes.

Graphs are made (and remade by passes) with `build`, which orders the nodes, drops those that no output needs, and
types every tensor by the operators' declarations. A package with operators of its own declares them as `Op`s and
gives its graphs the table made by `with_operators`: nothing registers itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from npuc.ir import ABSENT, Array, Graph, Node, TensorType, topological, type_of
from npuc.ir import declaration as declaration_of
from npuc.ops import elementwise, integer, movement, products, quantisation, reduction, resize, windows
from npuc.ops.declaration import Op, Parameter, bad_node, has_input

__all__ = [
    "OPS",
    "Op",
    "Operators",
    "Parameter",
    "bad_node",
    "build",
    "has_input",
    "infer",
    "rebuild",
    "with_operators",
]

Operators = Mapping[str, Op]


def with_operators(operators: Operators, *rows: Op) -> Operators:
    """The table with more rows. Raises KeyError for a repeated name."""
    table = dict(operators)
    for row in rows:
        if row.name in table:
            raise KeyError(f"operator {row.name} is declared twice")
        table[row.name] = row
    return MappingProxyType(table)


OPS: Operators = with_operators(
    {},
    *elementwise.OPERATORS,
    *products.OPERATORS,
    *windows.OPERATORS,
    *reduction.OPERATORS,
    *movement.OPERATORS,
    *resize.OPERATORS,
    *quantisation.OPERATORS,
    *integer.OPERATORS,
)
"""The operators of all graphs; targets have more."""


def infer(node: Node, types: Sequence[TensorType], operators: Operators = OPS) -> tuple[TensorType, ...]:
    """The types of a node's outputs. types: of its inputs, ABSENT for missing ones.

    Raises UnsupportedOperator (E201) for an undeclared operator, ModelError (E105, E107) for a node that
    contradicts the declaration.
    """
    return declaration_of(node, operators).output_types(node, types)


def build(
    name: str,
    nodes: Iterable[Node],
    inputs: Mapping[str, TensorType],
    outputs: Sequence[str],
    constants: Mapping[str, Array],
    operators: Operators = OPS,
    reserved: frozenset[str] = frozenset(),
) -> Graph:
    """A typed and checked graph of these nodes, ordered, without nodes that no output needs.

    Raises ModelError (E104) for a cycle or an unwritten tensor, and what `infer` raises.
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
    for node in reversed(alive):
        found = infer(node, [types[key] if key else ABSENT for key in node.inputs], operators)
        types.update(zip(node.outputs, found, strict=True))
    types.pop("", None)
    graph = Graph(name, tuple(reversed(alive)), tuple(inputs), tuple(outputs), kept, types, operators, reserved)
    graph.check()
    return graph


def rebuild(graph: Graph, nodes: Iterable[Node], new_constants: Mapping[str, Array] | None = None) -> Graph:
    """The graph with other nodes and additional constants, as passes return it."""
    inputs = {key: graph.tensors[key] for key in graph.inputs}
    constants = {**graph.constants, **(new_constants or {})}
    return build(graph.name, nodes, inputs, graph.outputs, constants, graph.operators, graph.reserved)
