"""A test program: what memory holds, what is written to registers, what must come of it."""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace

from npuc.targets.nvdla.machine.commands import Command
from npuc.targets.nvdla.machine.parameters import FULL, LARGE, SMALL, Machine
from npuc.targets.nvdla.model.memory import Memory

MACHINES = {"nv_small": replace(SMALL, elementwise=True, sdp_lut=True), "nv_large": LARGE, "nv_full": FULL}
"""The machines of the test programs: NVDLA's reference model runs EW on nv_small too, whose RTL lacks it."""


@dataclass(frozen=True)
class Check:
    """What a region holds after the run: its CRC-32, or its bytes."""

    address: int
    size: int
    crc: int

    def holds(self, memory: Memory) -> bool:
        """Whether the region is as expected."""
        return zlib.crc32(memory.read(self.address, self.size)) == self.crc


@dataclass(frozen=True)
class Trace:
    """A test program."""

    name: str
    configuration: str
    """What it is made for: nv_small, nv_large or nv_full."""
    commands: tuple[Command, ...]
    contents: tuple[tuple[int, bytes], ...]
    """What memory holds before the run: later entries over earlier ones; the second memory from SECOND on."""
    checks: tuple[Check, ...]
    clocks: tuple[int, ...] = ()
    """For how long each wait may last, at most; none where nobody asked."""

    @property
    def machine(self) -> Machine:
        """The machine it is made for."""
        return MACHINES[self.configuration]

    def memory(self) -> Memory:
        """The memory before the run: what is loaded or checked, in whole pages; all the rest is 0."""
        spans = [(address, len(data)) for address, data in self.contents]
        memory = Memory.covering([*spans, *((each.address, each.size) for each in self.checks)], endless=True)
        for address, data in self.contents:
            memory.write(address, data)
        return memory
