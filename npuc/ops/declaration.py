"""The declaration of an operator: `Op`.

Everything else derives from it: `Op.output_types` verifies a node and types its results, the exporter writes
it in ONNX, docs/operators.md describes it, and tests draw nodes from it.

Inputs and outputs are `Parameter`s, whose shape is a pattern: names of extents, separated by blanks. A capital
name stands for one extent, the same wherever it occurs in the operator; a lower-case name is an attribute;
products are written with `*`; a name behind `*` stands for any number of extents, and `*` alone for any shape. A
convolution of x, w and a bias is

    x: "N group*I L *S"     w: "group*P I K *T"     bias: "group*P"

so x has at least three dimensions, and its channels are the weight's times the groups. If everything in the
outputs' patterns follows from the inputs, the shape of a result needs no rule of its own; otherwise `infer` gives
it. Requirements beyond patterns are in `requires`: functions whose docstring is the sentence that users read. All
checks are made in this order, each for nodes that passed the previous one:

    number of inputs and outputs -> attributes -> element types -> patterns -> requires -> infer

To draw a legal node: choose attributes by their kind, range and choices (ops.attributes.Attribute; `per`
determines the number of values), extents for the names of the patterns, element types by `Parameter.dtypes` and
`like`, and values of constants between `low` and `high`; `draw`, if an operator has it, chooses attributes that
fit given inputs and that ranges alone would rarely hit. `Op.output_types` decides whether the result is legal.

>>> gemm = Op(
...     "Gemm",
...     "x times the transposed weight, plus a bias.",
...     (Parameter("x", shape="M K"), Parameter("w", shape="N K"), Parameter("bias", shape="N", optional=True)),
...     (Parameter("y", shape="M N"),),
...     compute=lambda node, inputs: (inputs[0] @ inputs[1].T,),
... )
>>> gemm.output_types(Node("Gemm", ("x", "w"), ("y",)), [TensorType((2, 5)), TensorType((3, 5))])
(TensorType(shape=(2, 3), dtype='float32'),)
>>> print(problem(gemm, Node("Gemm", ("x", "w"), ("y",), {"transB": 1}), []))
error[E105] Gemm: attribute 'transB' is not one of Gemm's
  limit: no attributes
  help: correct the node where it is exported; onnx.checker.check_model(path, full_check=True) says more
>>> print(problem(gemm, Node("Gemm", ("x", "w"), ("y",)), [TensorType((2, 5)), TensorType((3, 6))]))
error[E105] Gemm, tensor 'w': w has shape [3, 6]
  limit: [N, 5]
  help: correct the node where it is exported; onnx.checker.check_model(path, full_check=True) says more
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from difflib import get_close_matches
from functools import cache, cached_property
from random import Random
from typing import TYPE_CHECKING, Any

import numpy as np

from npuc.errors import ModelError, NpucError
from npuc.frozen import frozen
from npuc.ir import Array, Attr, Node, TensorType
from npuc.ops.attributes import Attribute

if TYPE_CHECKING:
    from npuc.onnx_files.export import OnnxEmitter

ShapeRule = Callable[[Node, Sequence[TensorType]], tuple[TensorType, ...]]
Meaning = Callable[[Node, Sequence[Array]], tuple[Array, ...]]
Requirement = Callable[[Node, Sequence[TensorType]], bool]
"""Whether a node with inputs of these types is legal; the docstring states the requirement."""
Exporter = Callable[[Node, "OnnxEmitter"], None]
Draw = Callable[[Random, Sequence[TensorType]], Mapping[str, Attr]]

FLOAT = ("float32",)
NUMBERS = ("float32", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64")
ANY = (*NUMBERS, "bool", "float64", "float16")
Extents = dict[str, Any]
"""The extents that a pattern's names stand for: one each, or several for a name behind `*`."""


@frozen
class Parameter:
    """An input or output. An optional input may be the empty string or, at the end, be left out.

    dtypes: its element types. like: another parameter with the same element type. variadic: for the last one only;
    stands for one or more tensors. low, high: inclusive bounds on the values of a constant.
    """

    name: str
    dtypes: tuple[str, ...] = FLOAT
    shape: str = "*"
    like: str = ""
    optional: bool = False
    variadic: bool = False
    low: float = -math.inf
    high: float = math.inf

    @property
    def bounded(self) -> bool:
        """Whether some values are illegal."""
        return math.isfinite(self.low) or math.isfinite(self.high)


@frozen
class Op:
    """An operator. For an omitted optional input, rules receive the type () or an empty array.

    infer: types of the results, if the output patterns do not determine them. to_onnx: the form in ONNX; None: the
    operator of the same name with the same attributes. origin: "ONNX", or the source of such nodes.
    """

    name: str
    summary: str
    inputs: tuple[Parameter, ...]
    outputs: tuple[Parameter, ...]
    compute: Meaning
    attributes: tuple[Attribute[Any], ...] = ()
    requires: tuple[Requirement, ...] = ()
    infer: ShapeRule | None = None
    to_onnx: Exporter | None = None
    draw: Draw | None = None
    origin: str = "ONNX"

    def output_types(self, node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """The types of a node's outputs: `check_types`, cached by node and types."""
        key = tuple(types)
        if key not in node.typings:
            node.typings[key] = self.check_types(node, types)
        return node.typings[key]

    def check_types(self, node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
        """The types of a node's outputs, if it is legal with inputs of these types (ABSENT for absent ones).

        Raises ModelError (E107) for element types, otherwise E105.
        """
        inputs = self._formals(node, self.inputs, node.inputs, "inputs")
        outputs = self._formals(node, self.outputs, node.outputs, "outputs")
        self._expect_attributes(node, len(types[0].shape) if types else 0)
        self._expect_types(node, inputs, types)
        extents = self._extents(node, inputs, types)
        for rule in self.requires:
            if not rule(node, types):
                raise bad_node(node, self._describe(node, inputs, types), limit=sentence(rule))
        if self.infer is not None:
            found = self.infer(node, types)
            if len(found) != len(node.outputs):
                raise bad_node(node, f"{len(node.outputs)} outputs", limit=str(len(found)))
            return found
        dtypes = {each.name: found.dtype for each, found in zip(inputs, types, strict=True)}
        values = {**extents, **self._values(node)}
        return tuple(
            TensorType(_fill(each.shape, values), dtypes[each.like] if each.like else each.dtypes[0])
            for each in outputs
        )

    def attribute(self, name: str) -> Attribute[Any] | None:
        """The attribute of this name."""
        return self._attributes.get(name)

    @cached_property
    def _attributes(self) -> dict[str, Attribute[Any]]:
        return {each.name: each for each in self.attributes}

    @cached_property
    def _bounded(self) -> tuple[tuple[int, Parameter], ...]:
        """The inputs with bounded values, and their positions."""
        return tuple((at, each) for at, each in enumerate(self.inputs) if each.bounded)

    @cached_property
    def _factors(self) -> tuple[Attribute[Any], ...]:
        """The attributes that occur in patterns."""
        patterns = (tokens(each.shape) for each in (*self.inputs, *self.outputs))
        named = {factor for pattern in patterns for token in pattern for factor in token}
        return tuple(each for each in self.attributes if each.name in named)

    def expect_values(self, node: Node, constants: Mapping[str, Array]) -> None:
        """Raises ModelError (E105) if a constant input has values that its parameter does not permit."""
        for at, each in self._bounded:
            name = node.inputs[at] if has_input(node, at) else ""
            if name in constants and constants[name].size:
                least, most = constants[name].min(), constants[name].max()
                if not each.low <= least <= most <= each.high:
                    limit = f"{each.low:g}..{each.high:g}"
                    raise bad_node(node, f"{each.name} has values {least}..{most}", tensor=name, limit=limit)

    def _formals(
        self, node: Node, declared: Sequence[Parameter], names: Sequence[str], what: str
    ) -> tuple[Parameter, ...]:
        """The parameter of each of a node's inputs or outputs."""
        least = sum(not each.optional for each in declared)
        variadic = bool(declared) and declared[-1].variadic
        most = max(len(names), least) if variadic else len(declared)
        if not least <= len(names) <= most:
            limit = f"{least}" if least == most else f"{least}..{most}"
            wanted = ", ".join(each.name for each in declared)
            raise bad_node(node, f"{len(names)} {what}", limit=f"{limit} ({wanted})" if declared else limit)
        found = tuple(declared[min(at, len(declared) - 1)] for at in range(len(names)))
        for each, name in zip(found, names, strict=True):
            if not name and not each.optional and not (what == "outputs" and len(names) > 1):
                raise bad_node(node, f"without its {what.removesuffix('s')} {each.name}")
        return found

    def _expect_attributes(self, node: Node, rank: int) -> None:
        known = self._attributes
        for name, value in node.attrs.items():
            if name not in known:
                near = get_close_matches(name, known, 1)
                remedy = f"did you mean {near[0]}?" if near else None
                limit = ", ".join(known) or "no attributes"
                raise bad_node(node, f"attribute {name!r} is not one of {self.name}'s", limit=limit, remedy=remedy)
            if not known[name].allows(value, rank):
                raise bad_node(node, f"attribute {name} is {_text(value)}", limit=known[name].limit)
        for each in self.attributes:
            if each.required and each.name not in node.attrs:
                raise bad_node(node, f"attribute {each.name} is missing", limit=each.limit)

    def _expect_types(self, node: Node, inputs: Sequence[Parameter], types: Sequence[TensorType]) -> None:
        first: dict[str, str] = {}
        for name, each, found in zip(node.inputs, inputs, types, strict=True):
            if not name:
                continue
            allowed = (first[each.like],) if each.like in first else each.dtypes
            if each.variadic:
                allowed = (first.setdefault(each.name, found.dtype),) if found.dtype in allowed else allowed
            first.setdefault(each.name, found.dtype)
            if found.dtype not in allowed:
                raise ModelError(
                    "E107",
                    f"the element type of {each.name} is {found.dtype}",
                    node=node.name,
                    op=node.op,
                    tensor=name,
                    limit=", ".join(allowed),
                    remedy="convert the model to float32" if allowed == FLOAT else None,
                )

    def _extents(self, node: Node, inputs: Sequence[Parameter], types: Sequence[TensorType]) -> Extents:
        """The extents of the patterns' names; raises E105 for the first input that contradicts its pattern."""
        extents: Extents = {}
        values = self._values(node)
        for name, each, found in zip(node.inputs, inputs, types, strict=True):
            known = {**values, **extents}
            if name and not each.variadic and not _matches(each.shape, found.shape, values, extents):
                limit = f"[{', '.join(_extent_text(token, known) for token in tokens(each.shape))}]"
                raise bad_node(node, f"{each.name} has shape {list(found.shape)}", tensor=name, limit=limit)
        return extents

    def _values(self, node: Node) -> dict[str, int]:
        return {each.name: each(node) for each in self._factors}

    def _describe(self, node: Node, inputs: Sequence[Parameter], types: Sequence[TensorType]) -> str:
        """A node's inputs and attributes in words."""
        parts = [
            f"{each.name} {found}" for name, each, found in zip(node.inputs, inputs, types, strict=True) if name
        ]
        parts += [f"{name} {_text(value)}" for name, value in sorted(node.attrs.items())]
        return ", ".join(parts)


def problem(row: Op, node: Node, types: Sequence[TensorType]) -> NpucError | None:
    """What is wrong with a node with inputs of these types, if anything."""
    try:
        row.check_types(node, types)
    except NpucError as error:
        return error
    return None


def sentence(rule: Requirement) -> str:
    """The requirement as a sentence for users."""
    return (rule.__doc__ or rule.__name__).strip().rstrip(".")


def bad_node(
    node: Node, reason: str, *, tensor: str | None = None, limit: str | None = None, remedy: str | None = None
) -> ModelError:
    """The error (E105) for a node that contradicts its operator."""
    return ModelError("E105", reason, node=node.name, op=node.op, tensor=tensor, limit=limit, remedy=remedy)


def has_input(node: Node, index: int) -> bool:
    """Whether the node has the optional input with this index."""
    return index < len(node.inputs) and bool(node.inputs[index])


# patterns


@cache
def tokens(pattern: str) -> tuple[tuple[str, ...], ...]:
    """The factors of each extent; a name for any number of extents keeps its asterisk.

    >>> tokens("N group*I *S")
    (('N',), ('group', 'I'), ('*S',))
    """
    return tuple((each,) if each.startswith("*") else tuple(each.split("*")) for each in pattern.split())


def _matches(pattern: str, shape: Sequence[int], values: Mapping[str, int], extents: Extents) -> bool:
    """Whether a shape fits a pattern; newly bound names are added to extents."""
    wanted = tokens(pattern)
    many = next((at for at, each in enumerate(wanted) if each[0].startswith("*")), None)
    if many is None:
        return len(shape) == len(wanted) and all(map(_fits(values, extents), wanted, shape))
    behind = len(wanted) - many - 1
    end = len(shape) - behind
    if end < many:
        return False
    ends = zip((*wanted[:many], *wanted[many + 1 :]), (*shape[:many], *shape[end:]), strict=True)
    name, middle = wanted[many][0], tuple(shape[many:end])
    return (name == "*" or extents.setdefault(name, middle) == middle) and all(
        _fits(values, extents)(token, extent) for token, extent in ends
    )


def _fits(values: Mapping[str, int], extents: Extents) -> Callable[[tuple[str, ...], int], bool]:
    def fits(factors: tuple[str, ...], extent: int) -> bool:
        known, free = _product(factors, {**values, **extents})
        if not free:
            return extent == known
        if len(free) > 1 or known == 0 or extent % known:
            return False
        extents[free[0]] = extent // known
        return True

    return fits


def _product(factors: Iterable[str], values: Mapping[str, Any]) -> tuple[int, list[str]]:
    """The product of the known factors, and the unknown ones."""
    known, free = 1, list[str]()
    for each in factors:
        if each.isdigit():
            known *= int(each)
        elif each in values:
            known *= values[each]
        else:
            free.append(each)
    return known, free


def _fill(pattern: str, values: Mapping[str, Any]) -> tuple[int, ...]:
    shape: list[int] = []
    for token in tokens(pattern):
        if token[0].startswith("*"):
            shape.extend(values[token[0]])
        else:
            shape.append(_product(token, values)[0])
    return tuple(shape)


def _extent_text(token: tuple[str, ...], values: Mapping[str, Any]) -> str:
    """An extent of a pattern, with its value if known."""
    if token[0].startswith("*"):
        return ", ".join(map(str, values[token[0]])) if token[0] in values else f"{token[0][1:]}..."
    known, free = _product(token, values)
    return "*".join(([str(known)] if known != 1 or not free else []) + free)


def _text(value: Attr) -> str:
    return str(list(value)) if isinstance(value, tuple) else repr(value)


# helpers of many operators


def broadcast(node: Node, *shapes: tuple[int, ...]) -> tuple[int, ...]:
    """The common shape by numpy's broadcasting; raises E105 if there is none."""
    try:
        return tuple(int(extent) for extent in np.broadcast_shapes(*shapes))
    except ValueError:
        described = " and ".join(str(list(shape)) for shape in shapes)
        raise bad_node(node, f"shapes {described} do not broadcast") from None


def along(values: Array, axis: int, rank: int) -> Array:
    """A vector shaped so that it broadcasts along one axis of a tensor with `rank` dimensions."""
    return values.reshape([-1 if each == axis else 1 for each in range(rank)])


def has_elements(_node: Node, types: Sequence[TensorType]) -> bool:
    """There is at least one element."""
    return types[0].size > 0
