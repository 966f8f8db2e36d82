"""Images in memory, as CDMA fetches them: pixels of up to four components, in one or two planes.

Source: in-memory formats, Pixel Format, table 33; the formats, offsets and padding of each configuration as seen
on the RTL.
"""

from __future__ import annotations

import numpy as np

from npuc.ir import Array
from npuc.targets.nvdla.formats import pixels as formats
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.model.memory import MemoryPort, Pattern
from npuc.targets.nvdla.model.register_file import RegisterGroup, trap

BLOCK = "CDMA"
PLANES = (("0", "LINE_STRIDE"), ("1", "UV_LINE_STRIDE"))
"""The suffix of the address registers and the field of the line stride, by plane."""


def fetch(group: RegisterGroup, machine: Machine, port: MemoryPort) -> Array:
    """The image (1, H, W, C): integers as int32, or float16.

    Raises ArtefactError (E503) for a setting that table 33 does not have.
    """
    form = formats.FORMATS[group.named("PIXEL_FORMAT")]
    if form.name not in formats.of(machine.registers):
        raise trap(BLOCK, f"PIXEL_FORMAT = {form.name}", limit=f"{', '.join(formats.of(machine.registers))}")
    width, height, channels = (group[f"DATAIN_{each}"] + 1 for each in ("WIDTH", "HEIGHT", "CHANNEL"))
    if channels != form.channels:
        raise trap(BLOCK, f"{channels} channels of {form.name}", limit=f"{form.channels} (table 33)")
    if group.named("PIXEL_MAPPING") != "PITCH_LINEAR":
        raise trap(BLOCK, f"PIXEL_MAPPING = {group.named('PIXEL_MAPPING')}", limit="PITCH_LINEAR")
    _expect_in_line(form, group, machine, width)
    planes = [
        _plane(group, machine, port, (each, form.planes[each].pixel_bytes), (height, width))
        for each in range(len(form.planes))
    ]
    return formats.unpack(form, planes, signed=group.named("PIXEL_SIGN_OVERRIDE") == "SIGNED_INT")[None]


def _expect_in_line(form: formats.PixelFormat, group: RegisterGroup, machine: Machine, width: int) -> None:
    """Raises ArtefactError (E503) for an x offset beyond an atom, or padding beyond CDMA's counters."""
    offset, most = group["PIXEL_X_OFFSET"], form.largest_offset(machine.atom_bytes)
    if offset > most:
        limit = f"0..{most}, within an atom of {machine.name}"
        raise trap(BLOCK, f"an x offset of {offset} pixels of {form.name}", limit=limit)
    left, right = group["PAD_LEFT"], group["PAD_RIGHT"]
    if not form.pads(machine.atom_bytes, width, left, right, offset):
        reason = f"lines of {width} pixels of {form.name} with {left} columns of padding left and {right} right"
        remedy = "store the padding as pixels, or use another format"
        raise trap(
            BLOCK, reason, limit="what its counters of padding hold: later lines would be wrong", remedy=remedy
        )


def _plane(
    group: RegisterGroup, machine: Machine, port: MemoryPort, plane: tuple[int, int], size: tuple[int, int]
) -> Array:
    """The bytes (H, W, bytes of a pixel) of a plane, starting at the x offset.

    The offset is the distance from an aligned address to the first pixel. In a second plane, whose pixels are
    wider, the plane's own address includes the whole atoms of that distance.
    """
    index, pixel_bytes = plane
    height, width = size
    number, stride = PLANES[index]
    start = group.address(f"DATAIN_ADDR_LOW_{number}", f"DATAIN_ADDR_HIGH_{number}", "DATAIN_RAM_TYPE")
    skipped = group["PIXEL_X_OFFSET"] * pixel_bytes % machine.atom_bytes
    line_bytes = skipped + width * pixel_bytes
    place = Pattern(start, line_bytes, height, group.bytes(stride))
    line = port.cube(place, line_bytes, unit=machine.atom_bytes)[0, :, 0]
    return np.ascontiguousarray(line[:, skipped:]).reshape(height, width, pixel_bytes)
