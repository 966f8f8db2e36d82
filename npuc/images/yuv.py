"""Frames in YUV, BT.601 with luma 16..235, as cameras give them.

nv12, nv21: a plane of luma and one of pairs, (3 H / 2, W). yuyv, uyvy: pairs of luma and chroma, (H, W, 2). Chroma
counts for its 2 x 2 or 1 x 2 pixels. RGB is computed in float and limited to 0..255, without rounding. yuv: three
channels of each pixel, a matrix away from RGB, which is not limited.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from npuc.ir import Array

PLANES: Mapping[str, bool] = {"nv12": False, "nv21": True}
"""Formats of two planes; whether V comes before U."""
PACKED: Mapping[str, int] = {"yuyv": 0, "uyvy": 1}
"""Formats of one plane; the place of luma in a pair."""
YUV = (*PLANES, *PACKED)
"""Those with fewer values of chroma than of luma."""
FULL = "yuv"
"""The one with as many."""
ALL = (*YUV, FULL)
CENTRE = np.array([16.0, 128.0, 128.0])
TO_RGB = np.array([[1.164, 0.0, 1.596], [1.164, -0.391, -0.813], [1.164, 2.018, 0.0]])
"""From (Y, U, V) - CENTRE to R, G, B. Source: ITU-R BT.601, as OpenCV rounds it."""


def frame_shape(form: str, size: tuple[int, int]) -> tuple[int, ...]:
    """The shape of a frame of so many rows and columns."""
    height, width = size
    return (height * 3 // 2, width) if form in PLANES else (height, width, 2)


def has_even_chroma(form: str, size: tuple[int, int]) -> bool:
    """Whether rows and columns are even where chroma needs it."""
    return size[1] % 2 == 0 and (form in PACKED or size[0] % 2 == 0)


def to_rgb(frames: Array, form: str) -> Array:
    """R, G, B (.., H, W, 3) float32 of frames; of `yuv` (.., H, W, 3)."""
    if form == FULL:
        return ((frames - CENTRE) @ TO_RGB.T).astype(np.float32)
    luma, chroma = _split_planes(frames, form)
    rows = 2 if form in PLANES else 1
    wide = chroma.repeat(rows, axis=-3).repeat(2, axis=-2)
    yuv = np.concatenate([luma[..., None], wide], axis=-1) - CENTRE
    return np.clip(yuv @ TO_RGB.T, 0, 255).astype(np.float32)


def _split_planes(frames: Array, form: str) -> tuple[Array, Array]:
    """Luma (.., H, W) and chroma (.., H / 2 or H, W / 2, U and V)."""
    if form in PLANES:
        height = frames.shape[-2] * 2 // 3
        luma, pairs = frames[..., :height, :], frames[..., height:, :]
    else:
        luma, pairs = frames[..., PACKED[form]], frames[..., 1 - PACKED[form]]
    chroma = pairs.reshape(*pairs.shape[:-1], -1, 2)
    return luma, chroma[..., ::-1] if PLANES.get(form, False) else chroma


def from_rgb(pixels: Array, form: str) -> Array:
    """The frame that a camera would give for R, G, B (H, W, 3) uint8: chroma is the mean of its pixels."""
    height, width, _ = pixels.shape
    yuv = pixels @ np.linalg.inv(TO_RGB).T + CENTRE
    if form == FULL:
        return np.clip(np.rint(yuv), 0, 255).astype(np.uint8)
    rows = 2 if form in PLANES else 1
    chroma = yuv[..., 1:].reshape(height // rows, rows, width // 2, 2, 2).mean(axis=(1, 3))
    luma, chroma = (np.clip(np.rint(each), 0, 255).astype(np.uint8) for each in (yuv[..., 0], chroma))
    if form in PLANES:
        pairs = chroma[..., ::-1] if PLANES[form] else chroma
        return np.concatenate([luma, pairs.reshape(-1, width)])
    both = [luma, chroma.reshape(height, width)]
    return np.stack(both if form == "yuyv" else both[::-1], axis=-1)
