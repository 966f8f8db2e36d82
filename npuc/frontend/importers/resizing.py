"""Resize and Upsample in all their opsets: always with both scales and sizes of all axes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from npuc.frontend.builder import Builder, OnnxNode
from npuc.frontend.importers.table import Importer
from npuc.ir import Attr

Scales = tuple[float, ...]


def _upsample(node: OnnxNode, to: Builder) -> None:
    """Upsample, and Resize of opset 10: scales only, asymmetric coordinates.

    onnxruntime rounds down where it enlarges and up where it shrinks.
    """
    shape = to.shape(node.inputs[0])
    scales = _floats(node, to, 1) if node.given(1) else tuple(node.attrs["scales"])
    _check(node, scales, len(shape))
    shrinks = min(scales) < 1
    if node.attrs["mode"] == "nearest" and shrinks and max(scales) > 1:
        raise node.unsupported("one axis is enlarged and another one shrunk", limit="opset 11 and later")
    modes: dict[str, Attr] = {
        "mode": "linear" if node.attrs["mode"] in ("linear", "bilinear") else node.attrs["mode"],
        "coordinate_transformation_mode": "asymmetric",
        "nearest_mode": "ceil" if shrinks else "floor",
    }
    to.emit(node, "Resize", node.inputs[:1], scales=scales, sizes=_sizes(shape, scales), **modes)


def _resize(node: OnnxNode, to: Builder) -> None:
    """Opset 11 and later: scales or sizes, of all axes or (opset 18) of some."""
    if node.opset < 11:
        _upsample(node, to)
        return
    if node.attrs.get("antialias"):
        raise node.unsupported("antialiased resizing", limit="antialias = 0")
    shape = to.shape(node.inputs[0])
    axes = node.axes(node.attrs.get("axes") or range(len(shape)), len(shape))
    scales, sizes = _extents(node, to, [shape[axis] for axis in axes])
    all_scales, all_sizes = [1.0] * len(shape), list(shape)
    for axis, scale, size in zip(axes, scales, sizes, strict=True):
        all_scales[axis], all_sizes[axis] = scale, size
    keys = ("mode", "nearest_mode", "cubic_coeff_a", "exclude_outside")
    modes: dict[str, Attr] = {key: node.attrs[key] for key in keys}
    modes["coordinate_transformation_mode"] = _coordinates(node, shape, all_scales, all_sizes)
    to.emit(node, "Resize", node.inputs[:1], scales=tuple(all_scales), sizes=tuple(all_sizes), **modes)


def _extents(node: OnnxNode, to: Builder, shape: Sequence[int]) -> tuple[Scales, tuple[int, ...]]:
    """Scales and sizes of the resized axes, whichever of them the node gives."""
    if not node.given(3) or not to.value(node, 3).size:
        if not node.given(2):
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
    scale = min(scales) if policy == "not_larger" else max(scales)
    return (scale,) * len(shape), tuple(math.floor(extent * scale + 0.5) for extent in shape)


def _coordinates(node: OnnxNode, shape: Sequence[int], scales: Sequence[float], sizes: Sequence[int]) -> str:
    """The coordinate mode; the symmetric one equals half_pixel where the scales give whole sizes."""
    kind: str = node.attrs["coordinate_transformation_mode"]
    if kind == "half_pixel_symmetric":
        if all(abs(n * s - size) < 1e-6 for n, s, size in zip(shape, scales, sizes, strict=True)):
            return "half_pixel"
        raise node.unsupported("half_pixel_symmetric with scales that give fractional sizes")
    if kind in ("tf_crop_and_resize", "tf_half_pixel_for_nn"):
        raise node.unsupported(f"coordinate_transformation_mode {kind}")
    return kind


def _floats(node: OnnxNode, to: Builder, index: int) -> Scales:
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
