"""ONNX nodes whose automatic padding onnxruntime computes differently from ONNX, with the padding made explicit.

onnxruntime ignores dilations when it pads a pool, and gives a ConvTranspose whose kernel is smaller than its
stride fewer rows and columns than stride times extent. Source: ONNX, attribute auto_pad of these operators.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx
from onnx import helper

from npuc.ir import Node

WRITTEN_OUT = {"ConvTranspose": ("pads", "output_padding"), "MaxPool": ("pads",), "AveragePool": ("pads",)}
"""By operator, the attributes that take the place of auto_pad."""


def is_automatic(proto: onnx.NodeProto) -> bool:
    """Whether a node's padding is automatic and may be another one in onnxruntime."""
    return proto.op_type in WRITTEN_OUT and any(
        each.name == "auto_pad" and each.s.startswith(b"SAME_") for each in proto.attribute
    )


def written_out(proto: onnx.NodeProto, imported: Sequence[Node]) -> onnx.NodeProto:
    """A node with explicit padding, as the importer computed it. imported: the canonical nodes that it became."""
    read = next((each for each in imported if each.outputs[0] == proto.output[0]), None)
    if not is_automatic(proto) or read is None or read.op != proto.op_type:
        return proto
    explicit = WRITTEN_OUT[read.op]
    found = onnx.NodeProto()
    found.CopyFrom(proto)
    del found.attribute[:]
    found.attribute.extend(
        each for each in proto.attribute if each.name not in ("auto_pad", "output_shape", *explicit)
    )
    found.attribute.extend(
        helper.make_attribute(key, list(read.integers(key))) for key in explicit if key in read.attrs
    )
    return found
