"""Heavy constants stored outside an ONNX model, so that sessions share them without copying."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from npuc.ir import Array
from npuc.onnx_files.wire import MEMORY, apart
from npuc.storage.mapped import HEAVY
from npuc.storage.pieces import Content

if TYPE_CHECKING:
    import onnx


def without_weights(
    model: onnx.ModelProto, folder: Path | None = None
) -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """The model and its heavy float32 constants separately, for `session`; they are removed from the given model.

    folder: of the model's external data. Raises ModelError (E105, E108) as `array_of`.
    """
    import onnx

    from npuc.onnx_files.external_data import array_of

    weights: dict[str, Array] = {}
    for tensor in model.graph.initializer:
        elsewhere = folder is not None and tensor.data_location == tensor.EXTERNAL
        raw = tensor.data_type == tensor.FLOAT and tensor.ByteSize() > HEAVY and tensor.HasField("raw_data")
        if elsewhere or raw:
            weights[tensor.name] = array_of(tensor, folder)
            outside(tensor)
    return onnx.ModelProto.FromString(model.SerializeToString()), weights


def outside(tensor: onnx.TensorProto) -> None:
    """Reduces a constant to name, type and shape; `session` receives its value separately."""
    tensor.ClearField("raw_data")
    tensor.ClearField("external_data")
    tensor.data_location = tensor.EXTERNAL
    tensor.external_data.add(key="location", value=MEMORY)


def light(content: Content) -> tuple[bytes, Mapping[str, Array]]:
    """The bytes of a model without the constants that are separate arrays in the content, and these constants."""
    if isinstance(content, bytes):
        return content, {}
    found, spans = apart(content)
    weights = {name: content.array(span) for name, span in spans.items()}
    return found, {name: each for name, each in weights.items() if each is not None}
