"""NVDLA's verification environment as its guide describes it: every block has a sequencer of its own.

Commands of one block run in order, those of different blocks in any order that sync_wait and sync_notify leave.
Monitors wait for the interrupts of `intr_notify`, each source's in order, and announce them; a result is checked
as soon as its event is announced. The .cfg file is parsed here once more, apart from the package's reader.
"""

from __future__ import annotations

import random
import re
import zlib
from collections import defaultdict, deque
from pathlib import Path

from npuc.targets.nvdla import trace
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.machine.registers import Poll, Wait
from npuc.targets.nvdla.model import ChipModel

Call = tuple[str, list[str]]


class Deadlock(Exception):
    """Every sequencer waits, and no interrupt is left to come."""


class Environment:
    """One run of a program: the sequencer that comes first in an order of chance runs as far as it can.

    eager: how readily interrupts are announced; at 0 only when all sequencers wait.
    """

    def __init__(self, config: Path, machine: Machine, chance: random.Random, eager: float) -> None:
        found = trace.read(config, machine.registers)
        self.nvdla = ChipModel(machine, found.memory())
        self.chance, self.eager = chance, eager
        self.sequences: defaultdict[str, deque[Call]] = defaultdict(deque)
        self.monitors: defaultdict[str, deque[tuple[int, str]]] = defaultdict(deque)
        self.checks: dict[str, list[tuple[int, int, int]]] = {}
        self.announced: set[str] = set()
        for line in config.read_text().splitlines():
            match = re.fullmatch(r"(\w+)\((.*)\);", line)
            assert match is not None, line
            self._sort(match[1], match[2].split(", "))
        self.order = chance.sample(sorted(self.sequences), len(self.sequences))

    def _sort(self, call: str, words: list[str]) -> None:
        if call in ("reg_write", "poll_reg_equal", "sync_wait", "sync_notify"):
            self.sequences[words[0].partition(".")[0]].append((call, words))
        elif call == "intr_notify":
            source, _, group = words[0].rpartition("_")
            self.monitors[source].append((int(group), words[1]))
        elif call == "check_crc":
            assert words[1] == "1"
            address, size, crc = (int(each, 16) for each in words[2:])
            self.checks.setdefault(words[0], []).append((address, size, crc))
        else:
            assert call in ("mem_init", "mem_load")

    def run(self) -> int:
        """Runs to the end, and says how many results were as expected. Raises Deadlock."""
        while any(self.sequences.values()) or any(self.monitors.values()):
            ready = [
                name for name in self.order if self.sequences[name] and not self._waits(self.sequences[name][0])
            ]
            late = ready and self.chance.random() >= self.eager
            if not late and self._announce_one():
                continue
            if not ready:
                raise Deadlock
            self._step(self.sequences[ready[0]].popleft())
        return sum(len(each) for event, each in self.checks.items() if event in self.announced)

    def _waits(self, call: Call) -> bool:
        return call[0] == "sync_wait" and call[1][1] not in self.announced

    def _step(self, call: Call) -> None:
        name, words = call
        register = self.nvdla.registers.map[words[0]] if "." in words[0] else None
        if name == "sync_notify":
            self._announce(words[1])
        elif register is not None and name == "reg_write":
            self.nvdla.write(register.address, int(words[1], 16))
        elif register is not None:
            self.nvdla.poll(Poll(register.address, 0xFFFFFFFF, int(words[1], 16)))

    def _announce_one(self) -> bool:
        """Announces one interrupt that has come, whichever."""
        come = self._come()
        if not come:
            return False
        source = self.chance.choice(sorted(come))
        assert self.monitors[source], f"nothing expects an interrupt of {source}"
        group, event = self.monitors[source].popleft()
        assert group in come[source], f"another group of {source} comes before {group}"
        self.nvdla.wait(Wait(source, group))
        self._announce(event)
        return True

    def _come(self) -> dict[str, set[int]]:
        """The groups of each source whose interrupts have come, and are not masked."""
        status = self.nvdla.registers.map["GLB.S_INTR_STATUS"]
        raised = self.nvdla.read(status.address) & ~self.nvdla.registers.get("GLB", "S_INTR_MASK")
        come: dict[str, set[int]] = {}
        for name, place in status.places.items():
            if raised >> place.low & 1:
                source, _, group = name.partition("_DONE_STATUS")
                come.setdefault(source, set()).add(int(group))
        return come

    def _announce(self, event: str) -> None:
        assert event not in self.announced, f"{event} is announced twice"
        self.announced.add(event)
        for address, size, crc in self.checks.get(event, []):
            assert zlib.crc32(self.nvdla.memory.read(address, size)) == crc
