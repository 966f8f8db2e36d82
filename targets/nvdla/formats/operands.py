"""Bias, PReLU, Batch Normalization and Element-Wise Data Format: the operands that SDP fetches.

An operand cube has the atoms of the output, but its own bytes per element: components (ALU, multiplier or both, as
a pair) times bytes of a component. Atoms have 32 elements in int8, 16 in int16 and fp16, 8 on nv_small. Operands
per layer are in registers.

Source: in-memory formats, from Bias Data Format to Element-Wise Data Format, figures 18 to 27, BytesPerAtom =
ElementPerAtom * ComponentsPerElement * BytesPerComponent.
"""

from __future__ import annotations

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.nvdla.machine.parameters import Machine


@frozen
class OperandCube:
    """An operand cube: 1x1xC per channel, WxHxC per element."""

    width: int
    height: int
    channels: int
    components: int
    """1: bias, PReLU, ALU or multiplier; 2: pairs of batch normalisation or of both operations."""
    component_bytes: int
    """1 or 2 (DATA_SIZE)."""
    atom_elements: int
    """ElementPerAtom, for the processing precision."""
    dtype: str = "int16"
    """Type of a two-byte component: int16 or float16."""

    @classmethod
    def per_channel(
        cls, machine: Machine, channels: int, components: int, component_bytes: int, precision: str = "int8"
    ) -> OperandCube:
        """A 1x1xC operand for a processing precision."""
        return cls.per_element(machine, (channels, 1, 1), components, component_bytes, precision)

    @classmethod
    def per_element(
        cls,
        machine: Machine,
        shape: tuple[int, int, int],
        components: int,
        component_bytes: int,
        precision: str = "int8",
    ) -> OperandCube:
        """An operand for every element of a map (C, H, W)."""
        channels, height, width = shape
        dtype = "float16" if precision == "fp16" else "int16"
        elements = machine.atom_elements(precision)
        return cls(width, height, channels, components, component_bytes, elements, dtype)

    @property
    def bytes_per_atom(self) -> int:
        """ElementPerAtom * ComponentsPerElement * BytesPerComponent."""
        return self.atom_elements * self.components * self.component_bytes

    @property
    def surfaces(self) -> int:
        """Atoms of a pixel."""
        return -(-self.channels // self.atom_elements)

    @property
    def line_stride(self) -> int:
        """Bytes of a line, packed."""
        return self.width * self.bytes_per_atom

    @property
    def surface_stride(self) -> int:
        """Bytes of a surface, packed."""
        return self.height * self.line_stride

    @property
    def bytes(self) -> int:
        """Size of all surfaces."""
        return self.surfaces * self.surface_stride

    @property
    def element(self) -> str:
        """The numpy type of a component."""
        return "int8" if self.component_bytes == 1 else self.dtype


def pack(operand: OperandCube, *components: Array) -> bytes:
    """The bytes of an operand cube from components (C, H, W), or (C,) per channel; atoms are padded with 0."""
    shape = (operand.surfaces * operand.atom_elements, operand.height, operand.width, operand.components)
    filled = np.zeros(shape, operand.element)
    for position, values in enumerate(components):
        filled[: operand.channels, ..., position] = values.reshape(operand.channels, operand.height, operand.width)
    split = filled.reshape(operand.surfaces, operand.atom_elements, *shape[1:])
    return split.transpose(0, 2, 3, 1, 4).tobytes()
