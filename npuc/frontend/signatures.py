"""Signatures of operators: number of inputs, attributes with types and defaults.

Those of ONNX come from the onnx package. The contrib operators that onnxruntime's quantiser writes compute the
same as an ONNX operator, on integers with scales and zero points, and have that operator's attributes; others are
those that its optimiser writes. Source: onnxruntime, docs/ContribOperators.md. Of `ai.onnx.ml`, what is arithmetic
on tensors. Source: ONNX, docs/Operators-ml.md.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import onnx
from onnx import AttributeProto

from npuc.errors import ModelError
from npuc.frontend.reading import ONNX_DOMAINS
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
        {key: _attribute_value(each, None) for key, each in defaults.items() if each.type},
        tuple(key for key, each in attributes.items() if each.required),
        schema.deprecated and op not in STILL_DEFINED,
    )


def _attribute_value(attribute: AttributeProto, folder: Path | None) -> Any:
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
            given[each.name] = _attribute_value(each, folder)
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


DOMAIN = "com.microsoft"
ML_DOMAIN = "ai.onnx.ml"
ML = ("Scaler",)
"""The operators of `ai.onnx.ml`; all are in its first version."""
UNBOUNDED = 2**31 - 1
NORMALISED = 23
"""The opset of RMSNormalization; onnxruntime's optimiser writes it, and LayerNormalization, at any opset."""
NARROW_INTEGERS = 21
"""The first opset with integers of 4 bits."""


@frozen
class Contrib:
    """An operator: the ONNX operator with its attributes, the least and most inputs, additional attributes."""

    like: str
    inputs: tuple[int, int]
    more: Mapping[str, Any] | None = None
    mandatory: tuple[str, ...] = ()
    """Additional attributes without a default, all integers."""
    outputs: int = 1
    """The most outputs."""


EPSILON = 1e-12
"""The default where onnxruntime fused a sum and a normalisation."""
PARAMETERS = ("activation_alpha", "activation_beta", "activation_gamma")
ORDERS = ("transA", "transB", "transBatchA", "transBatchB")
CONTRIB: Mapping[str, Contrib] = {
    "QuantizeLinear": Contrib("QuantizeLinear", (2, 3)),
    "DequantizeLinear": Contrib("DequantizeLinear", (2, 3)),
    "QLinearAdd": Contrib("Add", (7, 8)),
    "QLinearMul": Contrib("Mul", (7, 8)),
    "QLinearSigmoid": Contrib("Sigmoid", (4, 5)),
    "QLinearLeakyRelu": Contrib("LeakyRelu", (4, 5)),
    "QLinearSoftmax": Contrib("Softmax", (5, 5), {"opset": 0}),
    "QLinearAveragePool": Contrib("AveragePool", (4, 5), {"channels_last": 0}),
    "QLinearGlobalAveragePool": Contrib("GlobalAveragePool", (5, 5), {"channels_last": 0}),
    "QLinearConcat": Contrib("Concat", (5, UNBOUNDED)),
    "QGemm": Contrib("Gemm", (6, 9)),
    "Gelu": Contrib("Neg", (1, 1), {"approximate": "none"}),
    "BiasGelu": Contrib("Add", (2, 2)),
    "FastGelu": Contrib("Add", (1, 2)),
    "QuickGelu": Contrib("Neg", (1, 1), {"alpha": 1.702}),
    "SkipLayerNormalization": Contrib("Add", (3, 5), {"epsilon": EPSILON}, outputs=4),
    "SkipSimplifiedLayerNormalization": Contrib("Add", (3, 4), {"epsilon": EPSILON}, outputs=4),
    "EmbedLayerNormalization": Contrib("Add", (7, 9), {"epsilon": EPSILON, "mask_index_type": 0}, outputs=3),
    "FusedConv": Contrib("Conv", (2, 4), {"activation": "", "activation_params": ()}),
    "FusedGemm": Contrib("Gemm", (2, 3), {"activation": "", **dict.fromkeys(PARAMETERS, 0.0)}),
    "FusedMatMul": Contrib("MatMul", (2, 2), {"alpha": 1.0, **dict.fromkeys(ORDERS, 0)}),
    "MatMulNBits": Contrib(
        "MatMul", (3, 6), {"bits": 4, "accuracy_level": 0, "weight_prepacked": 0}, ("N", "K", "block_size")
    ),
    "RotaryEmbedding": Contrib(
        "Neg",
        (4, 4),
        {
            **dict.fromkeys(("interleaved", "num_heads", "rotary_embedding_dim", "is_packed_batching"), 0),
            "scale": 1.0,
        },
    ),
}
KINDS: Mapping[type, str] = {int: "INT", float: "FLOAT", str: "STRING", tuple: "FLOATS"}
"""The types of additional attributes."""


def signature_of(proto: onnx.NodeProto, opset: int) -> Signature | None:
    """The signature of a node's operator, or None if it is not among these."""
    if proto.domain in ONNX_DOMAINS:
        if proto.op_type == "SimplifiedLayerNormalization":
            like = signature("RMSNormalization", NORMALISED)
            return replace(like, outputs=(1, 2)) if like is not None else None
        return signature(proto.op_type, max(opset, 17) if proto.op_type == "LayerNormalization" else opset)
    if proto.domain == ML_DOMAIN:
        return signature(proto.op_type, 1, ML_DOMAIN) if proto.op_type in ML else None
    found = CONTRIB.get(proto.op_type) if proto.domain == DOMAIN else None
    like = signature(found.like, max(opset, 13)) if found is not None else None
    if found is None or like is None:
        return None
    more = found.more or {}
    return replace(
        like,
        inputs=found.inputs,
        required=(False,),
        outputs=(1, found.outputs),
        kinds={
            **like.kinds,
            **{key: KINDS[type(each)] for key, each in more.items()},
            **dict.fromkeys(found.mandatory, "INT"),
        },
        defaults={**like.defaults, **more},
        mandatory=(*like.mandatory, *found.mandatory),
    )


def standard_form(proto: onnx.NodeProto, opset: int) -> tuple[onnx.NodeProto, int]:
    """A node as the ONNX operator of its name that computes the same, and an opset that has its types.

    onnxruntime's QuantizeLinear and DequantizeLinear take integers of 4 bits, as ONNX's do from opset 21 on.
    """
    if proto.domain != DOMAIN or proto.op_type not in ("QuantizeLinear", "DequantizeLinear"):
        return proto, opset
    made = onnx.NodeProto()
    made.CopyFrom(proto)
    made.domain = ""
    return made, max(opset, NARROW_INTEGERS)


def is_known(proto: onnx.NodeProto) -> bool:
    """Whether a node's operator is among these."""
    return proto.op_type in {DOMAIN: CONTRIB, ML_DOMAIN: ML}.get(proto.domain, ())
