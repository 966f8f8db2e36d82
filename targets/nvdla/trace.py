"""NVDLA's test programs: register writes, memory contents and expected results as text.

Two syntaxes are read: that of nv_small's verification environment (NAME.cfg, C-like calls, with .dat files of
offsets and bytes), and the older one of nv_full (input.txn with dumps of memory). The first is also written, with
the CRC-32 of the results, so that a program runs in NVDLA's own environment.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from npuc.errors import ArtefactError
from npuc.targets.nvdla.commands import Command, Poll, Wait, Write
from npuc.targets.nvdla.machine import FULL, SMALL, Machine
from npuc.targets.nvdla.model.memory import Memory
from npuc.targets.nvdla.registers import RegisterMap, register_map

WORD_BYTES = 4
DAT_BYTES = 32
"""Bytes of a line that is written to a .dat file."""
MEMORY = "pri_mem"
PATTERNS = ("ALL_ZERO", "RANDOM")
"""What memory is filled with. What is random cannot matter to a golden result, and is read as zeros."""
MACHINES = {"nv_small": replace(SMALL, elementwise=True, sdp_lut=True), "nv_full": FULL}
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
    registers: str
    """The register map: nv_small or nv_full."""
    commands: tuple[Command, ...]
    contents: tuple[tuple[int, bytes], ...]
    """What memory holds before the run: later entries over earlier ones."""
    checks: tuple[Check, ...]

    @property
    def machine(self) -> Machine:
        """The machine it is made for."""
        return MACHINES[self.registers]

    def memory(self) -> Memory:
        """The memory before the run: what is loaded or checked, in whole pages, otherwise 0."""
        spans = [(address, len(data)) for address, data in self.contents]
        memory = Memory.covering([*spans, *((each.address, each.size) for each in self.checks)])
        for address, data in self.contents:
            memory.write(address, data)
        return memory


def read(path: Path, registers: str = "nv_small") -> Trace:
    """A test program: a folder, its .cfg file or its input.txn.

    registers: the map by which names in a .cfg file are understood; input.txn has addresses of nv_full.
    Raises ArtefactError (E502 for a missing file, E504 for what cannot be understood).
    """
    if path.is_dir():
        found = sorted((*path.glob("*.cfg"), *path.glob("*.txn")))
        if len(found) != 1:
            raise ArtefactError("E502", f"{path.name} holds {len(found)} programs", limit="one .cfg or .txn file")
        path = found[0]
    return _Cfg(path).read(registers) if path.suffix == ".cfg" else _Txn(path).read()


@dataclass
class _Reading:
    """What has been read of a program so far."""

    path: Path
    commands: list[Command] = field(default_factory=list[Command])
    contents: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    checks: list[Check] = field(default_factory=list[Check])

    def lines(self) -> Iterator[tuple[int, str]]:
        """Numbered lines without comments."""
        for number, line in enumerate(_text(self.path).splitlines(), 1):
            plain = re.sub(r"//.*|#.*", "", line).strip()
            if plain:
                yield number, plain

    def refused(self, number: int, line: str, limit: str) -> ArtefactError:
        """The error of a line that cannot be understood."""
        return ArtefactError("E504", f"{self.path.name}:{number}: {line!r} is not understood", limit=limit)

    def trace(self, registers: str) -> Trace:
        """The whole."""
        name = self.path.parent.name if self.path.stem == "input" else self.path.stem
        return Trace(name, registers, tuple(self.commands), tuple(self.contents), tuple(self.checks))


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ArtefactError("E502", f"{path.name} cannot be read: {error.__class__.__name__}") from None


class _Cfg(_Reading):
    """nv_small: calls like reg_write(NVDLA_CDMA.D_BANK_0, 0x2000b);"""

    def read(self, registers: str) -> Trace:
        """The program."""
        calls: Mapping[str, Callable[[Sequence[str]], None]] = {
            "mem_init": self._mem_init,
            "mem_load": self._mem_load,
            "reg_write": self._reg_write,
            "mem_reserve": self._mem_reserve,
            "poll_reg_equal": self._poll,
            "poll_field_equal": self._poll_field,
            "reg_read_check": self._poll,
            "intr_notify": self._interrupt,
            "check_crc": self._check_crc,
            "check_file": self._check_file,
            "check_nothing": lambda _: None,
            "sync_wait": lambda _: None,
            "sync_notify": lambda _: None,
        }
        self._map = register_map(registers)
        for number, line in self.lines():
            for call in filter(None, (each.strip() for each in line.split(";"))):
                match = re.fullmatch(r"(\w+)\s*\((.*)\)", call)
                if match is None or match[1] not in calls:
                    raise self.refused(number, call, ", ".join(calls))
                try:
                    calls[match[1]]([each.strip() for each in match[2].split(",")])
                except (ValueError, IndexError, KeyError):
                    raise self.refused(number, call, "names and numbers of this call") from None
        return self.trace(registers)

    def _mem_init(self, words: Sequence[str]) -> None:
        if words[3] not in PATTERNS:
            raise ValueError(words[3])
        self.contents.append((int(words[1], 0), bytes(int(words[2], 0))))

    def _mem_reserve(self, words: Sequence[str]) -> None:
        self.contents.append((int(words[1], 0), bytes(int(words[2], 0))))

    def _mem_load(self, words: Sequence[str]) -> None:
        address = int(words[1], 0)
        data = _read_dat(self.path.parent / words[2].strip('"'))
        self.contents.extend((address + offset, each) for offset, each in data)

    def _reg_write(self, words: Sequence[str]) -> None:
        self.commands.append(Write(self._map[words[0]].address, int(words[1], 0)))

    def _poll(self, words: Sequence[str]) -> None:
        self.commands.append(Poll(self._map[words[0]].address, 0xFFFFFFFF, int(words[1], 0)))

    def _poll_field(self, words: Sequence[str]) -> None:
        register = self._map[words[0]]
        place = register.places[words[1]]
        mask = ((1 << place.width) - 1) << place.low
        self.commands.append(Poll(register.address, mask, int(words[2], 0) << place.low))

    def _interrupt(self, words: Sequence[str]) -> None:
        source, _, group = words[0].rpartition("_")
        self.commands.append(Wait(source, int(group)))

    def _check_crc(self, words: Sequence[str]) -> None:
        address, size, crc = (int(each, 0) for each in words[2:5])
        self.checks.append(Check(address, size, crc))

    def _check_file(self, words: Sequence[str]) -> None:
        address, size = (int(each, 0) for each in words[2:4])
        expected = bytearray(size)
        for offset, data in _read_dat(self.path.parent / words[4].strip('"')):
            expected[offset : offset + len(data)] = data
        self.checks.append(Check(address, size, zlib.crc32(expected[:size])))


DAT_ENTRY = re.compile(r"\{\s*offset\s*:\s*(\w+)\s*,\s*size\s*:\s*(\w+)\s*,\s*payload\s*:([^}]*)\}")


def _read_dat(path: Path) -> list[tuple[int, bytes]]:
    """Runs of bytes by offset: {offset:0x0, size:4, payload:0x08 0x83 0x00 0xae}. Adjacent ones are joined."""
    joined: list[tuple[int, bytearray]] = []
    for offset_text, size, payload in DAT_ENTRY.findall(_text(path)):
        offset, data = int(offset_text, 0), bytes(int(each, 16) for each in payload.split())
        if len(data) != int(size, 0):
            raise ArtefactError("E504", f"{path.name}: offset {offset_text} has {len(data)} bytes", limit=size)
        if joined and joined[-1][0] + len(joined[-1][1]) == offset:
            joined[-1][1].extend(data)
        else:
            joined.append((offset, bytearray(data)))
    return [(offset, bytes(data)) for offset, data in joined]


class _Txn(_Reading):
    """nv_full: lines like write_reg 0xffff1404 0x1 #NVDLA_CDMA.D_OP_ENABLE_0, the address in words."""

    def read(self) -> Trace:
        """The program."""
        calls: Mapping[str, Callable[[Sequence[str]], None]] = {
            "load_mem": self._load,
            "write_reg": self._write,
            "read_reg": lambda _: None,
            "wait": lambda _: self.commands.append(Wait()),
            "dump_mem": self._dump,
        }
        for number, line in self.lines():
            name, *words = line.split()
            if name not in calls:
                raise self.refused(number, line, ", ".join(calls))
            try:
                calls[name](words)
            except (ValueError, IndexError):
                raise self.refused(number, line, "the numbers of this command") from None
        return self.trace("nv_full")

    def _load(self, words: Sequence[str]) -> None:
        self.contents.append((int(words[0], 0), self._bytes(words[2], int(words[1], 0))))

    def _write(self, words: Sequence[str]) -> None:
        address = (int(words[0], 0) & 0xFFFF) * WORD_BYTES
        self.commands.append(Write(address, int(words[-1], 0)))

    def _dump(self, words: Sequence[str]) -> None:
        address, size = int(words[0], 0), int(words[1], 0)
        self.checks.append(Check(address, size, zlib.crc32(self._bytes(words[2], size))))

    def _bytes(self, name: str, size: int) -> bytes:
        """The bytes of a dump, a header of lines that do not begin with a byte before them."""
        lines = (line.split() for line in _text(self.path.parent / name).splitlines())
        data = bytes(int(each, 16) for words in lines if words and words[0].startswith("0x") for each in words)
        if len(data) != size:
            raise ArtefactError("E504", f"{name} holds {len(data)} bytes", limit=f"{size}")
        return data


def written(trace: Trace) -> dict[str, bytes]:
    """The files of a test program in nv_small's syntax: NAME.cfg, and a .dat file for each content of memory.

    Regions that are checked are set to zero first, where nothing is loaded. Raises ArtefactError (E504) for a poll
    of some bits only, which the syntax has not.
    """
    files: dict[str, bytes] = {}
    lines: list[str] = []
    loaded = [(address, data) for address, data in trace.contents if any(data)]
    for address, size in _cleared(trace):
        lines.append(f"mem_init({MEMORY}, {address:#x}, {size:#x}, ALL_ZERO);")
    for number, (address, data) in enumerate(loaded):
        name = f"{trace.name}_{number}.dat"
        files[name] = _dat(data)
        lines.append(f'mem_load({MEMORY}, {address:#x}, "{name}");')
    registers = register_map(trace.registers)
    waits = 0
    for command in trace.commands:
        lines.append(_call(registers, command, waits))
        waits += isinstance(command, Wait)
    last = f"sync_id_{max(waits - 1, 0)}"
    lines += [f"check_crc({last}, 1, {each.address:#x}, {each.size:#x}, {each.crc:#x});" for each in trace.checks]
    files[f"{trace.name}.cfg"] = ("\n".join(lines) + "\n").encode()
    return files


def _cleared(trace: Trace) -> list[tuple[int, int]]:
    """What is set to zero: contents, and what is checked outside of them."""
    regions = [(address, len(data)) for address, data in trace.contents]
    for check in trace.checks:
        if not any(at <= check.address and check.address + check.size <= at + size for at, size in regions):
            regions.append((check.address, check.size))
    return regions


def _dat(data: bytes) -> bytes:
    """Lines of offset, size and bytes; runs of zeros are left out."""
    lines = [
        f"{{offset:{at:#x}, size:{len(part)}, payload:{' '.join(f'0x{byte:02x}' for byte in part)}}} ,"
        for at in range(0, len(data), DAT_BYTES)
        if any(part := data[at : at + DAT_BYTES])
    ]
    return ("\n".join(["{", *lines, "}"]) + "\n").encode()


def _call(registers: RegisterMap, command: Command, waits: int) -> str:
    """A command as a call."""
    match command:
        case Write():
            return f"reg_write(NVDLA_{registers.at(command.address).title}_0, {command.value:#x});"
        case Wait():
            return f"intr_notify({command}, sync_id_{waits});"
        case Poll():
            register = registers.at(command.address)
            whole = sum(((1 << each.width) - 1) << each.low for each in register.fields)
            if command.mask & whole != whole:
                raise ArtefactError("E504", f"{register.title} is polled under a mask", limit="the whole register")
            return f"poll_reg_equal(NVDLA_{register.title}_0, {command.value:#x});"
