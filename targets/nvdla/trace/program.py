"""Test programs: initial memory, commands, expected results; their memory files; written in nv_small's syntax.

Memory files are .dat packets of nv_small and dumps of nv_full. A packet is {offset:0x20, size:4, payload:0x00 0x10
0x20 0x30}, one per line, of at most 32 bytes. A test program is written as NAME.cfg, and a .dat file for each
region of memory.

A sequential player executes the file in order and stops at `intr_notify` until the interrupt comes. NVDLA's own
environment runs two kinds of players in parallel: a sequencer for each block, and monitors that announce
interrupts. For it, sync_wait makes a block wait for the interrupts that precede its next command, and sync_notify
passes on the order in which blocks are enabled; results are checked after all interrupts. The Verilator test bench
of NVDLA's tree has no waits, and its polls give up after ten reads: there the time of an operation is spent on
reads of a constant register, and a single check follows the last interrupt.

Source: NVDLA's verification guide, configuration file format; verif/verilator of NVDLA's hardware repository.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.system.budget import content
from npuc.targets.nvdla.emission import BRIDGE
from npuc.targets.nvdla.machine.parameters import FULL, LARGE, SECOND, SMALL, Machine
from npuc.targets.nvdla.machine.registers import (
    SEQUENCERS,
    SEQUENTIAL,
    VERILATOR,
    Command,
    Poll,
    Register,
    RegisterMap,
    Wait,
    Write,
    register_map,
)
from npuc.targets.nvdla.model import BLOCK_OF
from npuc.targets.nvdla.model.memory import DeviceMemory

MACHINES = {"nv_small": replace(SMALL, elementwise=True, sdp_lut=True), "nv_large": LARGE, "nv_full": FULL}
"""The machines of test programs: NVDLA's reference model runs EW on nv_small too, whose RTL lacks it."""


@frozen
class CrcCheck:
    """The expected CRC-32 of a region after the run."""

    address: int
    size: int
    crc: int

    def holds(self, memory: DeviceMemory) -> bool:
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
    checks: tuple[CrcCheck, ...]
    clocks: tuple[int, ...] = ()
    """The most clocks that each wait may take; empty unless asked for."""

    @property
    def machine(self) -> Machine:
        """The machine that it is made for."""
        return MACHINES[self.configuration]

    def memory(self) -> DeviceMemory:
        """The memory before the run: loaded and checked regions in whole pages, surrounded by zeros."""
        spans = [(address, len(data)) for address, data in self.contents]
        memory = DeviceMemory.zero_pages(
            [*spans, *((each.address, each.size) for each in self.checks)], endless=True
        )
        for address, data in self.contents:
            memory.write(address, data)
        return memory


PACKET_BYTES = 32
PACKET = re.compile(r"\{\s*offset\s*:\s*(\w+)\s*,\s*size\s*:\s*(\w+)\s*,\s*payload\s*:([^}]*)\}")


def text_of(path: Path) -> str:
    """The text of a file. Raises ArtefactError (E502) if it cannot be read."""
    try:
        return content(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise ArtefactError("E502", f"{path.name} cannot be read: {error.__class__.__name__}") from None


def packets(path: Path) -> list[tuple[int, bytes]]:
    """Runs of bytes by offset; adjacent packets are joined.

    Raises ArtefactError (E504) for a packet whose size is wrong.
    """
    joined: list[tuple[int, bytearray]] = []
    for offset_text, size, payload in PACKET.findall(text_of(path)):
        offset, data = int(offset_text, 0), _bytes(payload, path.name)
        if len(data) != int(size, 0):
            raise ArtefactError("E504", f"{path.name}: offset {offset_text} has {len(data)} bytes", limit=size)
        if joined and joined[-1][0] + len(joined[-1][1]) == offset:
            joined[-1][1].extend(data)
        else:
            joined.append((offset, bytearray(data)))
    return [(offset, bytes(data)) for offset, data in joined]


def split_packets(data: bytes) -> bytes:
    """The packets of bytes from offset 0 on, without those that are all zero."""
    lines = [
        f"{{offset:{at:#x}, size:{len(part)}, payload:0x{part.hex(' ').replace(' ', ' 0x')}}} ,"
        for at in range(0, len(data), PACKET_BYTES)
        if any(part := data[at : at + PACKET_BYTES])
    ]
    return ("\n".join(["{", *lines, "}"]) + "\n").encode()


def dump(path: Path, size: int) -> bytes:
    """The first bytes of a dump: lines of bytes after a header, whose lines do not begin with a byte.

    Raises ArtefactError (E504) if the dump has fewer.
    """
    lines = (line.strip() for line in text_of(path).splitlines())
    data = _bytes(" ".join(line for line in lines if line.startswith("0x")), path.name)
    if len(data) < size:
        raise ArtefactError("E504", f"{path.name} holds {len(data)} bytes", limit=f"{size}")
    return data[:size]


def _bytes(text: str, name: str) -> bytes:
    """Bytes written as 0x00, separated by blanks."""
    try:
        return bytes.fromhex(text.replace("0x", ""))
    except ValueError:
        pass  # a byte of one digit
    try:
        return bytes(int(each, 16) for each in text.split())
    except ValueError:
        raise ArtefactError("E504", f"{name} holds what is no byte", limit="0x00 to 0xff") from None


MEMORIES = ("pri_mem", "sec_mem")
"""DRAM and the second memory."""
MEMORY_NUMBER = 1
"""The number of DRAM in check_crc; all results are there."""
FINISHED = "finished"
MASK, STATUS = "GLB.S_INTR_MASK", "GLB.S_INTR_STATUS"
POLL_CLOCKS = 8
"""The fewest clocks that a register read takes."""


def write_files(trace: Trace, player: str = SEQUENTIAL) -> dict[str, bytes]:
    """The files of a test program for one of commands.PLAYERS.

    Checked regions without loaded contents are set to zero first. Raises ArtefactError (E504) for a poll of some
    bits only, which the syntax cannot express.
    """
    files: dict[str, bytes] = {}
    lines = [f"mem_init({_place(at)}, {size:#x}, ALL_ZERO);" for at, size in _zeroed_regions(trace)]
    loaded = [(address, data) for address, data in trace.contents if any(data)]
    for number, (address, data) in enumerate(loaded):
        name = f"{trace.name}_{number}.dat"
        files[name] = split_packets(data)
        lines.append(f'mem_load({_place(address)}, "{name}");')
    written = _PLAYED[player](register_map(trace.configuration), trace)
    for command in trace.commands:
        lines += written.command(command)
    lines += written.end()
    for check in trace.checks:
        region = f"{MEMORY_NUMBER}, {check.address:#x}, {check.size:#x}, {check.crc:#x}"
        lines.append(f"check_crc({written.last_event()}, {region});")
    files[f"{trace.name}.cfg"] = ("\n".join(lines) + "\n").encode()
    return files


def _place(address: int) -> str:
    """The memory that contains an address, and the offset in it."""
    second, at = divmod(address, SECOND)
    return f"{MEMORIES[second]}, {at:#x}"


def _zeroed_regions(trace: Trace) -> list[tuple[int, int]]:
    """The regions to set to zero: loaded ones, and checked ones outside of them."""
    regions = [(address, len(data)) for address, data in trace.contents]
    for check in trace.checks:
        if not any(at <= check.address and check.address + check.size <= at + size for at, size in regions):
            regions.append((check.address, check.size))
    return regions


@dataclass
class _Sequential:
    """Calls executed in file order."""

    registers: RegisterMap
    trace: Trace
    interrupts: int = 0
    """The number of interrupts waited for."""

    def command(self, command: Command) -> Iterator[str]:
        """The calls of a command."""
        match command:
            case Wait():
                source = f"{command}, " if command.source else ""
                yield f"intr_notify({source}{_interrupt(self.interrupts)});"
                self.interrupts += 1
            case Write():
                title = self.registers.register_at(command.address).title
                yield f"reg_write(NVDLA_{title}_0, {command.value:#x});"
            case Poll():
                register = self.registers.register_at(command.address)
                _expect_whole(register, command)
                yield f"poll_reg_equal(NVDLA_{register.title}_0, {command.value:#x});"

    def end(self) -> Iterator[str]:
        """The calls after all commands."""
        return iter(())

    def last_event(self) -> str:
        """The event after which results are checked."""
        return _interrupt(max(self.interrupts - 1, 0))


@dataclass
class _Sequenced(_Sequential):
    """Calls executed by each block's own sequencer."""

    awaited: dict[str, int] = field(default_factory=dict[str, int])
    """The number of interrupts that each block has waited for."""
    ordered: list[str] = field(default_factory=list[str])
    """The blocks of the commands that keep their order."""

    def command(self, command: Command) -> Iterator[str]:
        """The calls of a command, with the events that its block waits for and announces."""
        if isinstance(command, Wait):
            yield from super().command(command)
            return
        register = self.registers.register_at(command.address)
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
        """Waits for all interrupts."""
        block = self.ordered[-1] if self.ordered else "NVDLA_GLB"
        yield from self._interrupts_before(block)
        yield f"sync_notify({block}, {FINISHED});"

    def last_event(self) -> str:
        """The event after which results are checked."""
        return FINISHED

    def _interrupts_before(self, block: str) -> Iterator[str]:
        for number in range(self.awaited.get(block, 0), self.interrupts):
            yield f"sync_wait({block}, {_interrupt(number)});"
        self.awaited[block] = self.interrupts


@dataclass
class _Polled(_Sequential):
    """Calls for the Verilator test bench: a wait becomes slow reads, and a poll that the block is idle."""

    mask: int = 0
    """The value of GLB.S_INTR_MASK."""

    def command(self, command: Command) -> Iterator[str]:
        """The calls of a command; the last wait leaves its interrupt to the monitor."""
        if isinstance(command, Write):
            title = self.registers.register_at(command.address).title
            self.mask = command.value if title == MASK else self.mask
        if not isinstance(command, Wait) or command.source is None:
            yield from super().command(command)
            return
        for _ in range(-(-self.trace.clocks[self.interrupts] // POLL_CLOCKS)):
            yield f"poll_reg_equal(NVDLA_{MASK}_0, {self.mask:#x});"
        yield self._idle(BLOCK_OF.get(command.source, command.source))
        self.interrupts += 1
        if self.interrupts == len(self.trace.clocks):
            yield f"intr_notify({command}, {self.last_event()});"
            return
        bit = self.registers[STATUS].places[f"{command.source}_DONE_STATUS{command.group}"].low
        yield f"reg_write(NVDLA_{STATUS}_0, {1 << bit:#x});"

    def _idle(self, block: str) -> str:
        """A poll that a block is idle: for BDMA, which has no groups, that its status is the reset value."""
        if block != BRIDGE:
            return f"poll_reg_equal(NVDLA_{block}.S_STATUS_0, 0x0);"
        return f"poll_reg_equal(NVDLA_{block}.STATUS_0, {self.registers[f'{block}.STATUS'].reset:#x});"

    def last_event(self) -> str:
        """The single event."""
        return _interrupt(0)


_PLAYED: Mapping[str, type[_Sequential]] = {SEQUENTIAL: _Sequential, SEQUENCERS: _Sequenced, VERILATOR: _Polled}


def _interrupt(number: int) -> str:
    return f"sync_id_{number}"


def _order(number: int) -> str:
    return f"order_{number}"


def _expect_whole(register: Register, poll: Poll) -> None:
    """Raises ArtefactError (E504) for a poll of only some of a register's bits."""
    whole = sum(((1 << each.width) - 1) << each.low for each in register.fields)
    if poll.mask & whole != whole:
        raise ArtefactError("E504", f"{register.title} is polled under a mask", limit="the whole register")
