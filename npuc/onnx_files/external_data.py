"""Tensors of a model as numpy arrays, including those stored in files beside the model."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper

from npuc.errors import ModelError
from npuc.ir import Array
from npuc.onnx_files.wire import MEMORY, split_weights
from npuc.storage.mapped import HEAVY, Content, map_copy
from npuc.system.budget import expect_room

PLAIN = ("float32", "float64", "int8", "uint8", "int32", "int64")
"""Element types with the same byte layout in files and in memory."""


def array_of(tensor: onnx.TensorProto, folder: Path | None) -> Array:
    """The tensor's value.

    Raises ModelError: E108 for external data that is missing, too short or outside the folder; E107 for an element
    type that numpy lacks; E105 if data and shape contradict each other.
    """
    name = tensor.name or None
    if any(not 0 <= extent <= LARGEST_TENSOR for extent in (*tensor.dims, prod(tensor.dims))):
        limit = f"at most {LARGEST_TENSOR} elements"
        raise ModelError("E105", f"a constant of shape {list(tensor.dims)}", tensor=name, limit=limit)
    if tensor.data_type not in onnx.TensorProto.DataType.values() or tensor.data_type == 0:
        raise ModelError("E107", f"a constant of the unknown element type {tensor.data_type}", tensor=name)
    if tensor.data_location == onnx.TensorProto.EXTERNAL:
        path, offset, length = _external_data(tensor, folder)
        if length >= HEAVY and str(_dtype(tensor)) in PLAIN:
            return _map(tensor, path, offset, length)
        tensor = _with_external_data(tensor, path, offset, length)
    try:
        return numpy_helper.to_array(tensor)
    except (ValueError, TypeError, KeyError, IndexError) as error:
        reason = f"the data of this constant does not fit its shape {list(tensor.dims)}"
        raise ModelError("E105", reason, tensor=name) from error


def _external_data(tensor: onnx.TensorProto, folder: Path | None) -> tuple[Path, int, int]:
    """The file with the tensor's bytes, their offset and length."""
    entries = {entry.key: entry.value for entry in tensor.external_data}
    path = _external_path(tensor.name, entries.get("location", ""), folder)
    offset = _number(tensor.name, entries, "offset", 0)
    needed = _bytes_needed(tensor)
    length = _number(tensor.name, entries, "length", needed)
    if length != needed:
        reason = f"the external data has {length} bytes, the shape {list(tensor.dims)} needs {needed}"
        raise ModelError("E108", reason, tensor=tensor.name)
    if offset + length > path.stat().st_size:
        reason = f"{path.name} ends before the {length} bytes at offset {offset}"
        raise ModelError("E108", reason, tensor=tensor.name, remedy="export or download the model again")
    return path, offset, length


def _map(tensor: onnx.TensorProto, path: Path, offset: int, length: int) -> Array:
    """The tensor's value, mapped from the file instead of loaded."""
    expect_room(length, "a constant", tensor=tensor.name)
    try:
        return map_copy(path, offset, length, _dtype(tensor)).reshape(tuple(tensor.dims))
    except (OSError, ValueError) as error:
        raise ModelError("E108", f"{path.name} cannot be read: {error}", tensor=tensor.name) from error


def _with_external_data(tensor: onnx.TensorProto, path: Path, offset: int, length: int) -> onnx.TensorProto:
    """The tensor with its bytes included."""
    expect_room(3 * length, "a constant", tensor=tensor.name)  # as read, as a message, as an array
    with path.open("rb") as file:
        file.seek(offset)
        data = file.read(length)
    inside = onnx.TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    inside.raw_data = data
    return inside


def _external_path(name: str, location: str, folder: Path | None) -> Path:
    """The file with a tensor's data; it must lie inside the model's folder, links and ".." resolved."""
    limit = "a regular file inside the model's folder"
    if folder is None:
        raise ModelError("E108", "external data of a model that has no folder", tensor=name, limit=limit)
    try:
        root = folder.resolve()
        path = Path(root, location).resolve()
        inside = path.is_relative_to(root)
        found = inside and path.is_file()
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError("E108", f"{location!r} is not a path", tensor=name, limit=limit) from error
    if not inside:
        reason = f"the external data {location!r} lies outside the model's folder"
        raise ModelError("E108", reason, tensor=name, limit=limit)
    if not found:
        raise ModelError("E108", f"the external data file {location!r} is missing", tensor=name, limit=limit)
    return path


def _number(name: str, entries: dict[str, str], key: str, default: int) -> int:
    text = entries.get(key, str(default))
    if not text.isdecimal() or len(text) > 18:
        raise ModelError("E108", f"the external data's {key} is {text!r}", tensor=name, limit="a number of bytes")
    return int(text)


def _dtype(tensor: onnx.TensorProto) -> np.dtype[Any]:
    return onnx.helper.tensor_dtype_to_np_dtype(tensor.data_type)


def _bytes_needed(tensor: onnx.TensorProto) -> int:
    if tensor.data_type == onnx.TensorProto.STRING:
        raise ModelError("E107", "strings cannot be external data", tensor=tensor.name)
    bits = _dtype(tensor).itemsize * 8
    type_name = onnx.TensorProto.DataType.Name(tensor.data_type)
    if type_name.endswith(("INT4", "E2M1")):
        bits = 4
    return (prod(tensor.dims) * bits + 7) // 8


LARGEST_TENSOR = 2**31
"""Elements of a tensor, and of each of its dimensions."""

LARGEST_CONSTANT = 2**28
"""Elements of a computed constant."""


def without_weights(
    model: onnx.ModelProto, folder: Path | None = None
) -> tuple[onnx.ModelProto, Mapping[str, Array]]:
    """The model and its heavy float32 constants separately, for `session`; they are removed from the given model.

    folder: of the model's external data. Raises ModelError (E105, E108) as `array_of`.
    """
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
    found, spans = split_weights(content)
    weights = {name: content.array(span) for name, span in spans.items()}
    return found, {name: each for name, each in weights.items() if each is not None}
