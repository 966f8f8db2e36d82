"""Writes registers by name: fields, whole values, addresses."""

from __future__ import annotations

from npuc.targets.nvdla.machine.commands import Command, Write
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.machine.registers import register_map
from npuc.targets.nvdla.operations.operation import Fetch, KernelWindow, Surface


class Writer:
    """Collects register writes for a machine."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.map = register_map(machine.registers)
        self.commands: list[Command] = []

    def set(self, title: str, **fields: int | str) -> None:
        """Writes a register by its fields; the others have their reset values."""
        register = self.map[title]
        self.commands.append(Write(register.address, register.value(**fields)))

    def raw(self, title: str, value: int) -> None:
        """Writes all bits of a register: addresses and sizes in bytes, numbers in two's complement."""
        self.commands.append(Write(self.map[title].address, value & 0xFFFFFFFF))

    def ram(self, address: int) -> int:
        """RAM_TYPE of an address, in any unit: 0 for the second memory (CV), 1 for DRAM (MC)."""
        return int(not self.machine.in_sram(address))

    def address(self, block: str, stem: str, value: int) -> None:
        """Writes the low and the high word of an address."""
        self.raw(f"{block}.{stem}_LOW", value)
        self.raw(f"{block}.{stem}_HIGH", value >> 32)

    def cube(self, block: str, stem: str, place: Surface | Fetch) -> None:
        """Writes the address and the strides of a cube in memory."""
        self.address(block, f"{stem}_BASE_ADDR", place.address)
        self.raw(f"{block}.{stem}_LINE_STRIDE", place.line_stride)
        self.raw(f"{block}.{stem}_SURFACE_STRIDE", place.surface_stride)


def padding(writer: Writer, title: str, window: KernelWindow) -> None:
    """The four sides of a window's padding."""
    sides = {"LEFT": window.left, "RIGHT": window.right, "TOP": window.top, "BOTTOM": window.bottom}
    writer.set(title, **{f"PAD_{side}": value for side, value in sides.items()})
