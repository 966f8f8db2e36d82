"""Writes test programs in nv_small's syntax: NAME.cfg, and a .dat file for each content of memory.

A sequential player executes the file in order and stops at `intr_notify` until the interrupt comes. NVDLA's own
environment has players of both kinds of calls: a sequencer for every block, all at once, and monitors that
announce interrupts. For it, sync_wait lets a block wait for the interrupts that stand before its next command, and
sync_notify hands on the order in which blocks are enabled; results are checked when all interrupts have come.
The Verilator test bench of NVDLA's tree has no waits, and its polls give up after ten reads: there the time of an
operation is spent with reads of a register that nothing changes, and one check stands behind the last interrupt.
Source: NVDLA's verification guide, configuration file format; verif/verilator of NVDLA's hardware repository.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from npuc.errors import ArtefactError
from npuc.targets.nvdla.emission import BRIDGE
from npuc.targets.nvdla.machine.commands import SEQUENCERS, SEQUENTIAL, VERILATOR, Command, Poll, Wait, Write
from npuc.targets.nvdla.machine.parameters import SECOND
from npuc.targets.nvdla.machine.registers import Register, RegisterMap, register_map
from npuc.targets.nvdla.model.nvdla import BLOCK_OF
from npuc.targets.nvdla.trace.dat import packed
from npuc.targets.nvdla.trace.program import Trace

MEMORIES = ("pri_mem", "sec_mem")
"""DRAM and the second memory."""
MEMORY_NUMBER = 1
"""DRAM as check_crc names it, where all results lie."""
FINISHED = "finished"
MASK, STATUS = "GLB.S_INTR_MASK", "GLB.S_INTR_STATUS"
POLL_CLOCKS = 8
"""Clocks that a read of a register takes at least."""


def written(trace: Trace, player: str = SEQUENTIAL) -> dict[str, bytes]:
    """The files of a test program for one of commands.PLAYERS.

    Regions that are checked are set to zero first, where nothing is loaded. Raises ArtefactError (E504) for a poll
    of some bits only, which the syntax has not.
    """
    files: dict[str, bytes] = {}
    lines = [f"mem_init({_place(at)}, {size:#x}, ALL_ZERO);" for at, size in _cleared(trace)]
    loaded = [(address, data) for address, data in trace.contents if any(data)]
    for number, (address, data) in enumerate(loaded):
        name = f"{trace.name}_{number}.dat"
        files[name] = packed(data)
        lines.append(f'mem_load({_place(address)}, "{name}");')
    written = _PLAYED[player](register_map(trace.configuration), trace)
    for command in trace.commands:
        lines += written.command(command)
    lines += written.end()
    for check in trace.checks:
        region = f"{MEMORY_NUMBER}, {check.address:#x}, {check.size:#x}, {check.crc:#x}"
        lines.append(f"check_crc({written.last()}, {region});")
    files[f"{trace.name}.cfg"] = ("\n".join(lines) + "\n").encode()
    return files


def _place(address: int) -> str:
    """The memory of an address, and the address in it."""
    second, at = divmod(address, SECOND)
    return f"{MEMORIES[second]}, {at:#x}"


def _cleared(trace: Trace) -> list[tuple[int, int]]:
    """What is set to zero: contents, and what is checked outside of them."""
    regions = [(address, len(data)) for address, data in trace.contents]
    for check in trace.checks:
        if not any(at <= check.address and check.address + check.size <= at + size for at, size in regions):
            regions.append((check.address, check.size))
    return regions


@dataclass
class _Sequential:
    """Calls that are executed in the order of the file."""

    registers: RegisterMap
    trace: Trace
    interrupts: int = 0
    """How many have been waited for."""

    def command(self, command: Command) -> Iterator[str]:
        """The calls of a command."""
        match command:
            case Wait():
                source = f"{command}, " if command.source else ""
                yield f"intr_notify({source}{_interrupt(self.interrupts)});"
                self.interrupts += 1
            case Write():
                title = self.registers.at(command.address).title
                yield f"reg_write(NVDLA_{title}_0, {command.value:#x});"
            case Poll():
                register = self.registers.at(command.address)
                _expect_whole(register, command)
                yield f"poll_reg_equal(NVDLA_{register.title}_0, {command.value:#x});"

    def end(self) -> Iterator[str]:
        """The calls behind all commands."""
        return iter(())

    def last(self) -> str:
        """The event after which results are checked."""
        return _interrupt(max(self.interrupts - 1, 0))


@dataclass
class _Sequenced(_Sequential):
    """Calls that every block's sequencer executes on its own."""

    awaited: dict[str, int] = field(default_factory=dict[str, int])
    """How many interrupts each block has waited for."""
    ordered: list[str] = field(default_factory=list[str])
    """The blocks of the commands that keep their order."""

    def command(self, command: Command) -> Iterator[str]:
        """The calls of a command, between what its block waits for and what it hands on."""
        if isinstance(command, Wait):
            yield from super().command(command)
            return
        register = self.registers.at(command.address)
        block = f"NVDLA_{register.block}"
        yield from self._interrupts_before(block)
        enables = register.name == "D_OP_ENABLE" or register.name.startswith("CFG_LAUNCH")
        in_order = isinstance(command, Write) and (enables or register.block == "GLB")
        if in_order and self.ordered and self.ordered[-1] != block:
            yield f"sync_wait({block}, {_order(len(self.ordered) - 1)});"
        yield from super().command(command)
        if in_order:
            yield f"sync_notify({block}, {_order(len(self.ordered))});"
            self.ordered.append(block)

    def end(self) -> Iterator[str]:
        """All interrupts have come."""
        block = self.ordered[-1] if self.ordered else "NVDLA_GLB"
        yield from self._interrupts_before(block)
        yield f"sync_notify({block}, {FINISHED});"

    def last(self) -> str:
        """The event after which results are checked."""
        return FINISHED

    def _interrupts_before(self, block: str) -> Iterator[str]:
        for number in range(self.awaited.get(block, 0), self.interrupts):
            yield f"sync_wait({block}, {_interrupt(number)});"
        self.awaited[block] = self.interrupts


@dataclass
class _Polled(_Sequential):
    """Calls of the Verilator test bench: a wait is time that reads take, and a poll that the block is idle."""

    mask: int = 0
    """What GLB.S_INTR_MASK holds."""

    def command(self, command: Command) -> Iterator[str]:
        """The calls of a command; behind the last wait the interrupt is left to the monitor."""
        if isinstance(command, Write):
            title = self.registers.at(command.address).title
            self.mask = command.value if title == MASK else self.mask
        if not isinstance(command, Wait) or command.source is None:
            yield from super().command(command)
            return
        for _ in range(-(-self.trace.clocks[self.interrupts] // POLL_CLOCKS)):
            yield f"poll_reg_equal(NVDLA_{MASK}_0, {self.mask:#x});"
        yield self._idle(BLOCK_OF.get(command.source, command.source))
        self.interrupts += 1
        if self.interrupts == len(self.trace.clocks):
            yield f"intr_notify({command}, {self.last()});"
            return
        bit = self.registers[STATUS].places[f"{command.source}_DONE_STATUS{command.group}"].low
        yield f"reg_write(NVDLA_{STATUS}_0, {1 << bit:#x});"

    def _idle(self, block: str) -> str:
        """A poll that a block is idle: BDMA, which has no groups, is then as after reset."""
        if block != BRIDGE:
            return f"poll_reg_equal(NVDLA_{block}.S_STATUS_0, 0x0);"
        return f"poll_reg_equal(NVDLA_{block}.STATUS_0, {self.registers[f'{block}.STATUS'].reset:#x});"

    def last(self) -> str:
        """The one event."""
        return _interrupt(0)


_PLAYED: Mapping[str, type[_Sequential]] = {
    SEQUENTIAL: _Sequential,
    SEQUENCERS: _Sequenced,
    VERILATOR: _Polled,
}


def _interrupt(number: int) -> str:
    return f"sync_id_{number}"


def _order(number: int) -> str:
    return f"order_{number}"


def _expect_whole(register: Register, poll: Poll) -> None:
    """Raises ArtefactError (E504) for a poll of some of a register's bits."""
    whole = sum(((1 << each.width) - 1) << each.low for each in register.fields)
    if poll.mask & whole != whole:
        raise ArtefactError("E504", f"{register.title} is polled under a mask", limit="the whole register")
