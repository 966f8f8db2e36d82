"""Feature cubes inside the model: (batch, surface, H, W, lane), with full surfaces as in memory.

Lanes beyond the last channel are computed and written like all others.
"""

from __future__ import annotations

import numpy as np

from npuc.ir import Array
from npuc.targets.nvdla.formats.precision import DTYPES
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.model import fp16
from npuc.targets.nvdla.model.memory import MemoryPort, Pattern
from npuc.targets.nvdla.model.register_file import RegisterGroup


def place(group: RegisterGroup, side: str, extents: tuple[int, int, int], machine: Machine) -> Pattern:
    """The place of a block's input (side SRC) or output (DST), of (rows, columns, surfaces), by its registers."""
    height, width, surfaces = extents
    start = group.address(f"{side}_BASE_ADDR_LOW", f"{side}_BASE_ADDR_HIGH", f"{side}_RAM_TYPE")
    line, surface = group.bytes(f"{side}_LINE_STRIDE"), group.bytes(f"{side}_SURFACE_STRIDE")
    return Pattern(start, width * machine.atom_bytes, height, line, surfaces, surface)


def read(port: MemoryPort, place: Pattern, machine: Machine, precision: str) -> Array:
    """A cube (surface, H, W, lane) in its own type."""
    return np.ascontiguousarray(port.cube(place, machine.atom_bytes)).view(DTYPES[precision])


def write(port: MemoryPort, place: Pattern, machine: Machine, values: Array) -> None:
    """Stores a cube (surface, H, W, lane), int8, int16 or float16."""
    memory = port.cube(place, machine.atom_bytes, write=True)
    memory[...] = np.ascontiguousarray(values).view(np.uint8)


def as_lanes(values: Array, lanes: int) -> Array:
    """Channels (..., H, W, C) as surfaces (..., surface, H, W, lane), filling up the last surface with 0."""
    channels = values.shape[-1]
    surfaces = -(-channels // lanes)
    if surfaces * lanes != channels:
        around = [(0, 0)] * (values.ndim - 1) + [(0, surfaces * lanes - channels)]
        values = np.pad(values, around)
    return np.moveaxis(values.reshape(*values.shape[:-1], surfaces, lanes), -2, -4)


def as_channels(values: Array) -> Array:
    """Surfaces (..., surface, H, W, lane) as channels (..., H, W, C)."""
    moved = np.moveaxis(values, -4, -2)
    return moved.reshape(*moved.shape[:-2], -1)


def with_lanes(values: Array, lanes: int, channels: int) -> Array:
    """A cube rearranged into surfaces of another number of lanes."""
    if values.shape[-1] == lanes:
        return values
    return as_lanes(as_channels(values)[..., :channels], lanes)


def wide(values: Array, infinity: float, *, flush: bool) -> Array:
    """Integers as int64, fp16 as float32 with infinities and NaN handled as the block does."""
    if np.issubdtype(values.dtype, np.floating):
        return fp16.received(values, infinity, flush=flush)
    return values.astype(np.int64)
