"""The timeline of an EasyNPU program, from its words: the array's chains, the host's transfers, the maps.

The array and the host take turns, as segments are loaded, run and stored. Chains take the cycles of the cycle
model, transfers those given by the machine's host_bytes_per_cycle.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from npuc.errors import ArtefactError
from npuc.inspect.timeline import Activity, Buffer, Timeline, apart, layer_at
from npuc.ir import Array
from npuc.program import Program
from npuc.targets.easynpu.machine.listing import disassemble
from npuc.targets.easynpu.machine.memory import Map, feature_words
from npuc.targets.easynpu.program.artefact import Contents, Segment, TensorMove
from npuc.targets.easynpu.simulate.walk import Chain, segments_of

ARRAY, LOAD, STORE = "array", "load", "store"
NOBODY = -1
"""Marks words that nothing has written."""


def timeline(program: Program) -> Timeline:
    """The timeline of a program. Raises ArtefactError (E502, E503) where it could not be run."""
    contents = Contents.of(program.manifest)
    run = _Run(program, contents)
    for segment, chains in segments_of(program):
        run.segment(segment, chains)
    activities = tuple(_with_bytes(run.activities, program.report["layers"]))
    return Timeline(run.cycle, activities, apart(run.buffers), ARRAY)


@dataclass
class _Run:
    """The state of a run so far."""

    program: Program
    contents: Contents
    cycle: int = 0
    activities: list[Activity] = field(default_factory=list[Activity])
    buffers: list[Buffer] = field(default_factory=list[Buffer])
    writers: list[int] = field(default_factory=list[int])
    """For every buffer, the activity that writes it."""
    holders: dict[str, Array] = field(default_factory=dict[str, Array])

    def segment(self, segment: Segment, chains: Sequence[Chain]) -> None:
        """Adds loads, chains and stores in sequence; weights are in use until the last chain."""
        machine = self.contents.machine
        weights: list[Buffer] = []
        for image in segment.images:
            self._transfer(LOAD, image.memory, len(image.data(self.program.files, machine)))
            if image.memory != "itcm":
                weights.append(self._buffer("weight", image.file, image.address, image.words, self.cycle))
        for move in segment.loads:
            self._transfer(LOAD, move.tensor, self._bytes(move))
            self._write(move.map, move.tensor, self.cycle, len(self.activities) - 1)
        self._chains(chains)
        self.buffers += [replace(each, end=self.cycle) for each in weights]
        self.writers += [NOBODY] * len(weights)
        for move in segment.stores:
            self._transfer(STORE, move.tensor, self._bytes(move), self._read(move.map))

    def _chains(self, chains: Sequence[Chain]) -> None:
        for chain in chains:
            started, self.cycle = self.cycle, self.cycle + chain.cycles
            label = " ; ".join(disassemble(stage.word) for stage in chain.stages)
            tensor = self._tensor(chain.stages[-1].number)
            taken = {each for where in chain.read for each in self._read(where)}
            number = chain.stages[0].number
            layer = layer_at(self.program.report["layers"], number)
            self.activities.append(
                Activity(ARRAY, label, started, self.cycle, tensor, layer, number, producers=tuple(sorted(taken)))
            )
            for stage in chain.stages:
                for where in chain.written(stage):
                    self._write(where, self._tensor(stage.number) or "", started, len(self.activities) - 1)

    def _tensor(self, number: int) -> str | None:
        """The tensor that an instruction word computes, if the manifest has it."""
        table = self.contents.instructions
        return table[number].tensor if number < len(table) else None

    def _transfer(self, engine: str, what: str, size: int, producers: Sequence[int] = ()) -> None:
        started = self.cycle
        self.cycle += -(-size // self.contents.machine.host_bytes_per_cycle)
        found = Activity(engine, f"{engine} {what}", started, self.cycle, bytes=size, producers=tuple(producers))
        self.activities.append(found)

    def _bytes(self, move: TensorMove) -> int:
        return feature_words(move.channels, move.height, move.width) * self.contents.machine.word_bytes

    def _buffer(self, memory: str, label: str, address: int, words: int, start: int) -> Buffer:
        size = self.contents.machine.word_bytes
        return Buffer(memory, label, address * size, words * size, start, self.cycle)

    def _expect_inside(self, where: Map) -> None:
        """Raises ArtefactError (E503) for words outside the memory."""
        first, last = where.span
        if not 0 <= first <= last < self.contents.machine.capacity_words(where.place.memory):
            raise ArtefactError("E503", f"words {first} to {last} of {where.place.memory} are beyond the memory")

    def _write(self, where: Map, tensor: str, start: int, writer: int) -> None:
        self._expect_inside(where)
        first, last = where.span
        self._holders(where)[where.grid] = len(self.buffers)
        self.buffers.append(self._buffer(where.place.memory, tensor, first, last - first + 1, start))
        self.writers.append(writer)

    def _read(self, where: Map) -> list[int]:
        """Marks the buffers of a map as in use until now; returns the activities that wrote them."""
        self._expect_inside(where)
        holders = self._holders(where)[where.grid]
        found: list[int] = np.unique(holders[holders != NOBODY]).tolist()
        for at in found:
            self.buffers[at] = replace(self.buffers[at], end=self.cycle)
        return [self.writers[at] for at in found]

    def _holders(self, where: Map) -> Array:
        """The buffer that each word of the memory belongs to, by address."""
        memory = where.place.memory
        words = self.contents.machine.capacity_words(memory)
        return self.holders.setdefault(memory, np.full(words, NOBODY))


def _with_bytes(activities: Sequence[Activity], layers: Sequence[Mapping[str, Any]]) -> Iterator[Activity]:
    """The activities, with the bytes that a layer moves between DTCMs and array divided equally among its own."""
    counts = Counter(each.layer for each in activities)
    seen = Counter[int | None]()
    for each in activities:
        if each.layer is None:
            yield each
            continue
        moved, share, parts = layers[each.layer]["bytes"], seen[each.layer], counts[each.layer]
        seen[each.layer] += 1
        yield replace(each, bytes=moved * (share + 1) // parts - moved * share // parts)
