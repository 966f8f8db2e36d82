"""Test programs: initial memory, commands, and expected results."""

from __future__ import annotations

import zlib
from dataclasses import replace

from npuc.frozen import frozen
from npuc.targets.nvdla.machine.commands import Command
from npuc.targets.nvdla.machine.parameters import FULL, LARGE, SMALL, Machine
from npuc.targets.nvdla.model.memory import Memory

MACHINES = {"nv_small": replace(SMALL, elementwise=True, sdp_lut=True), "nv_large": LARGE, "nv_full": FULL}
"""The machines of test programs: NVDLA's reference model runs EW on nv_small too, whose RTL lacks it."""


@frozen
class Check:
    """The expected CRC-32 of a region after the run."""

    address: int
    size: int
    crc: int

    def holds(self, memory: Memory) -> bool:
        """Whether the region is as expected."""
        return zlib.crc32(memory.read(self.address, self.size)) == self.crc


@frozen
class Trace:
    """A test program."""

    name: str
    configuration: str
    """The configuration that it is made for: nv_small, nv_large or nv_full."""
    commands: tuple[Command, ...]
    contents: tuple[tuple[int, bytes], ...]
    """Memory contents before the run, later entries taking precedence; the second memory is from SECOND on."""
    checks: tuple[Check, ...]
    clocks: tuple[int, ...] = ()
    """The most clocks that each wait may take; empty unless asked for."""

    @property
    def machine(self) -> Machine:
        """The machine that it is made for."""
        return MACHINES[self.configuration]

    def memory(self) -> Memory:
        """The memory before the run: loaded and checked regions in whole pages, surrounded by zeros."""
        spans = [(address, len(data)) for address, data in self.contents]
        memory = Memory.covering([*spans, *((each.address, each.size) for each in self.checks)], endless=True)
        for address, data in self.contents:
            memory.write(address, data)
        return memory
