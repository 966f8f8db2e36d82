"""Operator signatures from ONNX: number of inputs, attributes with types and defaults."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto

from npuc.errors import ModelError
from npuc.frozen import frozen
from npuc.onnx_files.external_data import array_of

STILL_DEFINED = ("GroupNormalization",)
"""Deprecated in one opset, in favour of another meaning later, but still defined and run."""


@frozen
class Signature:
    """An operator in one opset; `required` has an entry per formal input, the last of which may be variadic."""

    inputs: tuple[int, int]
    outputs: tuple[int, int]
    required: tuple[bool, ...]
    kinds: Mapping[str, str]
    defaults: Mapping[str, Any]
    mandatory: tuple[str, ...]
    deprecated: bool


@cache
def signature(op: str, opset: int, domain: str = "") -> Signature | None:
    """The signature of a standard ONNX operator, or None if this opset does not have it."""
    try:
        schema = onnx.defs.get_schema(op, opset, domain)
    except onnx.defs.SchemaError:
        return None
    attributes = schema.attributes
    defaults = {key: each.default_value for key, each in attributes.items()}
    optional = onnx.defs.OpSchema.FormalParameterOption.Optional
    return Signature(
        (schema.min_input, schema.max_input),
        (schema.min_output, schema.max_output),
        tuple(each.option != optional for each in schema.inputs),
        {key: str(each.type).rpartition(".")[2] for key, each in attributes.items()},
        {key: attribute_value(each, None) for key, each in defaults.items() if each.type},
        tuple(key for key, each in attributes.items() if each.required),
        schema.deprecated and op not in STILL_DEFINED,
    )


def attribute_value(attribute: AttributeProto, folder: Path | None) -> Any:
    """The value as int, float, str, a tuple of these, an array or a graph."""
    kind = AttributeProto.AttributeType.Name(attribute.type)
    if kind == "TENSOR":
        return array_of(attribute.t, folder)
    if kind == "STRING":
        return attribute.s.decode()
    if kind == "STRINGS":
        return tuple(each.decode() for each in attribute.strings)
    if kind in ("INTS", "FLOATS"):
        return tuple(attribute.ints if kind == "INTS" else attribute.floats)
    if kind == "FLOAT":
        return attribute.f
    return attribute.i if kind == "INT" else attribute.g


def attributes_of(proto: onnx.NodeProto, name: str, found: Signature, folder: Path | None) -> dict[str, Any]:
    """All attributes of a node, with defaults for absent ones.

    Raises ModelError (E105) for an attribute that is unknown, repeated or of the wrong type.
    """

    def bad(reason: str) -> ModelError:
        return ModelError("E105", reason, node=name, op=proto.op_type)

    given: dict[str, Any] = {}
    for each in proto.attribute:
        if each.name not in found.kinds:
            raise bad(f"the operator has no attribute {each.name!r}")
        if each.name in given:
            raise bad(f"the attribute {each.name!r} is given twice")
        kind = AttributeProto.AttributeType.Name(each.type) if each.type in range(15) else str(each.type)
        if kind != found.kinds[each.name]:
            raise bad(f"the attribute {each.name!r} is {kind}, not {found.kinds[each.name]}")
        try:
            given[each.name] = attribute_value(each, folder)
        except UnicodeDecodeError:
            raise bad(f"the attribute {each.name!r} is no text") from None
    for key in found.mandatory:
        if key not in given:
            raise bad(f"the attribute {key!r} is missing")
    return {**found.defaults, **given}


def check_arity(proto: onnx.NodeProto, name: str, found: Signature) -> None:
    """Raises ModelError (E105) for too few or too many inputs or outputs, or a missing required one."""
    for what, count, (least, most) in (
        ("inputs", len(proto.input), found.inputs),
        ("outputs", len(proto.output), found.outputs),
    ):
        if not least <= count <= most:
            limit = (
                f"{least}" if least == most else f"{least} to {most}" if most < 2**31 - 1 else f"at least {least}"
            )
            raise ModelError("E105", f"the node has {count} {what}", node=name, op=proto.op_type, limit=limit)
    for index, tensor in enumerate(proto.input):
        if not tensor and found.required[min(index, len(found.required) - 1)]:
            raise ModelError("E105", f"input {index} is absent, but needed", node=name, op=proto.op_type)
