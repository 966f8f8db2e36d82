"""Pixel Format: the 36 formats of table 33.

A name lists the components of a pixel from its highest bits to its lowest, little endian in memory: the bytes of
T_A8B8G8R8 are R, G, B, A. Two planes are separated by `___`: luma, then both chromas. Whatever the order in
memory, channel 0 is R or Y, 1 is G or U, 2 is B or V, 3 is A or X, like MEAN_RY to MEAN_AX. A component beside
which nothing else lies in its 16 bits (T_R10, planes of 10 and 12 bits) is all of them; components packed into 32
bits become the highest of 16. T_R16_F is float16: the document lists its precision as int16 (and
T_A16B16G16R16_F's as fp16); its name and the conversion rules say fp16. Integers are unsigned, T_R16_I's as well,
unless PIXEL_SIGN_OVERRIDE makes the highest bit their sign.

Source: in-memory formats, Pixel Format, table 33; values, and limits of the padding, as seen on the RTL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.nvdla.machine.parameters import Machine

CHANNEL_OF = {"R": 0, "Y": 0, "G": 1, "U": 1, "B": 2, "V": 2, "A": 3, "X": 3}
COUNTER_BITS = (4, 3)
"""Bits of CDMA's counters of padding, by plane."""


@frozen
class Component:
    """A component of a pixel: its channel, and its bits in the pixel."""

    channel: int
    low: int
    bits: int
    shift: int = 0
    """Zeros below the component, which fill 16 bits."""

    @property
    def sign(self) -> int:
        """The highest bit of a value."""
        return 1 << (self.bits + self.shift - 1)


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
    floating: bool

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

    @property
    def pixel_bytes(self) -> int:
        """Bytes of a pixel in the first plane."""
        return self.planes[0].pixel_bytes

    def largest_offset(self, atom_bytes: int) -> int:
        """The largest x offset: all pixels but one of an atom."""
        return atom_bytes // self.pixel_bytes - 1

    def pads(self, atom_bytes: int, width: int, left: int, right: int, offset: int = 0) -> bool:
        """Whether CDMA pads lines of `width` pixels by these columns; beyond, all lines after the first are wrong.

        Each plane has counters of the atoms that left and right padding begin, of 4 and 3 bits.
        """
        return all(
            max(_padding_atoms(atom_bytes // plane.pixel_bytes, width, left, right, offset)) < 1 << bits
            for plane, bits in zip(self.planes, COUNTER_BITS, strict=False)
        )


@frozen
class Conversion:
    """CDMA's conversion to int8: (d - offset of the channel) * scale / 2^truncate, halves away from 0."""

    offsets: tuple[int, ...]
    """One for each channel."""
    scale: int = 1
    truncate: int = 0


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
    return PixelFormat(name, planes, suffix == "F")


def _plane(text: str) -> Plane:
    parts = re.findall(r"([ARGBXYUV])(\d+)", text)
    packed = any(width == "2" for _, width in parts)
    low, components = 0, list[Component]()
    for letter, width in reversed(parts):
        bits = 16 if int(width) > 8 and not packed else int(width)
        components.append(Component(CHANNEL_OF[letter], low, bits, 16 - bits if packed else 0))
        low += bits
    return Plane(low // 8, tuple(components))


def _padding_atoms(pixels: int, width: int, left: int, right: int, offset: int) -> tuple[int, int]:
    """What CDMA's two counters of padding hold for a plane with some pixels an atom."""
    offset %= pixels
    begun = left // pixels + (offset < left % pixels)
    return begun, (left + width - 1 + right) // pixels + 1 - begun - (width - 1 + offset) // pixels


FORMATS: Mapping[str, PixelFormat] = {name: _format(name) for name in NAMES}
"""Table 33 by name."""


def of(registers: str) -> tuple[str, ...]:
    """The formats of a register map: nv_small, and nv_large with it, take all but 8 bits for T_A8B8G8R8."""
    return NAMES if registers == "nv_full" else tuple(each for each in NAMES if FORMATS[each].precision == "int8")


def misreads(machine: Machine, line: int, out_width: int) -> bool:
    """Whether CSC of nv_small and nv_large reads wrong bytes for a kernel line of `line` channels of an image.

    It counts blocks of atomic_c channels. A line with a single channel in its third or a later block is cut. Where
    the last stripe of a line of results is one pixel, each block between the first and the last counts as many
    channels as the last has, and the result is wrong once that misses a whole block.
    """
    blocks, block = -(-line // machine.atomic_c), machine.atomic_c
    last = line - block * (blocks - 1)
    if machine.registers == "nv_full":
        return False
    single = out_width % (2 * machine.atomic_k) == 1
    return (last == 1 and blocks >= 3) or (single and (blocks - 2) * (block - last) >= block)


def unpack(form: PixelFormat, planes: Sequence[Array], *, signed: bool = False) -> Array:
    """The image (H, W, C), int32 or float16, from planes (H, W, bytes of a pixel) uint8.

    signed: the highest bit of integers is their sign (PIXEL_SIGN_OVERRIDE).
    """
    height, width = planes[0].shape[:2]
    image = np.zeros((height, width, form.channels), np.float16 if form.floating else np.int32)
    for plane, data in zip(form.planes, planes, strict=True):
        wide = np.zeros((height, width, 8), np.uint8)
        wide[..., : plane.pixel_bytes] = data
        pixels = wide.view("<u8")[..., 0]
        for each in plane.components:
            value = (pixels >> np.uint64(each.low)) & np.uint64((1 << each.bits) - 1)
            if form.floating:
                image[..., each.channel] = value.astype(np.uint16).view(np.float16)
                continue
            number = value.astype(np.int32) << each.shift
            image[..., each.channel] = (number ^ each.sign) - each.sign if signed else number
    return image


def pack(form: PixelFormat, image: Array) -> list[Array]:
    """The planes (H, W, bytes of a pixel) uint8 of an image (H, W, C); the inverse of unpack."""
    packed: list[Array] = []
    for plane in form.planes:
        pixels = np.zeros(image.shape[:2], np.uint64)
        for each in plane.components:
            values = image[..., each.channel]
            bits = values.view(np.uint16) if form.floating else values.astype(np.int64) >> each.shift
            pixels |= (bits.astype(np.uint64) & np.uint64((1 << each.bits) - 1)) << np.uint64(each.low)
        packed.append(pixels[..., None].view(np.uint8)[..., : plane.pixel_bytes].copy())
    return packed


def store(form: PixelFormat, values: Array, memory: Array, line_stride: int) -> None:
    """Writes channels (C, H, W) as an image, plane behind plane; components without a channel become 0.

    memory: the bytes from the first line to the end of the last; line_stride may exceed the length of a line.
    """
    channels, height, width = values.shape
    image = np.zeros((height, width, form.channels), values.dtype)
    image[..., :channels] = values.transpose(1, 2, 0)
    lines = memory.reshape(len(form.planes), height, line_stride)
    for place, plane in zip(lines, pack(form, image), strict=True):
        place[:, : width * plane.shape[-1]] = plane.reshape(height, -1)
