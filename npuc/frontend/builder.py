"""The graph under construction, which importers append canonical nodes to; constants are evaluated at once."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from npuc.conditions.values import LowerBounds
from npuc.errors import ModelError, UnsupportedOperator
from npuc.frozen import frozen
from npuc.ir import Array, Attr, Node, TensorType, type_of
from npuc.onnx_files.external_data import LARGEST_CONSTANT, LARGEST_TENSOR
from npuc.ops import infer
from npuc.ops.interpreter import evaluate
from npuc.system.budget import expect_room, take
from npuc.text.escaping import Names


class UndefinedConstants(ModelError):
    """Constants for which ONNX defines no result: none is computed in any other way either."""


@frozen
class OnnxNode:
    """A node of the model with all its attributes, including defaults, and with aliases in its inputs resolved."""

    name: str
    op: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attrs: Mapping[str, Any]
    opset: int
    source: str
    """The key of the file's node that it belongs to."""

    def has_input(self, index: int) -> bool:
        """Whether the optional input is present."""
        return index < len(self.inputs) and bool(self.inputs[index])

    def bad(self, reason: str, *, tensor: str | None = None, limit: str | None = None) -> ModelError:
        """The error (E105) for an inconsistent node."""
        return ModelError("E105", reason, node=self.source, op=self.op, tensor=tensor, limit=limit)

    def constant_error(self, reason: str, tensor: str, limit: str) -> UndefinedConstants:
        """The error (E105) for a constant that the operator is not defined for."""
        return UndefinedConstants("E105", reason, node=self.source, op=self.op, tensor=tensor, limit=limit)

    def support_error(self, reason: str, remedy: str, *, limit: str | None = None) -> UnsupportedOperator:
        """The error (E202) for a valid form that npuc does not support."""
        return UnsupportedOperator("E202", reason, node=self.source, op=self.op, limit=limit, remedy=remedy)

    def axis(self, axis: int, rank: int) -> int:
        """A non-negative axis; raises E105 outside -rank..rank-1."""
        if not -rank <= axis < rank:
            raise self.bad(f"axis {axis} of a tensor with {rank} dimensions", limit=f"{-rank}..{rank - 1}")
        return axis % rank

    def axes(self, axes: Sequence[int], rank: int) -> tuple[int, ...]:
        """Non-negative, distinct axes in the given order."""
        found = tuple(self.axis(int(axis), rank) for axis in axes)
        if len(set(found)) != len(found):
            raise self.bad(f"axes {list(axes)} name one axis twice")
        return found


class NodeBuilder:
    """Nodes, constants and types so far. A tensor is in `constants`, or has a producer, or is an input."""

    def __init__(self, opset: int, folder: Path | None, fold_weights: bool) -> None:
        self.opset = opset
        self.folder = folder
        self.fold_weights = fold_weights
        self.nodes: list[Node] = []
        self.constants: dict[str, Array] = {}
        self.types: dict[str, TensorType] = {}
        self.inputs: frozenset[str] = frozenset()
        self.finite: dict[tuple[str, bool], bool] = {}
        """What `npuc.frontend.finite` found so far."""
        self.masks: dict[str, tuple[str, str]] = {}
        """What `prepare_mask` makes of a mask before an Attention: finite numbers, and which rows count."""
        self.aliases: dict[str, str] = {}
        self.producers: dict[str, Node] = {}
        self.bounds = LowerBounds(self.producers, self.constants)
        self.absent: dict[str, OnnxNode] = {}
        self._held: dict[int, Array] = {}
        """Base arrays of constants, by identity."""
        self.names = Names()
        """The tensors of the model, and those made since."""
        self._node_names = Names()

    def reserve(self, names: Sequence[str]) -> None:
        """Reserves names of the model, so that new tensors do not get them; those of constants and inputs are."""
        self.names.take(names)

    def take_inputs(self, types: Mapping[str, TensorType]) -> None:
        """Adds the inputs of the model."""
        self.inputs = frozenset(types)
        self.types.update(types)
        self.names.take(types)

    def node_name(self, stem: str) -> str:
        """A node name that is not taken yet."""
        return self._node_names.new(stem)

    def fresh(self, stem: str) -> str:
        """A tensor name that is not taken yet."""
        return self.names.new(stem)

    def add_constant(self, name: str, value: ArrayLike) -> None:
        """Makes a tensor of the model a constant."""
        made = np.asarray(value)
        whole = made
        while isinstance(whole.base, np.ndarray):
            whole = whole.base
        if id(whole) not in self._held or whole.nbytes < made.nbytes:  # a view may still be expanded
            take(made.nbytes, "a constant", tensor=name)
            self._held[id(whole)] = whole
        self.constants[name] = made
        self.types[name] = type_of(self.constants[name])
        self.names.take((name,))

    def constant(self, node: OnnxNode, stem: str, value: ArrayLike) -> str:
        """The name of a new constant."""
        name = self.fresh(f"{node.outputs[0]}/{stem}")
        self.add_constant(name, value)
        return name

    def shape(self, tensor: str) -> tuple[int, ...]:
        """A tensor's shape."""
        return self.types[tensor].shape

    def value(self, node: OnnxNode, index: int) -> Array:
        """The value of an input that must be constant; raises E106 if it is not."""
        name = node.inputs[index]
        if name not in self.constants:
            remedy = "make it a constant, or simplify the model for fixed shapes"
            reason = f"input {index} is computed at run time"
            raise ModelError("E106", reason, node=node.source, op=node.op, tensor=name, remedy=remedy)
        return self.constants[name]

    def integers(self, node: OnnxNode, index: int) -> tuple[int, ...]:
        """A constant input as integers."""
        value = self.value(node, index)
        if value.ndim > 1 or not np.issubdtype(value.dtype, np.integer):
            reason = f"{type_of(value)} where a list of integers is needed"
            raise node.bad(reason, tensor=node.inputs[index])
        return tuple(int(each) for each in value.reshape(-1))

    def scalar(self, node: OnnxNode, index: int) -> float:
        """A constant input as one number."""
        value = self.value(node, index)
        if value.size != 1 or value.dtype.kind not in "fiu":
            raise node.bad(f"{type_of(value)} where a number is needed", tensor=node.inputs[index])
        return value.reshape(()).item()

    def alias(self, node: OnnxNode, tensor: str) -> None:
        """Makes the node's output an alias of a tensor."""
        self.aliases[node.outputs[0]] = tensor

    def note_absent(self, node: OnnxNode) -> None:
        """Records the outputs that a node's importer did not compute (a mask, indices, statistics)."""
        for name in filter(None, node.outputs):
            if name not in self.types and name not in self.aliases:
                self.absent[name] = node

    def check_computed(self, names: Sequence[str]) -> None:
        """Raises E202 for the node of the first of these tensors that its importer did not compute."""
        for name in names:
            if name in self.absent:
                raise self.absent[name].support_error(
                    f"its output {name!r} is read",
                    "compute it by operators of its own",
                    limit="the first output only",
                )

    def emit(
        self,
        node: OnnxNode,
        op: str,
        inputs: Sequence[str],
        outputs: Sequence[str] | None = None,
        /,
        **attrs: Attr,
    ) -> str:
        """Appends a canonical node, or its value if all inputs are constant; returns its first output.

        outputs: default is the ONNX node's own output; pass () for one new tensor.
        """
        final = outputs is None or len(outputs) > 0
        targets = tuple(node.outputs[:1] if outputs is None else outputs)
        targets = targets or (self.fresh(f"{node.outputs[0]}/{op.lower()}"),)
        used = _without_absent_tail(inputs)
        name = node.name if final else self.node_name(f"{node.name}/{op}")
        made = Node(op, used, targets, attrs, name, (node.source,))
        absent = TensorType(())
        found = infer(made, [self.types[each] if each else absent for each in used])
        foldable = self._foldable(made)
        limit = LARGEST_CONSTANT if foldable else LARGEST_TENSOR
        if any(each.size > limit for each in found):
            raise node.bad("the result is too large", tensor=targets[0], limit=f"{limit} elements")
        for tensor, each in zip(targets, found, strict=False):
            expect_room(each.bytes, "a tensor", node=node.source, tensor=tensor)
        if foldable:
            self._fold(made)
        else:
            self.nodes.append(made)
            self.producers.update(dict.fromkeys(targets, made))
            self.types.update(zip(targets, found, strict=True))
        return targets[0]

    def _foldable(self, made: Node) -> bool:
        if made.op == "DequantizeLinear" and not self.fold_weights:
            return False
        return all(each in self.constants for each in made.inputs if each)

    def _fold(self, made: Node) -> None:
        absent = np.empty(0, np.float32)
        values = evaluate(made, [self.constants[each] if each else absent for each in made.inputs])
        for target, value in zip(made.outputs, values, strict=True):
            self.add_constant(target, value)


def _without_absent_tail(inputs: Sequence[str]) -> tuple[str, ...]:
    used = list(inputs)
    while used and not used[-1]:
        used.pop()
    return tuple(used)


Importer = Callable[[OnnxNode, NodeBuilder], None]


def broadcast(node: OnnxNode, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape by numpy's broadcasting; raises E105 if there is none."""
    try:
        return tuple(int(extent) for extent in np.broadcast_shapes(*shapes))
    except ValueError:
        described = " and ".join(str(list(shape)) for shape in shapes)
        raise node.bad(f"shapes {described} do not broadcast") from None


def same(*keys: str) -> Importer:
    """An importer for an operator that is already canonical, with its inputs and these attributes."""

    def importer(node: OnnxNode, to: NodeBuilder) -> None:
        to.emit(node, node.op, node.inputs, **{key: node.attrs[key] for key in keys})

    return importer
