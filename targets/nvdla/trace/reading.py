"""Reads test programs: NAME.cfg of nv_small's verification environment, input.txn of nv_full's.

Commands run in file order: `intr_notify` waits for its interrupt at its position. Where sync_wait orders the
sequencers of nv_small's environment, commands run in an order that it allows. Unit names may be in lower case
(cdma_dat_0). All memories (pri_mem, sec_mem) are treated as one.

In nv_small's environment every block has a sequencer; sync_wait blocks one until an event is announced by
sync_notify of another, or by the monitor of an interrupt (intr_notify). The file's order may differ.

Source: the test programs, and the configuration file format of NVDLA's verification guide.
"""

from __future__ import annotations

import re
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.targets.nvdla.machine.registers import Command, Poll, Register, RegisterMap, Wait, Write, register_map
from npuc.targets.nvdla.model import STATUS
from npuc.targets.nvdla.trace.program import MACHINES, CrcCheck, Trace, dump, packets, text_of


@frozen
class TraceCall:
    """A call and its line number."""

    line: int
    text: str
    name: str
    words: tuple[str, ...]

    @property
    def sequencer(self) -> str:
        """The block whose sequencer makes the call."""
        return self.words[0].partition(".")[0].upper()


AROUND = ("mem_init", "mem_load", "mem_reserve")
CHECKS = ("check_crc", "check_file", "check_nothing")


class Deadlock(ValueError):
    """Every sequencer waits for an event that no interrupt announces."""


def in_order(calls: Iterable[TraceCall]) -> Iterator[TraceCall]:
    """The calls in a valid order; in file order for a program without sync_wait.

    Interrupts are waited for as late as possible: when nothing else can run, or at the end. Raises Deadlock.
    """
    given = list(calls)
    if not any(each.name == "sync_wait" for each in given):
        yield from given
        return
    yield from (each for each in given if each.name in AROUND)
    yield from _run([each for each in given if each.name not in (*AROUND, *CHECKS)])
    yield from (each for each in given if each.name in CHECKS)


def _run(calls: list[TraceCall]) -> Iterator[TraceCall]:
    """Simulates the sequencers and monitors."""
    monitors = [each for each in calls if each.name == "intr_notify"]
    queues: dict[str, deque[TraceCall]] = {}
    for each in calls:
        if each.name != "intr_notify":
            queues.setdefault(each.sequencer, deque()).append(each)
    announced: set[str] = set()
    while any(queues.values()):
        heads = sorted((queue[0] for queue in queues.values() if queue), key=lambda each: each.line)
        ready = next((each for each in heads if each.name != "sync_wait" or each.words[-1] in announced), None)
        if ready is not None:
            yield queues[ready.sequencer].popleft()
            if ready.name == "sync_notify":
                announced.add(ready.words[-1])
            continue
        wanted = {each.words[-1] for each in heads}
        source = next((_source(each) for each in monitors if each.words[-1] in wanted), None)
        if source is None:
            raise Deadlock(", ".join(sorted(wanted)))
        first = next(each for each in monitors if _source(each) == source)  # in file order
        monitors.remove(first)
        announced.add(first.words[-1])
        yield first
    yield from monitors


def _source(call: TraceCall) -> str:
    """The block that raises an interrupt, in either group."""
    return call.words[0].rpartition("_")[0].upper()


WORD_BYTES = 4
ALL_BITS = 0xFFFFFFFF
PATTERNS = {"ALL_ZERO": 0, "RANDOM": 0}
"""The byte that fills memory. Golden results cannot depend on random bytes, so they are read as zeros."""

CHANGING = (*STATUS, "S_POINTER", "D_OP_ENABLE")
"""Parts of the names of registers that a block changes: their values depend on time and are not compared."""


def read(path: Path, configuration: str | None = None) -> Trace:
    """A test program: a folder, its .cfg file or its input.txn.

    configuration: nv_small, nv_large or nv_full, for a .cfg file; None: the name of the folder that contains the
    program's folder, if that is one of them, otherwise nv_small. input.txn is always for nv_full. Raises
    ArtefactError (E502 for a missing file, E504 for one that cannot be understood).
    """
    if path.is_dir():
        found = sorted((*path.glob("*.cfg"), *path.glob("*.txn")))
        if len(found) != 1:
            raise ArtefactError("E502", f"{path.name} holds {len(found)} programs", limit="one .cfg or .txn file")
        path = found[0]
    if path.suffix != ".cfg":
        return _Txn(path, register_map("nv_full")).read()
    folder = path.resolve().parents[1].name
    chosen = configuration or (folder if folder in MACHINES else "nv_small")
    return _Cfg(path, register_map(chosen)).read()


@dataclass
class _Reading:
    """The parts of a program read so far."""

    path: Path
    map: RegisterMap
    commands: list[Command] = field(default_factory=list[Command])
    contents: list[tuple[int, bytes]] = field(default_factory=list[tuple[int, bytes]])
    checks: list[CrcCheck] = field(default_factory=list[CrcCheck])

    def lines(self) -> Iterator[tuple[int, str]]:
        """Numbered lines without comments."""
        for number, line in enumerate(text_of(self.path).splitlines(), 1):
            plain = re.sub(r"//.*|#.*", "", line).strip()
            if plain:
                yield number, plain

    def refusal(self, number: int, line: str, limit: str) -> ArtefactError:
        """The error of a line that cannot be understood."""
        return ArtefactError("E504", f"{self.path.name}:{number}: {line!r} is not understood", limit=limit)

    def expect(self, register: Register, mask: int, value: int) -> None:
        """Requires a value of a register, unless a block changes the register."""
        if not any(part in register.name for part in CHANGING):
            self.commands.append(Poll(register.address, mask, value))

    def trace(self) -> Trace:
        """The complete program."""
        name = self.path.parent.name if self.path.stem == "input" else self.path.stem
        return Trace(name, self.map.name, tuple(self.commands), tuple(self.contents), tuple(self.checks))


class _Cfg(_Reading):
    """nv_small: calls like reg_write(NVDLA_CDMA.D_BANK_0, 0x2000b);"""

    def read(self) -> Trace:
        """The program."""
        calls: Mapping[str, Callable[[Sequence[str]], None]] = {
            "mem_init": self._mem_init,
            "mem_load": self._mem_load,
            "mem_reserve": self._mem_reserve,
            "reg_write": self._reg_write,
            "reg_read": lambda _: None,
            "reg_read_check": self._expect,
            "reg_read_expected": self._expect,
            "poll_reg_equal": self._poll,
            "poll_field_equal": self._poll_field,
            "intr_notify": self._interrupt,
            "check_crc": self._check_crc,
            "check_file": self._check_file,
            "check_nothing": lambda _: None,
            "sync_wait": lambda _: None,
            "sync_notify": lambda _: None,
        }
        try:
            for call in in_order(list(self._calls(calls))):
                try:
                    calls[call.name](call.words)
                except (ValueError, IndexError, KeyError):
                    raise self.refusal(call.line, call.text, "names and numbers of this call") from None
        except Deadlock as error:
            reason = f"{self.path.name}: every sequencer waits for {error}, which nothing announces"
            raise ArtefactError("E504", reason, limit="sync_notify or intr_notify for each sync_wait") from None
        return self.trace()

    def _calls(self, known: Iterable[str]) -> Iterator[TraceCall]:
        """The calls in file order."""
        for number, line in self.lines():
            for text in filter(None, (each.strip() for each in line.split(";"))):
                match = re.fullmatch(r"(\w+)\s*\((.*)\)", text)
                if match is None or match[1] not in known:
                    raise self.refusal(number, text, ", ".join(known))
                yield TraceCall(number, text, match[1], tuple(each.strip() for each in match[2].split(",")))

    def _mem_init(self, words: Sequence[str]) -> None:
        """mem_init(memory, address, bytes or "file", pattern)."""
        _, address, what, pattern = words
        if what.startswith('"'):
            self._mem_load(words[:3])
            return
        self.contents.append((int(address, 0), bytes([PATTERNS[pattern]]) * int(what, 0)))

    def _mem_reserve(self, words: Sequence[str]) -> None:
        _, address, size = words
        self.contents.append((int(address, 0), bytes(int(size, 0))))

    def _mem_load(self, words: Sequence[str]) -> None:
        _, address, file = words
        data = packets(self.path.parent / file.strip('"'))
        self.contents.extend((int(address, 0) + offset, each) for offset, each in data)

    def _reg_write(self, words: Sequence[str]) -> None:
        self.commands.append(Write(self.map[words[0]].address, int(words[1], 0)))

    def _expect(self, words: Sequence[str]) -> None:
        self.expect(self.map[words[0]], ALL_BITS, int(words[1], 0))

    def _poll(self, words: Sequence[str]) -> None:
        """poll_reg_equal([resource,] register, value)."""
        register, value = words[-2:]
        self.commands.append(Poll(self.map[register].address, ALL_BITS, int(value, 0)))

    def _poll_field(self, words: Sequence[str]) -> None:
        """poll_field_equal([resource,] register, field, value)."""
        title, field_name, value = words[-3:]
        register = self.map[title]
        place = register.places[field_name]
        mask = ((1 << place.width) - 1) << place.low
        self.commands.append(Poll(register.address, mask, int(value, 0) << place.low))

    def _interrupt(self, words: Sequence[str]) -> None:
        """intr_notify([interrupt,] sync_id)."""
        if len(words) == 1:
            self.commands.append(Wait())
            return
        source, _, group = words[0].upper().rpartition("_")
        self.commands.append(Wait(source, int(group)))

    def _check_crc(self, words: Sequence[str]) -> None:
        address, size, crc = (int(each, 0) for each in words[2:5])
        self.checks.append(CrcCheck(address, size, crc))

    def _check_file(self, words: Sequence[str]) -> None:
        address, size = (int(each, 0) for each in words[2:4])
        expected = bytearray(size)
        for offset, data in packets(self.path.parent / words[4].strip('"')):
            expected[offset : offset + len(data)] = data
        self.checks.append(CrcCheck(address, size, zlib.crc32(expected[:size])))


class _Txn(_Reading):
    """nv_full: lines like write_reg 0xffff1404 0x1 #NVDLA_CDMA.D_OP_ENABLE_0, the address in words."""

    def read(self) -> Trace:
        """The program."""
        calls: Mapping[str, Callable[[Sequence[str]], None]] = {
            "load_mem": self._load,
            "write_reg": self._write,
            "read_reg": self._read,
            "wait": lambda _: self.commands.append(Wait()),
            "dump_mem": self._dump,
        }
        for number, line in self.lines():
            name, *words = line.split()
            if name not in calls:
                raise self.refusal(number, line, ", ".join(calls))
            try:
                calls[name](words)
            except (ValueError, IndexError):
                raise self.refusal(number, line, "the numbers of this command") from None
        return self.trace()

    def _load(self, words: Sequence[str]) -> None:
        self.contents.append((int(words[0], 0), dump(self.path.parent / words[2], int(words[1], 0))))

    def _write(self, words: Sequence[str]) -> None:
        self.commands.append(Write(_byte_address(words[0]), int(words[-1], 0)))

    def _read(self, words: Sequence[str]) -> None:
        """read_reg address mask value."""
        address, mask, value = words
        self.expect(self.map.register_at(_byte_address(address)), int(mask, 0), int(value, 0))

    def _dump(self, words: Sequence[str]) -> None:
        """dump_mem address bytes file: the file has the expected bytes, if it exists."""
        address, size = int(words[0], 0), int(words[1], 0)
        golden = self.path.parent / words[2]
        if golden.exists():
            self.checks.append(CrcCheck(address, size, zlib.crc32(dump(golden, size))))


def _byte_address(word: str) -> int:
    """The byte address of a register; the word's lower half counts words, its upper half is the access type."""
    return (int(word, 0) & 0xFFFF) * WORD_BYTES
