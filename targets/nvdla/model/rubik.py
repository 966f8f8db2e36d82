"""RUBIK rearranges cubes: contraction (for deconvolution), split into planes, merge of planes.

Contract: the surfaces of sub-kernel (row phase * stride_x + column phase) become those of the pixels (y * stride_y
+ row phase, x * stride_x + column phase). Split writes every channel as a plane of rows; merge reads planes into a
cube and fills up the last atom with 0.

Source: in-memory formats, deconvolution and Feature Data Format; there are no outside data for it.
"""

from __future__ import annotations

import numpy as np

from npuc.ir import Array
from npuc.targets.nvdla.formats.precision import DTYPES
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.model.memory import MemoryPort, Pattern, as_channels, as_lanes, read_cube, write_cube
from npuc.targets.nvdla.model.register_file import RegisterGroup, trap

BLOCK = "RBK"


def run(group: RegisterGroup, machine: Machine, port: MemoryPort) -> None:
    """Runs one operation. Raises ArtefactError (E503) if the configuration has no RUBIK."""
    if not machine.rubik:
        raise trap(BLOCK, f"{machine.name} has no RUBIK")
    {"CONTRACT": _contract, "SPLIT": _split, "MERGE": _merge}[group.value_name("RUBIK_MODE")](group, machine, port)


def _precision(group: RegisterGroup) -> str:
    return group.value_name("IN_PRECISION").lower()


def _size(group: RegisterGroup) -> tuple[int, int, int]:
    """Height, width and channels of the input."""
    return group["DATAIN_HEIGHT"] + 1, group["DATAIN_WIDTH"] + 1, group["DATAIN_CHANNEL"] + 1


def _start(group: RegisterGroup, side: str) -> int:
    return group.address(f"{side}_ADDR_LOW", f"{side}_ADDR_HIGH", f"{side.replace('DA', 'DATA')}_RAM_TYPE")


def _cube(group: RegisterGroup, machine: Machine, side: str, size: tuple[int, int, int]) -> Pattern:
    """The bytes of a cube of (rows, columns, surfaces); side: DAIN or DAOUT."""
    height, width, surfaces = size
    start = _start(group, side)
    line, surface = group.bytes(f"{side}_LINE_STRIDE"), group.bytes(f"{side}_SURF_STRIDE")
    return Pattern(start, width * machine.atom_bytes, height, line, surfaces, surface)


def _surfaces(group: RegisterGroup, machine: Machine, channels: int) -> int:
    return -(-channels // machine.atom_elements(_precision(group)))


def _contract(group: RegisterGroup, machine: Machine, port: MemoryPort) -> None:
    height, width, _ = _size(group)
    sx, sy = group["DECONV_X_STRIDE"] + 1, group["DECONV_Y_STRIDE"] + 1
    surfaces = _surfaces(group, machine, group["DATAOUT_CHANNEL"] + 1)
    place = _cube(group, machine, "DAIN", (height, width, sx * sy * surfaces))
    atoms = read_cube(port, place, machine, _precision(group))
    phases = atoms.reshape(sy, sx, surfaces, height, width, -1).transpose(2, 3, 0, 4, 1, 5)
    merged = phases.reshape(surfaces, height * sy, width * sx, -1)
    out = _cube(group, machine, "DAOUT", (height * sy, width * sx, surfaces))
    write_cube(port, out, machine, merged)


def _planes(group: RegisterGroup, machine: Machine, port: MemoryPort, side: str, *, write: bool) -> Array:
    """Planes (C, H, bytes of a line), in their memory layout."""
    height, width, channels = _size(group)
    line_bytes = width * np.dtype(DTYPES[_precision(group)]).itemsize
    start = _start(group, side)
    line, plane = group.bytes(f"{side}_LINE_STRIDE"), group.bytes(f"{side}_PLANAR_STRIDE")
    place = Pattern(start, line_bytes, height, line, channels, plane)
    return port.cube(place, line_bytes, unit=machine.atom_bytes, write=write)[:, :, 0]


def _split(group: RegisterGroup, machine: Machine, port: MemoryPort) -> None:
    height, width, channels = _size(group)
    place = _cube(group, machine, "DAIN", (height, width, _surfaces(group, machine, channels)))
    data = as_channels(read_cube(port, place, machine, _precision(group)))[..., :channels]
    lines = np.ascontiguousarray(data.transpose(2, 0, 1)).view(np.uint8)
    _planes(group, machine, port, "DAOUT", write=True)[...] = lines


def _merge(group: RegisterGroup, machine: Machine, port: MemoryPort) -> None:
    height, width, channels = _size(group)
    lines = np.ascontiguousarray(_planes(group, machine, port, "DAIN", write=False))
    data = lines.view(DTYPES[_precision(group)]).transpose(1, 2, 0)
    lanes = machine.atom_elements(_precision(group))
    out = _cube(group, machine, "DAOUT", (height, width, _surfaces(group, machine, channels)))
    write_cube(port, out, machine, as_lanes(data, lanes))
