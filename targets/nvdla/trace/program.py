"""Test programs: initial memory, commands, expected results; and their memory files.

Memory files are .dat packets of nv_small and dumps of nv_full. A packet is {offset:0x20, size:4, payload:0x00 0x10
0x20 0x30}, one per line, of at most 32 bytes.
"""

from __future__ import annotations

import re
import zlib
from dataclasses import replace
from pathlib import Path

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.system.budget import content
from npuc.targets.nvdla.machine.commands import Command
from npuc.targets.nvdla.machine.parameters import FULL, LARGE, SMALL, Machine
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
        memory = DeviceMemory.covering(
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


def packed(data: bytes) -> bytes:
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
