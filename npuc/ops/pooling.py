"""Pooling over windows and over the whole image."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops.attributes import CEIL_MODE, COUNT_INCLUDE_PAD, DILATIONS, PADS, STRIDES, WINDOW
from npuc.ops.declaration import FLOAT, NUMBERS, Op, Parameter, along
from npuc.ops.windows import Window, window_of

if TYPE_CHECKING:
    from npuc.onnx_files.export import OnnxEmitter


def _little_padding(node: Node, _types: Sequence[TensorType]) -> bool:
    """The padding is below the window's number of taps, dilated or not, as onnxruntime demands."""
    window = window_of(node, WINDOW(node))
    return all(max(b, e) < taps for b, e, taps in zip(window.begins, window.ends, window.kernel, strict=True))


def pool_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """The type of the pooled map; of the element type of x."""
    (x,) = types
    return (TensorType((*x.shape[:2], *window_of(node, WINDOW(node)).extents(node, x.shape[2:])), x.dtype),)


def _global_types(_node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x = types[0].shape
    return (TensorType((*x[:2], *(1 for _ in x[2:]))),)


def _max_pool(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,) = inputs
    window = window_of(node, WINDOW(node))
    extents = window.extents(node, x.shape[2:])
    lowest = -np.inf if np.issubdtype(x.dtype, np.floating) else np.iinfo(x.dtype).min
    padded = window.padded(x, lowest, extents)
    return (reduce(np.maximum, (padded[(..., *index)] for index in window.taps(extents))).copy(),)


def _counted(window: Window, axis: int, extent: int, count: int, include_pad: bool) -> Array:
    """The number of taps of each window that count along one axis: inside the input, or also in its padding."""
    begin, end = window.begins[axis], window.ends[axis]
    first = np.arange(count)[:, None] * window.strides[axis]
    position = first + np.arange(window.kernel[axis]) * window.dilations[axis]
    low, high = (0, begin + extent + end) if include_pad else (begin, begin + extent)
    return ((position >= low) & (position < high)).sum(axis=1).astype(np.float32)


def _average_pool(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,) = inputs
    window = window_of(node, WINDOW(node))
    extents = window.extents(node, x.shape[2:])
    padded = window.padded(x, 0, extents)
    y = sum((padded[(..., *index)] for index in window.taps(extents)), start=np.float32(0))
    include_pad = COUNT_INCLUDE_PAD(node)
    for axis, count in enumerate(extents):
        counted = _counted(window, axis, x.shape[2 + axis], count, include_pad)
        y = y / along(counted, 2 + axis, x.ndim)
    return (np.asarray(y, np.float32),)


def _global_average(_node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,) = inputs
    return (x.mean(axis=tuple(range(2, x.ndim)), keepdims=True),)


def _global_max(_node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,) = inputs
    return (x.max(axis=tuple(range(2, x.ndim)), keepdims=True),)


def _max_pool_onnx(node: Node, emit: OnnxEmitter) -> None:
    """onnxruntime does not support it for int16."""
    emit.through_float(node, "int16")


def _average_pool_onnx(node: Node, emit: OnnxEmitter) -> None:
    """Dilations are available only since opset 19."""
    emit.plain(node, () if max(DILATIONS(node), default=1) > 1 else (DILATIONS.name,))


WINDOWED = (WINDOW, STRIDES, PADS, DILATIONS, CEIL_MODE)
Y = Parameter("y", like="x")


def _x(dtypes: tuple[str, ...] = FLOAT) -> tuple[Parameter, ...]:
    return (Parameter("x", dtypes, "N C L *S"),)


OPERATORS = (
    Op(
        "MaxPool",
        "The largest element under a window; padding never wins.",
        _x(NUMBERS),
        (Y,),
        _max_pool,
        WINDOWED,
        (_little_padding,),
        pool_types,
        _max_pool_onnx,
    ),
    Op(
        "AveragePool",
        "The mean under a window, with or without its padding.",
        _x(),
        (Y,),
        _average_pool,
        (*WINDOWED, COUNT_INCLUDE_PAD),
        (_little_padding,),
        pool_types,
        _average_pool_onnx,
    ),
    Op("GlobalAveragePool", "The mean of each channel.", _x(), (Y,), _global_average, infer=_global_types),
    Op("GlobalMaxPool", "The largest element of each channel.", _x(), (Y,), _global_max, infer=_global_types),
)

AVERAGES = ("AveragePool", "GlobalAveragePool")
SELECTION = ("MaxPool", "GlobalMaxPool")
"""Operators that select each result from their elements."""
