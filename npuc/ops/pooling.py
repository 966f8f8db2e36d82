"""Pooling over windows and over the whole image."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops.rules import along, expect_float, expect_rank
from npuc.ops.table import Op, bad_node, register
from npuc.ops.windows import Window, window_of


def _pool_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x = types[0]
    expect_rank(node, x, 3)
    window = window_of(node, node.integers("kernel_shape"))
    if len(window.kernel) != len(x.shape) - 2:
        reason = f"kernel_shape {list(window.kernel)} for an input of shape {list(x.shape)}"
        raise bad_node(node, reason, limit=f"{len(x.shape) - 2} values")
    for begin, end, reach in zip(window.begins, window.ends, window.reach, strict=True):
        if max(begin, end) >= reach:
            reason = f"padding of {max(begin, end)} for a window that spans {reach}"
            raise bad_node(node, reason, limit="padding smaller than the window")
    return (TensorType((*x.shape[:2], *window.extents(node, x.shape[2:])), x.dtype),)


def _average_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    expect_float(node, types)
    return _pool_types(node, types)


def _global_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    expect_float(node, types)
    x = types[0]
    expect_rank(node, x, 3)
    return (TensorType((*x.shape[:2], *(1 for _ in x.shape[2:]))),)


def _max_pool(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,) = inputs
    window = window_of(node, node.integers("kernel_shape"))
    extents = window.extents(node, x.shape[2:])
    lowest = -np.inf if np.issubdtype(x.dtype, np.floating) else np.iinfo(x.dtype).min
    padded = window.padded(x, lowest, extents)
    return (reduce(np.maximum, (padded[(..., *index)] for index in window.taps(extents))).copy(),)


def _counted(window: Window, axis: int, extent: int, count: int, include_pad: bool) -> Array:
    """How many taps of each window along one axis count: those inside the input, or inside its padding."""
    begin, end = window.begins[axis], window.ends[axis]
    first = np.arange(count)[:, None] * window.strides[axis]
    position = first + np.arange(window.kernel[axis]) * window.dilations[axis]
    low, high = (0, begin + extent + end) if include_pad else (begin, begin + extent)
    return ((position >= low) & (position < high)).sum(axis=1).astype(np.float32)


def _average_pool(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,) = inputs
    window = window_of(node, node.integers("kernel_shape"))
    extents = window.extents(node, x.shape[2:])
    padded = window.padded(x, 0, extents)
    y = sum((padded[(..., *index)] for index in window.taps(extents)), start=np.float32(0))
    include_pad = bool(node.integer("count_include_pad"))
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


register(
    Op("MaxPool", "The largest element under a window; padding never wins.", _pool_types, _max_pool),
    Op("AveragePool", "The mean under a window, with or without its padding.", _average_types, _average_pool),
    Op("GlobalAveragePool", "The mean of each channel.", _global_types, _global_average),
    Op("GlobalMaxPool", "The largest element of each channel.", _global_types, _global_max),
)
