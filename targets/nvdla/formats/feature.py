"""Feature Data Format: cubes of atoms, line after line, surface after surface.

An atom contains the channels of one pixel that fit its bytes (32 on nv_full and nv_large, 8 on nv_small, where
every 32 of the document scales). Order: channel in atom, W, H, surface. There may be gaps between lines and
surfaces (unpacked).

Source: in-memory formats, Feature Data Format, figures 10 and 11.
"""

from __future__ import annotations

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.nvdla.formats.precision import DTYPES
from npuc.targets.nvdla.machine.parameters import BYTES, Machine


@frozen
class Cube:
    """A feature data cube: extents in elements, strides in bytes."""

    width: int
    height: int
    channels: int
    precision: str
    atom_bytes: int
    line_stride: int
    surface_stride: int

    @classmethod
    def of(cls, machine: Machine, width: int, height: int, channels: int, precision: str = "int8") -> Cube:
        """A cube whose lines and surfaces have no gaps."""
        line = width * machine.atom_bytes
        return cls(width, height, channels, precision, machine.atom_bytes, line, height * line)

    @property
    def atom_elements(self) -> int:
        """Channels of an atom."""
        return self.atom_bytes // BYTES[self.precision]

    @property
    def surfaces(self) -> int:
        """Atoms of a pixel."""
        return -(-self.channels // self.atom_elements)

    @property
    def bytes(self) -> int:
        """Bytes from the first to the last."""
        last_line = (self.height - 1) * self.line_stride + self.width * self.atom_bytes
        return (self.surfaces - 1) * self.surface_stride + last_line


def pack(cube: Cube, values: Array) -> Array:
    """The bytes of feature maps: (..., C, H, W) of the cube's precision to (..., cube.bytes) uint8.

    Gaps between lines and surfaces and unused channels of the last atom are 0 (never NaN in fp16).
    """
    memory = np.zeros((*values.shape[:-3], cube.bytes), np.uint8)
    store(cube, values, memory)
    return memory


def store(cube: Cube, values: Array, memory: Array) -> None:
    """Writes feature maps (..., C, H, W) to memory (..., cube.bytes); gaps between lines are left unchanged."""
    filled = np.zeros(
        (*values.shape[:-3], cube.surfaces * cube.atom_elements, *values.shape[-2:]), DTYPES[cube.precision]
    )
    filled[..., : cube.channels, :, :] = values
    split = filled.reshape(*filled.shape[:-3], cube.surfaces, cube.atom_elements, *filled.shape[-2:])
    atoms = np.ascontiguousarray(np.moveaxis(split, -3, -1))
    _atoms(cube, memory)[...] = atoms.view(np.uint8)


def unpack(cube: Cube, memory: Array) -> Array:
    """The feature maps (..., C, H, W) stored in memory (..., at least cube.bytes) uint8."""
    atoms = np.ascontiguousarray(_atoms(cube, memory))
    split = np.moveaxis(atoms.view(DTYPES[cube.precision]), -1, -3)
    whole = split.reshape(*split.shape[:-4], cube.surfaces * cube.atom_elements, cube.height, cube.width)
    return whole[..., : cube.channels, :, :]


def _atoms(cube: Cube, memory: Array) -> Array:
    """The atoms of memory (..., bytes) as a view (..., surface, H, W, byte in atom)."""
    shape = (*memory.shape[:-1], cube.surfaces, cube.height, cube.width, cube.atom_bytes)
    strides = (*memory.strides[:-1], cube.surface_stride, cube.line_stride, cube.atom_bytes, 1)
    return np.lib.stride_tricks.as_strided(memory, shape, strides)
