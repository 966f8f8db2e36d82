"""Resize in modes that the IR's own Resize lacks, as products with constant matrices.

Antialiasing, the cropping of TensorFlow's crop_and_resize, and half_pixel_symmetric are linear maps per axis like
any other interpolation. Source: ONNX operator specification, Resize.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, prod

import numpy as np

from npuc.frontend.builder import NodeBuilder, OnnxNode
from npuc.ir import Array, Node
from npuc.ops.attributes import COORDINATES, CUBIC_COEFF_A, EXCLUDE_OUTSIDE, RESIZE_MODE, Attribute
from npuc.ops.resize import matrix_of, source_positions, taps_at

ANTIALIAS = Attribute[bool]("antialias", "flag", "the kernel is stretched where it shrinks", False)


def emit_products(
    node: OnnxNode,
    to: NodeBuilder,
    shape: Sequence[int],
    sizes: Sequence[int],
    matrices: dict[int, Array],
    outside: Array,
) -> None:
    """Emits the node as one MatMul per axis, between Reshapes, plus a term for positions outside the input.

    matrices: by axis, (size, extent) float32. outside: broadcasts to the sizes; zero adds nothing.
    """
    x, extents = node.inputs[0], list(shape)
    for axis, matrix in matrices.items():
        image = (prod(extents[:axis]), extents[axis], prod(extents[axis + 1 :]))
        rows = to.emit(node, "Reshape", (x,), (), shape=image)
        x = to.emit(node, "MatMul", (to.constant(node, "weights", matrix), rows), ())
        extents[axis] = sizes[axis]
    if not outside.any():
        to.emit(node, "Reshape", (x,), shape=tuple(sizes))
        return
    image = to.emit(node, "Reshape", (x,), (), shape=tuple(sizes))
    to.emit(node, "Add", (image, to.constant(node, "outside", outside.astype(np.float32))))


def weights_of(node: Node, extent: int, size: int, scale: float, roi: tuple[float, float]) -> tuple[Array, Array]:
    """The weights (size, extent) of an axis, and which of its outputs lie outside the input (size,).

    node: a Resize with ONNX's own attributes.
    """
    inside = np.ones(size, bool)
    match COORDINATES(node):
        case "half_pixel_symmetric":
            position = _symmetric(extent, size, np.float32(scale))
        case "tf_crop_and_resize":
            position = _cropped(extent, size, np.float32(roi[0]), np.float32(roi[1]))
            inside = (position >= 0) & (position <= extent - 1)
        case _:
            position = source_positions(node, extent, size, scale)
    if ANTIALIAS(node) and scale < 1:
        index, weight = _antialiased(node, position, extent, scale)
    else:
        index, weight = taps_at(node, position, extent)
    return matrix_of(index, weight * inside, extent), ~inside


def _symmetric(extent: int, size: int, scale: np.float32) -> Array:
    """Positions of half_pixel_symmetric, in the order and precision of onnxruntime's sums."""
    at, half, whole = np.arange(size, dtype=np.float32), np.float32(0.5), np.float32(extent)
    offset = whole * half * (1 - np.float32(size) / (scale * whole))
    return offset + (at + half) / scale - half


def _cropped(extent: int, size: int, start: np.float32, end: np.float32) -> Array:
    """Positions of tf_crop_and_resize, in the order and precision of onnxruntime's sums."""
    at, last = np.arange(size, dtype=np.float32), np.float32(extent - 1)
    if size == 1:
        return np.full(1, 0.5 * float(start + end) * float(last), np.float32)
    return start * last + at * (end - start) * last / np.float32(size - 1)


def _antialiased(node: Node, position: Array, extent: int, scale: float) -> tuple[Array, Array]:
    """The kernel stretched by 1 / scale, with its weights normalised to the sum 1."""
    cubic = RESIZE_MODE(node) == "cubic"
    reach = ceil((2 if cubic else 1) / scale)
    index = np.floor(position)[None].astype(np.int64) + np.arange(-reach, reach + 2)[:, None]
    distance = np.abs(index - position) * scale
    if cubic:
        a = CUBIC_COEFF_A(node)
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
        weight = np.where(distance <= 1, near, np.where(distance < 2, far, 0))
    else:
        weight = np.maximum(1 - distance, 0)
    if EXCLUDE_OUTSIDE(node):
        weight = np.where((index >= 0) & (index < extent), weight, 0)
    return index, weight / weight.sum(axis=0)
