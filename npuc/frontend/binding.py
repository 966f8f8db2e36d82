"""Static types of the graph's inputs: dynamic dimensions are bound by shapes from the user."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto

from npuc.errors import ModelError, NpucError, Problem
from npuc.ir import Array, TensorType
from npuc.onnx_files.external_data import LARGEST_TENSOR

INPUT_TYPES: dict[int, str] = {
    TensorProto.FLOAT: "float32",
    TensorProto.INT8: "int8",
    TensorProto.UINT8: "uint8",
    TensorProto.INT16: "int16",
    TensorProto.UINT16: "uint16",
    TensorProto.INT32: "int32",
    TensorProto.INT64: "int64",
    TensorProto.BOOL: "bool",
}

Dim = int | str
"""An extent, or the name of a dynamic dimension ("" if it has none)."""

ANONYMOUS = ("?", "None")
"""What exporters write as the name of any dynamic dimension; two of these need not be equal."""


def input_types(
    graph: onnx.GraphProto,
    constants: Collection[str],
    bound: Mapping[str, tuple[int, ...]],
    known: Mapping[int, str] = INPUT_TYPES,
) -> dict[str, TensorType]:
    """The types of the non-constant inputs, in order.

    known: permitted element types. A dimension bound in one input also binds those of the same name in others.
    Raises ModelError: E106 for every input that stays dynamic (the remedy is the flag that binds it), E107 for an
    element type that npuc does not run, E109 for a shape that does not fit; UnsupportedOperator (E202) for an
    input without elements.
    """
    inputs = [each for each in graph.input if each.name not in constants]
    names = [each.name for each in inputs]
    for name in bound:
        if name not in names:
            limit = f"inputs: {', '.join(names)}"
            raise ModelError("E109", "a shape is given, but the model has no such input", tensor=name, limit=limit)
    dtypes = {each.name: _element_type(each, known) for each in inputs}
    dims = {each.name: _dims(each) for each in inputs}
    empty = {each.name: axis for each in inputs for axis in _empty_axes(each)[:1]}
    named = _bound_names(dims, bound)
    types: dict[str, TensorType] = {}
    problems: list[Problem] = []
    for name in names:
        shape = bound.get(name) or _static_shape(dims[name], named)
        if shape is None:
            found = _unbound(name, dims[name], empty.get(name))
            problems.append(replace(found, **_reader(graph, name)))
        else:
            types[name] = TensorType(tuple(shape), dtypes[name])
            if types[name].size > LARGEST_TENSOR:
                limit = f"{LARGEST_TENSOR} elements"
                raise ModelError("E105", f"the input's shape is {list(shape)}", tensor=name, limit=limit)
    if problems:
        raise NpucError.of(problems)
    return types


def _element_type(value: onnx.ValueInfoProto, types: Mapping[int, str]) -> str:
    """The numpy name of an input's element type."""
    kind = value.type.WhichOneof("value")
    code = value.type.tensor_type.elem_type if kind == "tensor_type" else 0
    if code in types:
        return types[code]
    known = code in TensorProto.DataType.values()
    found = TensorProto.DataType.Name(code).lower() if known and code else kind or "unknown"
    limit = ", ".join(types.values())
    remedy = "convert the model to float32"
    raise ModelError("E107", f"the input's type is {found}", tensor=value.name, limit=limit, remedy=remedy)


def _dims(value: onnx.ValueInfoProto) -> Sequence[Dim] | None:
    """The declared dimensions; None if not even the rank is known."""
    if not value.type.tensor_type.HasField("shape"):
        return None
    return [dim.dim_value if dim.dim_value > 0 else _name(dim) for dim in value.type.tensor_type.shape.dim]


def _name(dim: onnx.TensorShapeProto.Dimension) -> str:
    return "" if dim.dim_param in ANONYMOUS else dim.dim_param


def _reader(graph: onnx.GraphProto, name: str) -> dict[str, str]:
    """The first node that reads an input."""
    nodes = enumerate(graph.node)
    readers = ((node.name or f"{node.op_type}_{at}", node.op_type) for at, node in nodes if name in node.input)
    return dict(zip(("node", "op"), next(readers, ()), strict=False))


def _empty_axes(value: onnx.ValueInfoProto) -> list[int]:
    """The dimensions declared as 0: the tensor is empty, or 0 stands for an unknown size."""
    dims = enumerate(value.type.tensor_type.shape.dim)
    return [axis for axis, dim in dims if dim.WhichOneof("value") == "dim_value" and not dim.dim_value]


def _bound_names(dims: Mapping[str, Sequence[Dim] | None], bound: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The named dimensions that follow from the given shapes; raises E109 if these contradict the model."""
    named: dict[str, int] = {}
    for name, shape in bound.items():
        declared = dims[name]
        written = ",".join(map(str, shape))
        if any(extent < 1 for extent in shape):
            raise ModelError("E109", f"the shape {written} is not positive", tensor=name)
        if declared is None:
            continue
        limit = f"{len(declared)} dimensions: {_hint(declared)}"
        if len(declared) != len(shape):
            raise ModelError("E109", f"the shape {written} has {len(shape)} dimensions", tensor=name, limit=limit)
        for dim, extent in zip(declared, shape, strict=True):
            expected = dim if isinstance(dim, int) else named.setdefault(dim, extent) if dim else extent
            if expected != extent:
                reason = f"the shape {written} has {extent} where the model has {expected}"
                raise ModelError("E109", reason, tensor=name, limit=limit)
    return named


def _static_shape(dims: Sequence[Dim] | None, named: Mapping[str, int]) -> tuple[int, ...] | None:
    """The shape if every dimension is known."""
    extents = [dim if isinstance(dim, int) else named.get(dim) for dim in dims] if dims is not None else [None]
    known = tuple(extent for extent in extents if extent is not None)
    return known if len(known) == len(extents) else None


def _hint(dims: Sequence[Dim]) -> str:
    """The shape in command-line notation: an unknown first dimension (the batch) as 1, others as <name>."""
    texts = [
        str(dim) if isinstance(dim, int) else "1" if axis == 0 else f"<{dim or f'dim{axis}'}>"
        for axis, dim in enumerate(dims)
    ]
    return ",".join(texts)


def _unbound(name: str, dims: Sequence[Dim] | None, empty: int | None) -> Problem:
    if dims is not None and empty is not None:
        remedy = f"if 0 stands for a dynamic dimension: --input-shape {name}={_hint(dims)}"
        return Problem("E202", f"dimension {empty} of the input is 0", None, None, name, "at least 1", remedy)
    if dims is None:
        reason, shape = "the input has no shape", "1,3,224,224"
        return Problem("E106", reason, tensor=name, remedy=f"give it, for instance --input-shape {name}={shape}")
    unknown = [dim or f"number {axis}" for axis, dim in enumerate(dims) if not isinstance(dim, int)]
    reason = f"the input has {len(unknown)} dynamic dimension{'s' * (len(unknown) > 1)} ({', '.join(unknown)})"
    return Problem("E106", reason, tensor=name, remedy=f"--input-shape {name}={_hint(dims)}")


def bound_values(model: onnx.ModelProto, bind: Sequence[tuple[str, float]]) -> dict[str, Array]:
    """The values bound to inputs, in the inputs' types; a dimension of that name is bound in the model's inputs.

    Raises ModelError (E109) if one is neither a scalar input nor the name of a dimension, or its type has no such
    value.
    """
    found: dict[str, Array] = {}
    inputs = {each.name: each.type.tensor_type for each in model.graph.input}
    for name, value in bind:
        if name not in inputs:
            _bind_dimension(model.graph, name, value)
            continue
        shape = [each.dim_value for each in inputs[name].shape.dim]
        if any(extent != 1 for extent in shape):
            raise ModelError(
                "E109", f"one value is given for an input of shape {shape}", tensor=name, limit="a scalar"
            )
        dtype = onnx.helper.tensor_dtype_to_np_dtype(inputs[name].elem_type)
        if not _is_value(value, dtype):
            raise ModelError("E109", f"{value:g} is no value of an input of type {dtype}", tensor=name)
        found[name] = np.full(shape, value, dtype)
    return found


def _bind_dimension(graph: onnx.GraphProto, name: str, value: float) -> None:
    """Gives a named dimension of the inputs its extent. Raises ModelError (E109)."""
    every = [dim for each in graph.input for dim in each.type.tensor_type.shape.dim]
    found = [dim for dim in every if name and _name(dim) == name]
    if not found:
        named = ", ".join(dict.fromkeys(filter(None, map(_name, every)))) or "none"
        limit = f"inputs: {', '.join(each.name for each in graph.input)}; named dimensions: {named}"
        reason = "a value is given, but the model has no such input and no such dimension"
        raise ModelError("E109", reason, tensor=name, limit=limit)
    if not (value.is_integer() and 1 <= value <= LARGEST_TENSOR):
        raise ModelError(
            "E109", f"{value:g} is no extent of the dimension '{name}'", limit="a whole number from 1"
        )
    for dim in found:
        dim.dim_value = int(value)


def _is_value(value: float, dtype: np.dtype[Any]) -> bool:
    """Whether an element type has a number: floats round, integers and bool do not."""
    if dtype.kind not in "iu":
        return dtype.kind != "b" or value in (0, 1)
    limits = np.iinfo(dtype)
    return value == value // 1 and limits.min <= value <= limits.max


def with_bound(model: onnx.ModelProto, bind: Mapping[str, float]) -> onnx.ModelProto:
    """The model with some of its scalar inputs turned into constants; it is modified. Raises E109."""
    for name, value in bound_values(model, [*bind.items()]).items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(value, name))
        model.graph.input.remove(next(each for each in model.graph.input if each.name == name))
    return model
