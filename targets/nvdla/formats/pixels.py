"""Pixel Format: the 36 formats of table 33.

A name lists the components of a pixel from its highest bits to its lowest, little endian in memory: the bytes of
T_A8B8G8R8 are R, G, B, A. Two planes are separated by `___`: luma, then both chromas. Whatever the order in
memory, channel 0 is R or Y, 1 is G or U, 2 is B or V, 3 is A or X, like MEAN_RY to MEAN_AX. Components of 10 and
12 bits in planes are in the low bits of 16. T_R16_F is float16: the document lists its precision as int16 (and
T_A16B16G16R16_F's as fp16); its name and the conversion rules say fp16.

Source: in-memory formats, Pixel Format, table 33.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array

CHANNEL_OF = {"R": 0, "Y": 0, "G": 1, "U": 1, "B": 2, "V": 2, "A": 3, "X": 3}
ATOM = 32
"""The x offsets of table 33 are within this many bytes."""


@frozen
class Component:
    """A component of a pixel: its channel, and its bits in the pixel."""

    channel: int
    low: int
    bits: int


@frozen
class Plane:
    """Pixels of one plane."""

    pixel_bytes: int
    components: tuple[Component, ...]


@frozen
class PixelFormat:
    """A row of table 33."""

    name: str
    planes: tuple[Plane, ...]
    signed: bool
    floating: bool
    offset: int
    """The largest x offset in pixels."""

    @property
    def channels(self) -> int:
        """The valid channel setting: 1, 3 or 4."""
        return sum(len(plane.components) for plane in self.planes)

    @property
    def precision(self) -> str:
        """The valid input precision."""
        if self.floating:
            return "fp16"
        return "int8" if self.planes[0].components[0].bits == 8 else "int16"


NAMES = (
    "T_R8", "T_R10", "T_R12", "T_R16", "T_R16_I", "T_R16_F", "T_A16B16G16R16", "T_X16B16G16R16",
    "T_A16B16G16R16_F", "T_A16Y16U16V16", "T_V16U16Y16A16", "T_A16Y16U16V16_F", "T_A8B8G8R8", "T_A8R8G8B8",
    "T_B8G8R8A8", "T_R8G8B8A8", "T_X8B8G8R8", "T_X8R8G8B8", "T_B8G8R8X8", "T_R8G8B8X8", "T_A2B10G10R10",
    "T_A2R10G10B10", "T_B10G10R10A2", "T_R10G10B10A2", "T_A2Y10U10V10", "T_V10U10Y10A2", "T_A8Y8U8V8",
    "T_V8U8Y8A8", "T_Y8___U8V8_N444", "T_Y8___V8U8_N444", "T_Y10___U10V10_N444", "T_Y10___V10U10_N444",
    "T_Y12___U12V12_N444", "T_Y12___V12U12_N444", "T_Y16___U16V16_N444", "T_Y16___V16U16_N444",
)  # fmt: skip
"""Formats in the order of PIXEL_FORMAT's values."""


def _format(name: str) -> PixelFormat:
    (body, suffix), *_ = re.findall(r"^T_(\w+?)(?:_(I|F|N444))?$", name)
    planes = tuple(_plane(each) for each in body.split("___"))
    first = planes[0].pixel_bytes
    return PixelFormat(name, planes, suffix == "I", suffix == "F", ATOM // first - 1)


def _plane(text: str) -> Plane:
    parts = re.findall(r"([ARGBXYUV])(\d+)", text)
    widths = [int(width) for _, width in parts]
    whole = sum(widths)
    padded = [16 if width in (10, 12) and whole % 32 else width for width in widths]
    low, components = 0, list[Component]()
    for (letter, _), width, place in reversed(list(zip(parts, widths, padded, strict=True))):
        components.append(Component(CHANNEL_OF[letter], low, width))
        low += place
    return Plane(low // 8, tuple(components))


FORMATS: Mapping[str, PixelFormat] = {name: _format(name) for name in NAMES}
"""Table 33 by name."""


def unpack(form: PixelFormat, planes: Sequence[Array], *, override_signed: bool = False) -> Array:
    """The image (H, W, C), int32 or float16, from planes (H, W, bytes of a pixel) uint8.

    override_signed: treat integers as signed, whatever the format (PIXEL_SIGN_OVERRIDE).
    """
    height, width = planes[0].shape[:2]
    image = np.zeros((height, width, form.channels), np.float16 if form.floating else np.int32)
    for plane, data in zip(form.planes, planes, strict=True):
        wide = np.zeros((height, width, 8), np.uint8)
        wide[..., : plane.pixel_bytes] = data
        pixels = wide.view("<u8")[..., 0]
        for each in plane.components:
            image[..., each.channel] = _component(form, each, pixels, override_signed=override_signed)
    return image


def _component(form: PixelFormat, part: Component, pixels: Array, *, override_signed: bool) -> Array:
    value = (pixels >> np.uint64(part.low)) & np.uint64((1 << part.bits) - 1)
    if form.floating:
        return value.astype(np.uint16).view(np.float16)
    number = value.astype(np.int32)
    sign = 1 << (part.bits - 1)
    return (number ^ sign) - sign if form.signed or override_signed else number


def pack(form: PixelFormat, image: Array) -> list[Array]:
    """The planes (H, W, bytes of a pixel) uint8 of an image (H, W, C); the inverse of unpack."""
    packed: list[Array] = []
    for plane in form.planes:
        pixels = np.zeros(image.shape[:2], np.uint64)
        for each in plane.components:
            values = image[..., each.channel]
            bits = values.view(np.uint16) if form.floating else values.astype(np.int64)
            pixels |= (bits.astype(np.uint64) & np.uint64((1 << each.bits) - 1)) << np.uint64(each.low)
        packed.append(pixels[..., None].view(np.uint8)[..., : plane.pixel_bytes].copy())
    return packed


def store(form: PixelFormat, values: Array, memory: Array, line_stride: int) -> None:
    """Writes channels (C, H, W) as an image of one plane; components without a channel become 0.

    memory: the bytes from the first line to the end of the last; line_stride may exceed the length of a line.
    """
    channels, height, width = values.shape
    image = np.zeros((height, width, form.channels), values.dtype)
    image[..., :channels] = values.transpose(1, 2, 0)
    (plane,) = pack(form, image)
    memory.reshape(height, line_stride)[:, : width * form.planes[0].pixel_bytes] = plane.reshape(height, -1)
