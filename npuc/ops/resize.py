"""Resize: nearest, linear and cubic interpolation, one axis after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops.attributes import (
    COORDINATES,
    CUBIC_COEFF_A,
    EXCLUDE_OUTSIDE,
    NEAREST_MODE,
    RESIZE_MODE,
    SCALES,
    SIZES,
)
from npuc.ops.declaration import Op, Parameter, along

if TYPE_CHECKING:
    from npuc.onnx_files.export import OnnxEmitter


def _interpolable(node: Node, types: Sequence[TensorType]) -> bool:
    """Integers are only resized by taking the nearest element; scales are positive."""
    return (types[0].dtype == "float32" or RESIZE_MODE(node) == "nearest") and min(SCALES(node)) > 0


def _resizing(node: Node, types: Sequence[TensorType]) -> bool:
    """Where no extent changes, all scales are 1."""
    return types[0].shape != SIZES(node) or all(scale == 1 for scale in SCALES(node))


def _types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return (TensorType(SIZES(node), types[0].dtype),)


def source_positions(node: Node, extent: int, size: int, scale: float) -> Array:
    """The position of each output element of one axis in the input, in elements (float32, as onnxruntime)."""
    at, factor, half = np.arange(size, dtype=np.float32), np.float32(scale), np.float32(0.5)
    kind = COORDINATES(node)
    if kind == "asymmetric":
        return at / factor
    if kind == "align_corners":
        return at * np.float32(extent - 1) / np.float32(size - 1) if size > 1 else np.zeros_like(at)
    if kind == "pytorch_half_pixel" and size == 1:
        return np.zeros_like(at)
    return (at + half) / factor - half


def _nearest(node: Node, position: Array) -> tuple[Array, Array]:
    """One tap with weight 1."""
    rounding = NEAREST_MODE(node)
    if rounding == "round_prefer_floor":
        index = np.ceil(position - np.float32(0.5))
    elif rounding == "round_prefer_ceil":
        index = np.floor(position + np.float32(0.5))
    else:
        index = np.floor(position) if rounding == "floor" else np.ceil(position)
    return index[None].astype(np.int64), np.ones((1, position.size), np.float32)


def _linear(position: Array, extent: int) -> tuple[Array, Array]:
    """Two taps; a position outside the input counts as its edge."""
    inside = np.clip(position, 0, extent - 1)
    low = np.floor(inside)
    index = np.stack([low, low + 1]).astype(np.int64)
    return index, np.stack([1 - (inside - low), inside - low])


def _cubic(node: Node, position: Array, extent: int) -> tuple[Array, Array]:
    """Four taps with Keys' kernel.

    Taps outside the input repeat its edge; with exclude_outside they are left out and the rest scaled.
    """
    a = CUBIC_COEFF_A(node)
    low = np.floor(position)
    index = (low + np.arange(-1, 3)[:, None]).astype(np.int64)
    d = np.abs(position - index)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    weight = np.where(d <= 1, near, far)
    if EXCLUDE_OUTSIDE(node):
        weight = np.where((index >= 0) & (index < extent), weight, 0)
        weight = weight / weight.sum(axis=0)
    return index, weight.astype(np.float32)


def interpolation(node: Node, extent: int, size: int, scale: float) -> tuple[Array, Array]:
    """Input indices and weights of each output element of one axis, both of shape (taps, size)."""
    return taps_at(node, source_positions(node, extent, size, scale), extent)


def taps_at(node: Node, position: Array, extent: int) -> tuple[Array, Array]:
    """Input indices and weights (taps, size) for these positions of an axis, in the node's mode."""
    mode = RESIZE_MODE(node)
    if mode == "nearest":
        index, weight = _nearest(node, position)
    elif mode == "linear":
        index, weight = _linear(position, extent)
    else:
        index, weight = _cubic(node, position, extent)
    return np.clip(index, 0, extent - 1), weight


def matrix_of(index: Array, weight: Array, extent: int) -> Array:
    """The interpolation matrix of an axis: (size, extent) float32.

    index, weight: (taps, size); an index outside the input counts as its edge.
    """
    size = index.shape[1]
    matrix = np.zeros((size, extent), np.float32)
    for at, share in zip(np.clip(index, 0, extent - 1), weight, strict=True):
        np.add.at(matrix, (np.arange(size), at), share)
    return matrix


def _resize(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    y = inputs[0]
    for axis, (size, scale) in enumerate(zip(SIZES(node), SCALES(node), strict=True)):
        if size == y.shape[axis] and scale == 1:
            continue
        indices, weights = interpolation(node, y.shape[axis], size, scale)
        y = sum(
            (np.take(y, i, axis=axis) * along(w, axis, y.ndim) for i, w in zip(indices, weights, strict=True)),
            start=np.float32(0),
        )
    return (np.asarray(y, inputs[0].dtype),)


def _resize_onnx(node: Node, emit: OnnxEmitter) -> None:
    """By scales if they give the same size as in ONNX, floor(extent * scale); otherwise by sizes.

    onnxruntime multiplies in float32, but in float64 for shape inference.
    """
    shape, sizes = emit.graph.shape(node.inputs[0]), SIZES(node)
    scales = np.array(SCALES(node), np.float32)
    products = (np.array(shape, np.float32) * scales, np.array(shape, np.float64) * scales)
    if all(tuple(np.floor(each).astype(int)) == sizes for each in products):
        inputs = [node.inputs[0], "", emit.constant(scales, "scales")]
    else:
        inputs = [node.inputs[0], "", "", emit.integers("sizes", sizes)]
    emit.node("Resize", inputs, node.outputs, **emit.attributes(node))


OPERATORS = (
    Op(
        "Resize",
        "Nearest, linear or cubic interpolation to a fixed size.",
        (Parameter("x", ("float32", "int8", "uint8")),),
        (Parameter("y", like="x"),),
        _resize,
        (SIZES, SCALES, RESIZE_MODE, COORDINATES, NEAREST_MODE, CUBIC_COEFF_A, EXCLUDE_OUTSIDE),
        (_interpolable, _resizing),
        _types,
        _resize_onnx,
    ),
)
