"""Heavy constants beside an ONNX model instead of inside it, so that sessions share them uncopied."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from npuc.ir import Array

if TYPE_CHECKING:
    import onnx

HEAVY = 1 << 20
"""Bytes of a constant that is better not copied."""


def without_weights(model: onnx.ModelProto) -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """The model and its heavy float32 constants apart, for `session`; the model that is given loses them."""
    import onnx

    weights: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        if tensor.data_type == tensor.FLOAT and tensor.ByteSize() > HEAVY and tensor.HasField("raw_data"):
            weights[tensor.name] = onnx.numpy_helper.to_array(tensor)
            outside(tensor)
    return onnx.ModelProto.FromString(model.SerializeToString()), weights


def outside(tensor: onnx.TensorProto) -> None:
    """Leaves name, type and shape of a constant, whose value `session` gets beside the model."""
    tensor.ClearField("raw_data")
    tensor.data_location = tensor.EXTERNAL
    tensor.external_data.add(key="location", value="memory")
