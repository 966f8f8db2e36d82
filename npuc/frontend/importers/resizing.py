"""Resize and Upsample in all opsets, always emitted with scales and sizes of all axes.

Modes that the IR's own Resize lacks become products with constant matrices: antialiasing, the cropping of
TensorFlow's crop_and_resize, and half_pixel_symmetric are linear maps per axis like any other interpolation.
Source: ONNX operator specification, Resize.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from math import ceil, prod

import numpy as np

from npuc.frontend.builder import Importer, NodeBuilder, OnnxNode
from npuc.ir import Array, Attr, Node
from npuc.ops.attributes import COORDINATES, CUBIC_COEFF_A, EXCLUDE_OUTSIDE, RESIZE_MODE, Attribute
from npuc.ops.resize import matrix_of, source_positions, taps_at

MOST_WEIGHTS = 1 << 22
"""The most elements in the matrix of an axis, for modes that become products."""
Scales = tuple[float, ...]


def _upsample(node: OnnxNode, to: NodeBuilder) -> None:
    """Upsample, and Resize of opset 10: scales only, asymmetric coordinates.

    onnxruntime rounds down when enlarging and up when shrinking.
    """
    shape = to.shape(node.inputs[0])
    scales = _floats(node, to, 1) if node.has_input(1) else tuple(node.attrs["scales"])
    _check(node, scales, len(shape))
    shrinks = min(scales) < 1
    if node.attrs["mode"] == "nearest" and shrinks and max(scales) > 1:
        raise node.support_error("one axis is enlarged and another one shrunk", "export it with opset 11 or later")
    modes: dict[str, Attr] = {
        "mode": "linear" if node.attrs["mode"] in ("linear", "bilinear") else node.attrs["mode"],
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "ceil" if shrinks else "floor",
    }
    sizes = _sizes(shape, scales)
    if sizes == tuple(shape):
        _copy(node, to, shape, modes)
        return
    to.emit(node, "Resize", node.inputs[:1], scales=scales, sizes=sizes, **modes)


def _resize(node: OnnxNode, to: NodeBuilder) -> None:
    """Opset 11 and later: scales or sizes, of all axes or (opset 18) of some."""
    if node.opset < 11:
        _upsample(node, to)
        return
    shape = to.shape(node.inputs[0])
    axes = node.axes(node.attrs.get("axes") or range(len(shape)), len(shape))
    scales, sizes = _extents(node, to, [shape[axis] for axis in axes])
    all_scales, all_sizes = [1.0] * len(shape), list(shape)
    for axis, scale, size in zip(axes, scales, sizes, strict=True):
        all_scales[axis], all_sizes[axis] = scale, size
    keys = ("mode", "nearest_mode", "cubic_coeff_a", "exclude_outside")
    modes: dict[str, Attr] = {key: node.attrs[key] for key in keys}
    if tuple(shape) == tuple(all_sizes):
        _copy(node, to, shape, modes)
        return
    coordinates = _coordinates(node, shape, all_scales, all_sizes)
    modes["coordinate_transformation_mode"] = coordinates
    if coordinates in ("half_pixel_symmetric", "tf_crop_and_resize") or node.attrs.get("antialias"):
        modes["antialias"] = node.attrs.get("antialias", 0)
        _products(node, to, axes, all_scales, all_sizes, modes)
    else:
        to.emit(node, "Resize", node.inputs[:1], scales=tuple(all_scales), sizes=tuple(all_sizes), **modes)


def _copy(node: OnnxNode, to: NodeBuilder, shape: Sequence[int], modes: dict[str, Attr]) -> None:
    """Emits a copy if no extent changes: ONNX interpolates if scales or a roi demand it, onnxruntime copies."""
    kept = {**modes, "coordinate_transformation_mode": "half_pixel"}
    to.emit(node, "Resize", node.inputs[:1], scales=(1.0,) * len(shape), sizes=tuple(shape), **kept)


def _products(
    node: OnnxNode,
    to: NodeBuilder,
    axes: Sequence[int],
    scales: Sequence[float],
    sizes: Sequence[int],
    modes: dict[str, Attr],
) -> None:
    """Emits matrix products for a mode that the IR's Resize lacks."""
    shape, described = to.shape(node.inputs[0]), Node("Resize", (), (), modes)
    roi = _floats(node, to, 1) if modes["coordinate_transformation_mode"] == "tf_crop_and_resize" else ()
    if roi and len(roi) != 2 * len(axes):
        raise node.bad(f"a roi of {len(roi)} values for {len(axes)} axes", limit=f"{2 * len(axes)} values")
    matrices: dict[int, Array] = {}
    outside = np.zeros((1,) * len(shape), bool)
    for at, axis in enumerate(axes):
        region = (roi[at], roi[len(axes) + at]) if roi else (0.0, 1.0)
        kept = sizes[axis] == shape[axis] and (scales[axis] == 1 or modes["antialias"])
        if kept:  # onnxruntime, unlike ONNX, does not interpolate along such an axis, not even in a roi
            continue
        if shape[axis] * sizes[axis] > MOST_WEIGHTS:
            reason = f"{sizes[axis]} from {shape[axis]} elements in this mode"
            raise node.support_error(
                reason, "resize with half_pixel and antialias = 0", limit=f"{MOST_WEIGHTS} weights"
            )
        matrices[axis], beyond = _weights_of(described, shape[axis], sizes[axis], scales[axis], region)
        outside = outside | beyond.reshape([-1 if each == axis else 1 for each in range(len(shape))])
    _emit_products(node, to, shape, sizes, matrices, outside * np.float32(node.attrs["extrapolation_value"]))


def _extents(node: OnnxNode, to: NodeBuilder, shape: Sequence[int]) -> tuple[Scales, tuple[int, ...]]:
    """Scales and sizes of the resized axes, whichever of them the node has."""
    if not node.has_input(3) or not to.value(node, 3).size:
        if not node.has_input(2):
            raise node.bad("neither scales nor sizes are given")
        scales = _floats(node, to, 2)
        _check(node, scales, len(shape))
        return scales, _sizes(shape, scales)
    sizes = to.integers(node, 3)
    if len(sizes) != len(shape) or min(sizes) < 1 or not all(shape):
        raise node.bad(f"sizes {list(sizes)} for extents {list(shape)}", limit=f"{len(shape)} positive sizes")
    scales = tuple(size / extent for size, extent in zip(sizes, shape, strict=True))
    policy = node.attrs.get("keep_aspect_ratio_policy", "stretch")
    if policy == "stretch":
        return scales, sizes
    if min(node.attrs.get("axes") or (0,)) < 0:  # onnxruntime then leaves the extents as they are
        raise node.support_error(f"{policy} along negative axes", "count the axes from the front")
    scale = min(scales) if policy == "not_larger" else max(scales)
    return (scale,) * len(shape), tuple(math.floor(extent * scale + 0.5) for extent in shape)


def _coordinates(node: OnnxNode, shape: Sequence[int], scales: Sequence[float], sizes: Sequence[int]) -> str:
    """The coordinate mode; half_pixel_symmetric equals half_pixel if the scales give integral sizes."""
    kind: str = node.attrs["coordinate_transformation_mode"]
    fraction = max(abs(n * s - size) for n, s, size in zip(shape, scales, sizes, strict=True))
    if kind == "half_pixel_symmetric" and fraction < 1e-6:
        return "half_pixel"
    if kind == "align_corners" and fraction > 1e-3:
        # onnxruntime divides by the integral size, ONNX by the fractional one
        raise node.support_error("align_corners with scales that give fractional sizes", "give sizes, not scales")
    if kind == "tf_half_pixel_for_nn":
        raise node.support_error(f"coordinate_transformation_mode {kind}", "export it with half_pixel")
    return kind


def _floats(node: OnnxNode, to: NodeBuilder, index: int) -> Scales:
    value = to.value(node, index)
    if value.dtype.kind != "f" or value.ndim != 1:
        raise node.bad("the scales are no list of floats", tensor=node.inputs[index])
    return tuple(float(each) for each in value)


def _check(node: OnnxNode, scales: Scales, count: int) -> None:
    if len(scales) != count or not all(0 < scale < 2**16 for scale in scales):
        raise node.bad(f"scales {list(scales)} for {count} axes", limit=f"{count} positive scales")


def _sizes(shape: Sequence[int], scales: Scales) -> tuple[int, ...]:
    """floor(extent * scale), computed in float32 as onnxruntime does."""
    products = np.array(shape, np.float32) * np.array(scales, np.float32)
    return tuple(int(each) for each in np.floor(products))


IMPORTERS: dict[str, Importer] = {"Resize": _resize, "Upsample": _upsample}


ANTIALIAS = Attribute[bool]("antialias", "flag", "the kernel is stretched where it shrinks", False)


def _emit_products(
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


def _weights_of(node: Node, extent: int, size: int, scale: float, roi: tuple[float, float]) -> tuple[Array, Array]:
    """The weights (size, extent) of an axis, and which of its outputs lie outside the input (size,).

    node: a Resize with ONNX's own attributes.
    """
    inside = np.ones(size, bool)
    match COORDINATES(node):
        case "half_pixel_symmetric":
            position = _symmetric(extent, size, np.float32(scale))
        case "tf_crop_and_resize":
            position = _crop_positions(extent, size, np.float32(roi[0]), np.float32(roi[1]))
            inside = (position >= 0) & (position <= extent - 1)
        case _:
            position = source_positions(node, extent, size, scale)
    if ANTIALIAS(node) and scale < 1:
        index, weight = _antialias(node, position, extent, scale)
    else:
        index, weight = taps_at(node, position, extent)
    return matrix_of(index, weight * inside, extent), ~inside


def _symmetric(extent: int, size: int, scale: np.float32) -> Array:
    """Positions of half_pixel_symmetric, in the order and precision of onnxruntime's sums."""
    at, half, whole = np.arange(size, dtype=np.float32), np.float32(0.5), np.float32(extent)
    offset = whole * half * (1 - np.float32(size) / (scale * whole))
    return offset + (at + half) / scale - half


def _crop_positions(extent: int, size: int, start: np.float32, end: np.float32) -> Array:
    """Positions of tf_crop_and_resize, in the order and precision of onnxruntime's sums."""
    at, last = np.arange(size, dtype=np.float32), np.float32(extent - 1)
    if size == 1:
        return np.full(1, 0.5 * float(start + end) * float(last), np.float32)
    return start * last + at * (end - start) * last / np.float32(size - 1)


def _antialias(node: Node, position: Array, extent: int, scale: float) -> tuple[Array, Array]:
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
