"""Emission: operations to register writes, by the tables of NVDLA's firmware.

Each block has two register groups, used alternately: one is written while the other runs, so that the input of an
operation is fetched while the previous one computes. The scoreboard decides what an operation waits for. Its
blocks are enabled from last to first, so that no block produces data before the next one is ready; if SDP must
wait for longer than the input, the convolution pipeline is enabled first and waits for SDP.

Source: a convolution, a pooling and an addition as they ran on the nv_small and nv_large RTL.
"""

from __future__ import annotations

from collections.abc import Iterable

from npuc.targets.nvdla.emission.writer import RegisterWriter
from npuc.targets.nvdla.machine.commands import Command, Poll, Write
from npuc.targets.nvdla.machine.limits import LIMITS
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.model.register_file import RegisterGroup
from npuc.targets.nvdla.model.traps import expect_within_limits
from npuc.targets.nvdla.operations.operation import Operation
from npuc.targets.nvdla.operations.scoreboard import CONVOLUTION, Admission, Scoreboard, blocks_of

MASKED = ("CDMA_DAT", "CDMA_WT", "CACC")
"""Interrupt sources that only report progress within a convolution."""
BRIDGE = "BDMA"
"""BDMA has a queue of copies instead of register groups; each launch counts as a group, ended by its interrupt."""


def kind(operation: Operation) -> str:
    """The operation's name in reports."""
    return type(operation).__name__.lower()


class Emitter:
    """Writes operations in order, alternating the register groups of each block."""

    def __init__(self, machine: Machine) -> None:
        self.writer = RegisterWriter(machine)
        self.scoreboard = Scoreboard(machine.atom_bytes)
        self._values = {
            (block, group): {each.name: each.reset for each in self.writer.map.registers if each.block == block}
            for block in LIMITS
            for group in (0, 1)
        }
        """The registers of blocks with limits, by block and group, as the commands so far leave them."""
        self._checked = 0

    def start(self) -> None:
        """The driver's initialisation: masks interrupts, and waits until the CBUF is flushed."""
        masks = {f"{source}_DONE_MASK{group}": 1 for source in MASKED for group in (0, 1)}
        self.writer.set("GLB.S_INTR_MASK", **masks)
        flushed = self.writer.map["CDMA.S_CBUF_FLUSH_STATUS"]
        self.writer.commands.append(Poll(flushed.address, 1, 1))
        if self.writer.machine.registers == "nv_full":
            self.writer.set("CDMA.S_ARBITER", ARB_WEIGHT=15, ARB_WMB=3)

    def emit(self, operation: Operation) -> Admission:
        """Programs and enables an operation, waiting before each for the operations that it needs to have ended.

        Returns the operation's admission. Raises ArtefactError (E503) if its registers break a limit of a block.
        """
        before = self.scoreboard
        admission, self.scoreboard = before.admit(operation)
        self._wait(before, before.count - len(before.issued), admission.program)
        for block, group in self.scoreboard.issued[-1].groups.items():
            if block != BRIDGE:
                self.writer.set(f"{block}.S_POINTER", PRODUCER=group)
        self.writer.write(operation)
        blocks = blocks_of(operation)
        self._expect_within_limits(blocks)
        self._wait(before, admission.program, admission.fetch)
        early = CONVOLUTION if admission.fetch < admission.write else ()
        self._enable(early)
        self._wait(before, admission.fetch, admission.write)
        self._enable([block for block in blocks if block not in early])
        return admission

    def drain(self) -> None:
        """Waits for all operations that may still run."""
        before = self.scoreboard
        self._wait(before, before.count - len(before.issued), before.count)
        self.scoreboard = before.drained()

    def _expect_within_limits(self, blocks: Iterable[str]) -> None:
        """Raises ArtefactError (E503) if the latest operation breaks a limit of one of its blocks."""
        groups, known = self.scoreboard.issued[-1].groups, self.writer.map
        values = {
            block: self._values[block, 0 if block == BRIDGE else groups[block]]
            for block in blocks
            if block in LIMITS
        }
        for each in self.writer.commands[self._checked :]:
            if isinstance(each, Write):
                register = known.by_address[each.address]
                if register.block in values:
                    values[register.block][register.name] = each.value
        self._checked = len(self.writer.commands)
        for block, found in values.items():
            expect_within_limits(RegisterGroup(known, block, found), self.writer.machine)

    def _enable(self, blocks: Iterable[str]) -> None:
        for block in blocks:
            if block == BRIDGE:
                group = self.scoreboard.issued[-1].groups[block]
                self.writer.set(f"{block}.CFG_LAUNCH{group}", **{f"GRP{group}_LAUNCH": "YES"})
            else:
                self.writer.set(f"{block}.D_OP_ENABLE", OP_EN="ENABLE")

    def _wait(self, scoreboard: Scoreboard, first: int, end: int) -> None:
        """Waits for the operations with numbers from `first` to before `end`."""
        gone = scoreboard.count - len(scoreboard.issued)
        for each in scoreboard.issued[first - gone : end - gone]:
            self.writer.commands += each.waits


def program(machine: Machine, operations: Iterable[Operation]) -> list[Command]:
    """The commands that run operations in order."""
    emitter = Emitter(machine)
    emitter.start()
    for operation in operations:
        emitter.emit(operation)
    emitter.drain()
    return emitter.writer.commands
