"""The graph: frozen nodes over named tensors, in single assignment as in ONNX.

Invariants, checked by `Graph.check`: nodes are in topological order; every tensor has one producer and a static
type, which follows from the operator's declaration; every node satisfies its operator; a name that occurs in the
ONNX model denotes exactly that tensor, in its shape and layout (a pass that changes the layout of a value gives it
a new name).
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import field, replace
from difflib import get_close_matches
from functools import cached_property
from math import prod
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from npuc.errors import ModelError, UnsupportedOperator
from npuc.frozen import frozen
from npuc.text.escaping import Names, terminal

if TYPE_CHECKING:
    import networkx as nx

    from npuc.ops.declaration import Op

Array = NDArray[Any]
Attr = int | float | str | tuple[int, ...] | tuple[float, ...]


@frozen
class TensorType:
    """Shape in elements and element type as numpy names it."""

    shape: tuple[int, ...]
    dtype: str = "float32"

    @property
    def size(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """The memory that its elements take."""
        return self.size * np.dtype(self.dtype).itemsize

    def __str__(self) -> str:
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


ABSENT = TensorType(())
"""The type of an omitted optional input."""

CHECK = "NPUC_CHECK"
"""The environment variable that controls how graphs are checked."""


@frozen
class Node:
    """One operator. An omitted optional input is the empty string; `sources` are the ONNX nodes it comes from.

    A tensor has one producer, so outputs identify a node within its graph; they determine its hash.
    """

    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Attr] = field(default_factory=dict[str, Attr])
    name: str = ""
    sources: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "attrs", MappingProxyType(dict(self.attrs)))

    def __hash__(self) -> int:
        return hash(self.outputs)

    @cached_property
    def typings(self) -> dict[tuple[TensorType, ...], tuple[TensorType, ...]]:
        """Cache of output types by input types (Op.typed)."""
        return {}

    @cached_property
    def windows(self) -> dict[tuple[int, ...], Any]:
        """Cache of windows by kernel (ops.windows.window_of)."""
        return {}

    @property
    def output(self) -> str:
        """The first (for most operators the only) output."""
        return self.outputs[0]

    @property
    def source(self) -> str:
        """The name by which messages refer to it: of the first ONNX node, or its own."""
        return self.sources[0] if self.sources else self.name

    def with_attrs(self, **attrs: Attr) -> Node:
        """The same node with some attributes set."""
        return replace(self, attrs={**self.attrs, **attrs})

    def integer(self, key: str, default: int = 0) -> int:
        """An attribute as an integer."""
        value = self.attrs.get(key, default)
        if not isinstance(value, int):
            raise TypeError(f"{self.op}.{key} is {value!r}, not an integer")
        return value

    def number(self, key: str, default: float = 0.0) -> float:
        """An attribute as a float."""
        value = self.attrs.get(key, default)
        if not isinstance(value, (int, float)):
            raise TypeError(f"{self.op}.{key} is {value!r}, not a number")
        return float(value)

    def text(self, key: str, default: str = "") -> str:
        """An attribute as a string."""
        value = self.attrs.get(key, default)
        if not isinstance(value, str):
            raise TypeError(f"{self.op}.{key} is {value!r}, not a string")
        return value

    def numbers(self, key: str, default: tuple[float, ...] = ()) -> tuple[float, ...]:
        """An attribute as a tuple of numbers."""
        value = self.attrs.get(key, default)
        if not isinstance(value, tuple):
            raise TypeError(f"{self.op}.{key} is {value!r}, not a tuple")
        return value

    def integers(self, key: str, default: tuple[int, ...] = ()) -> tuple[int, ...]:
        """An attribute as a tuple of integers."""
        value = self.attrs.get(key, default)
        if not isinstance(value, tuple):
            raise TypeError(f"{self.op}.{key} is {value!r}, not a tuple")
        return tuple(map(int, value))


@frozen
class Graph:
    """A typed network: nodes in topological order, constants by name, a type for every tensor.

    operators: the declarations of the operators available to its nodes, by name.
    reserved: the names of the model's tensors, also of those that passes have removed. No new tensor gets one of
    them: reports and comparisons take a name of the model for the model's tensor.
    """

    name: str
    nodes: tuple[Node, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    constants: Mapping[str, Array]
    tensors: Mapping[str, TensorType]
    operators: Mapping[str, Op]
    reserved: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        object.__setattr__(self, "constants", MappingProxyType(dict(self.constants)))
        object.__setattr__(self, "tensors", MappingProxyType(dict(self.tensors)))

    @cached_property
    def producers(self) -> Mapping[str, Node]:
        """The node that writes each tensor; inputs and constants have none."""
        return {name: node for node in self.nodes for name in node.outputs if name}

    @cached_property
    def readers(self) -> Mapping[str, tuple[Node, ...]]:
        """The nodes that read each tensor, once per node, in order; a graph output has no extra reader here."""
        found: dict[str, list[Node]] = {name: [] for name in self.tensors}
        for node in self.nodes:
            for name in dict.fromkeys(filter(None, node.inputs)):
                found[name].append(node)
        return {name: tuple(nodes) for name, nodes in found.items()}

    def names(self) -> Names:
        """The names that new tensors must not have: those of its tensors, and the reserved ones."""
        return Names(self.reserved.union(self.tensors))

    def only_reader(self, tensor: str) -> Node | None:
        """The node that alone reads the tensor; None if several or none do, or if it is a graph output."""
        readers = self.readers[tensor]
        return readers[0] if len(readers) == 1 and tensor not in self.outputs else None

    def shape(self, tensor: str) -> tuple[int, ...]:
        """The tensor's shape in elements."""
        return self.tensors[tensor].shape

    def constant(self, tensor: str) -> Array | None:
        """The tensor's value if it is a constant."""
        return self.constants.get(tensor)

    @cached_property
    def dataflow(self) -> nx.MultiDiGraph[Node]:
        """The graph as networkx sees it: its nodes, and an edge for each tensor that one reads from another."""
        import networkx as nx

        view: nx.MultiDiGraph[Any] = nx.MultiDiGraph()
        positions = {node.outputs: position for position, node in enumerate(self.nodes)}
        view.add_nodes_from((position, {"node": node}) for position, node in enumerate(self.nodes))
        for node in self.nodes:
            for name in filter(None, node.inputs):
                if name in self.producers:
                    view.add_edge(positions[self.producers[name].outputs], positions[node.outputs], tensor=name)
        return view

    def check(self, *, fully: bool | None = None) -> None:
        """Raises ModelError if an invariant of this module is violated: E104, or errors of declarations.

        A graph is checked once, and results for nodes with inputs of the same types are reused, unless fully
        (default: whether the environment variable NPUC_CHECK is "full").
        """
        if os.environ.get(CHECK) == "full" if fully is None else fully:
            self._verify(fully=True)
        _ = self._is_sound

    @cached_property
    def _is_sound(self) -> bool:
        self._verify(fully=False)
        return True

    def _verify(self, *, fully: bool) -> None:
        self._check_tensors()
        for node in self.nodes:
            self._check_node(node, fully)

    def _check_tensors(self) -> None:
        """Checks that every tensor is written once, before it is read, and has a type."""
        known = {*self.inputs, *self.constants}
        for node in self.nodes:
            for name in filter(None, node.inputs):
                if name not in known:
                    raise ModelError("E104", "read before it is written", node=node.name, op=node.op, tensor=name)
            for name in filter(None, node.outputs):
                if name in known:
                    raise ModelError("E104", "written twice", node=node.name, op=node.op, tensor=name)
                known.add(name)
        for name in self.outputs:
            if name not in known:
                raise ModelError("E104", "the graph output is never written", tensor=name)
        for name in known:
            if name not in self.tensors:
                raise ModelError("E104", "has no type", tensor=name)
        for name, value in self.constants.items():
            if self.tensors[name] != type_of(value):
                raise ModelError("E104", f"declared {self.tensors[name]}, is {type_of(value)}", tensor=name)

    def _check_node(self, node: Node, fully: bool) -> None:
        """Checks that the operator is declared, accepts the node and its constants, and gives its result types."""
        row = declaration(node, self.operators)
        types = [self.tensors[name] if name else ABSENT for name in node.inputs]
        found = row.check_types(node, types) if fully else row.output_types(node, types)
        row.expect_values(node, self.constants)
        for name, each in zip(node.outputs, found, strict=True):
            if name and self.tensors[name] != each:
                reason = f"declared {self.tensors[name]}, the operator gives {each}"
                raise ModelError("E104", reason, node=node.name, op=node.op, tensor=name)

    def __str__(self) -> str:
        """One line per node, for --dump-after."""

        def tensors(names: Iterable[str]) -> str:
            return ", ".join(f"{name or '-'}: {self.tensors[name]}" if name else "-" for name in names)

        lines = [f"graph {self.name} ({tensors(self.inputs)}) -> ({tensors(self.outputs)})"]
        for node in self.nodes:
            attrs = ", ".join(f"{key}={value}" for key, value in sorted(node.attrs.items()))
            lines.append(f"  {tensors(node.outputs)} = {node.op}({', '.join(node.inputs)}) {{{attrs}}}")
        return "\n".join(map(terminal, lines))


def declaration(node: Node, operators: Mapping[str, Op]) -> Op:
    """The declaration of a node's operator. Raises UnsupportedOperator (E201) if it has none."""
    if node.op not in operators:
        near = get_close_matches(node.op, operators, 1)
        remedy = f"did you mean {near[0]}?" if near else None
        raise UnsupportedOperator("E201", "the operator is not known", node=node.name, op=node.op, remedy=remedy)
    return operators[node.op]


def type_of(value: Array) -> TensorType:
    """The type of a constant."""
    return TensorType(tuple(int(extent) for extent in value.shape), str(np.asarray(value).dtype))


def topological(nodes: Iterable[Node], known: Iterable[str]) -> tuple[Node, ...]:
    """The nodes in a topological order that keeps the given order where possible.

    Raises ModelError (E104) for a cycle or a tensor without a producer.
    """
    ready = {*known, ""}
    waiting = list(nodes)
    written = {name for node in waiting for name in node.outputs}
    ordered: list[Node] = []
    while waiting:
        later: list[Node] = []
        for node in waiting:
            if all(name in ready for name in node.inputs):
                ordered.append(node)
                ready.update(node.outputs)
            else:
                later.append(node)
        if len(later) == len(waiting):
            node = later[0]
            missing = next(name for name in node.inputs if name not in ready)
            reason = "part of a cycle" if missing in written else "read, but nothing writes it"
            raise ModelError("E104", reason, node=node.name, op=node.op, tensor=missing)
        waiting = later
    return tuple(ordered)
