"""Resize: nearest, linear and cubic interpolation, one axis after the other."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops.rules import along, expect_types
from npuc.ops.table import Op, bad_node, register

MODES = ("nearest", "linear", "cubic")
COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")
NEAREST = ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil")


def scales_of(node: Node) -> tuple[float, ...]:
    """The factors per axis, output over input."""
    value = node.attrs["scales"]
    if not isinstance(value, tuple):
        raise TypeError(f"{node.op}.scales is {value!r}, not a tuple")
    return tuple(float(each) for each in value)


def _types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    nearest = node.text("mode", "nearest") == "nearest"
    expect_types(node, types, ("float32", "int8", "uint8") if nearest else ("float32",))
    x, sizes, scales = types[0], node.integers("sizes"), scales_of(node)
    for key, default, allowed in (
        ("mode", "nearest", MODES),
        ("coordinate_transformation_mode", "half_pixel", COORDINATES),
        ("nearest_mode", "round_prefer_floor", NEAREST),
    ):
        if node.text(key, default) not in allowed:
            raise bad_node(node, f"{key} is {node.text(key)!r}", limit=", ".join(allowed))
    if len(sizes) != len(x.shape) or len(scales) != len(x.shape):
        reason = f"{len(sizes)} sizes and {len(scales)} scales for {len(x.shape)} dimensions"
        raise bad_node(node, reason, tensor=node.inputs[0])
    if min(sizes) < 1 or min(scales) <= 0:
        raise bad_node(node, f"sizes {list(sizes)}, scales {list(scales)}", limit="positive")
    return (TensorType(sizes, x.dtype),)


def source_positions(node: Node, extent: int, size: int, scale: float) -> Array:
    """Where each output element of one axis lies in the input, in elements (float32, as onnxruntime)."""
    at, factor, half = np.arange(size, dtype=np.float32), np.float32(scale), np.float32(0.5)
    kind = node.text("coordinate_transformation_mode", "half_pixel")
    if kind == "asymmetric":
        return at / factor
    if kind == "align_corners":
        return at * np.float32(extent - 1) / np.float32(size - 1) if size > 1 else np.zeros_like(at)
    if kind == "pytorch_half_pixel" and size == 1:
        return np.zeros_like(at)
    return (at + half) / factor - half


def _nearest(node: Node, position: Array) -> tuple[Array, Array]:
    """One tap with weight 1."""
    rounding = node.text("nearest_mode", "round_prefer_floor")
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
    a = node.number("cubic_coeff_a", -0.75)
    low = np.floor(position)
    index = (low + np.arange(-1, 3)[:, None]).astype(np.int64)
    d = np.abs(position - index)
    near = ((a + 2) * d - (a + 3)) * d * d + 1
    far = ((a * d - 5 * a) * d + 8 * a) * d - 4 * a
    weight = np.where(d <= 1, near, far)
    if node.integer("exclude_outside"):
        weight = np.where((index >= 0) & (index < extent), weight, 0)
        weight = weight / weight.sum(axis=0)
    return index, weight.astype(np.float32)


def interpolation(node: Node, extent: int, size: int, scale: float) -> tuple[Array, Array]:
    """Input indices and weights of each output element of one axis, both of shape (taps, size)."""
    return taps_at(node, source_positions(node, extent, size, scale), extent)


def taps_at(node: Node, position: Array, extent: int) -> tuple[Array, Array]:
    """Input indices and weights (taps, size) of what lies at these positions of an axis, in the node's mode."""
    mode = node.text("mode", "nearest")
    if mode == "nearest":
        index, weight = _nearest(node, position)
    elif mode == "linear":
        index, weight = _linear(position, extent)
    else:
        index, weight = _cubic(node, position, extent)
    return np.clip(index, 0, extent - 1), weight


def _resize(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    y = inputs[0]
    for axis, (size, scale) in enumerate(zip(node.integers("sizes"), scales_of(node), strict=True)):
        if size == y.shape[axis] and scale == 1:
            continue
        indices, weights = interpolation(node, y.shape[axis], size, scale)
        y = sum(
            (np.take(y, i, axis=axis) * along(w, axis, y.ndim) for i, w in zip(indices, weights, strict=True)),
            start=np.float32(0),
        )
    return (np.asarray(y, inputs[0].dtype),)


register(Op("Resize", "Nearest, linear or cubic interpolation to a fixed size.", _types, _resize))
