"""The execution of a program's steps: host steps in numpy, segments on a simulator.

Tiles that run side by side: segments of one geometry that neither read each other's results nor share a memory.

A program runs its segments one after the other, and what one leaves in the memories, the next may read. Segments
that read only what the host loads could run on machines of their own, each with these loads. Of those that also
load no tensor which another of them stores, all of one geometry are one run of their words, on as many machines as
there are tiles: they compute what they compute one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import groupby
from math import prod
from typing import Any, Protocol

import numpy as np

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.host.step import HostStep, outputs_among
from npuc.ir import Array
from npuc.program import Program, count_of
from npuc.system.budget import expect_room
from npuc.target import Observer
from npuc.targets.easynpu.machine.memory import LANES, Map
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.program.artefact import Contents, Segment, Step, TensorMove
from npuc.targets.easynpu.simulate.simulator import MachineState, Simulator, Word, WordObserver, side_by_side


@frozen
class DecodedSegment:
    """A segment with its number among the program's, its words, and the transfers before and behind them."""

    number: int
    words: tuple[Word, ...]
    loads: tuple[TensorMove, ...]
    stores: tuple[TensorMove, ...]


Part = tuple[DecodedSegment, ...]
"""Consecutive segments that share what is in the memories."""


@frozen
class Tiles:
    """Parts of a program that run side by side."""

    parts: tuple[Part, ...]
    words: tuple[tuple[Word, ...], ...]
    """The words of the first segments of all parts, then of the second, and so on."""
    resumes: bool = False
    """Its part has segments on both sides of a host step, and needs the memories as they were left."""

    def pieces(self, most: int) -> Iterator[Tiles]:
        """The same in pieces of at most so many parts."""
        for first in range(0, len(self.parts), most):
            tiles = slice(first, first + most)
            words = tuple(tuple(word.tiles(tiles) for word in each) for each in self.words)
            yield replace(self, parts=self.parts[tiles], words=words)


Wave = tuple[Tiles, ...]
"""Tiles that may run in any order."""


def plan_steps(steps: Sequence[Step], simulator: Simulator, init: Segment | None = None) -> list[HostStep | Wave]:
    """The steps of an inference in order, its segments as tiles. init: what has been loaded before.

    Raises ArtefactError (E503) for words that no machine executes.
    """
    decoder, memories = simulator.state(0), _Memories(simulator.machine)
    if init is not None:
        simulator.decoded(init, decoder)
    runs: list[HostStep | list[int]] = []
    ahead: tuple[TensorMove, ...] = ()
    for step in steps:
        if isinstance(step, HostStep):
            runs.append(step)
            memories.host_runs()
            continue
        given = replace(step, loads=(*ahead, *step.loads))  # nothing meets them before, so they may wait
        number, ahead = memories.add(given, simulator.decoded(step, decoder)), step.loads_ahead
        if runs and isinstance(runs[-1], list):
            runs[-1].append(number)
        else:
            runs.append([number])
    segments, firsts = memories.segments()
    heads = [run[0] for run in runs if isinstance(run, list)]
    crossing = {firsts[head] for head in heads if firsts[head] < head}
    found: list[HostStep | Wave] = []
    for run in runs:
        if isinstance(run, HostStep):
            found.append(run)
            continue
        parts = [tuple(segments[at] for at in part) for _, part in groupby(run, firsts.__getitem__)]
        for resumes, group in groupby(parts, lambda part: firsts[part[0].number] in crossing):
            several = list(group)
            found += [(_tiles([part], resumes=True),) for part in several] if resumes else _waves(several)
    return found


NEVER = -1
"""In place of the number of a segment: at power-up."""


class _Memories:
    """Who wrote what is in the memories, from segment to segment."""

    def __init__(self, machine: Machine) -> None:
        words = {name: machine.capacity_words(name) for name in ("fmap", "skip")}
        self.writers = {name: np.zeros((1, count), np.int64) for name, count in words.items()}
        """The last writer of each word, a number in `events`."""
        self.events: list[tuple[int, TensorMove | None]] = [(NEVER, None)]
        """The number of a segment, and what it loads; None for its words."""
        self.stored: dict[str, int] = {}
        """The last segment that stores each host tensor."""
        self.touched: dict[str, int] = {}
        """The last segment that loads it, also again, or stores it."""
        self.since = 0
        """The first segment behind the last host step, which may have changed or read any tensor."""
        self.decoded: list[tuple[Segment, tuple[Word, ...]]] = []
        self.wanted: list[int] = []
        """For every segment the first one of whose results it reads something."""
        self.repeatable: list[dict[TensorMove, int]] = []
        """For every segment what earlier ones, with these numbers, load for it."""
        self.stores: list[list[TensorMove]] = []
        """What each segment stores; what a later one would store of its results, it stores itself."""

    def host_runs(self) -> None:
        """A host step follows."""
        self.since = len(self.decoded)

    def add(self, segment: Segment, words: Sequence[Word]) -> int:
        """The next segment; returns its number."""
        number = len(self.decoded)
        self.decoded.append((segment, tuple(words)))
        self.stores.append([])
        for move in segment.loads:
            self._write(number, move, move.map)
        self.touched |= {move.tensor: number for move in segment.loads}
        read = set[int]()
        for word in words:
            read.update(writer for where in word.reads for writer in self._writers(where))
            for where in (*word.stored, *word.ofmap):
                self._write(number, None, where)
        for move in segment.stores:
            pieces = self._pieces(number, move)
            for at, piece in pieces:
                self.stores[at].append(piece)
            if not pieces:
                self.stores[number].append(move)
                read.update(self._writers(move.map))
            self.touched[move.tensor] = number
        first = max(number - 1, 0) if words and words[0].stage.takes else number
        loads: dict[TensorMove, int] = {}
        for writer, move in map(self.events.__getitem__, sorted(read)):
            since = number if move is None else max(self.stored.get(move.tensor, NEVER) + 1, self.since)
            if move is not None and since <= writer < number:
                loads[move] = writer
                self.touched[move.tensor] = number
            elif writer > NEVER:
                first = min(first, writer)
        self.wanted.append(first)
        self.repeatable.append(loads)
        self.stored |= {move.tensor: number for move in segment.stores}
        return number

    def _pieces(self, number: int, move: TensorMove) -> list[tuple[int, TensorMove]]:
        """What each segment may store of a map that several computed; empty where they may not."""
        written = move.map.words(self.writers[move.place.memory])[0]
        found: list[tuple[int, TensorMove]] = []
        for event in np.unique(written).tolist():
            at, loaded = self.events[event]
            inside = np.nonzero(written == event)
            box = [(int(each.min()), int(each.max()) + 1) for each in inside]
            whole = prod(stop - start for start, stop in box) == len(inside[0])
            if loaded is not None or at < self.since or self.touched.get(move.tensor, NEVER) >= at or not whole:
                return []
            found.append((at, _piece(move, box)))
        return found if {at for at, _ in found} != {number} else []

    def segments(self) -> tuple[list[DecodedSegment], list[int]]:
        """The segments, and for each the first one of its part.

        The first of a part repeats what segments before it loaded for the part.
        """
        firsts = _join_segments(self.wanted)
        repeated: list[dict[TensorMove, int]] = [{} for _ in firsts]
        for first, loads in zip(firsts, self.repeatable, strict=True):
            repeated[first] |= {move: writer for move, writer in loads.items() if writer < first}
        found: list[DecodedSegment] = []
        for number, ((segment, words), stores) in enumerate(zip(self.decoded, self.stores, strict=True)):
            earlier = sorted(repeated[number].items(), key=lambda each: each[1])
            loads = (*(move for move, _ in earlier), *segment.loads)
            found.append(DecodedSegment(number, words, loads, tuple(stores)))
        return found, firsts

    def _write(self, number: int, move: TensorMove | None, where: Map) -> None:
        self.events.append((number, move))
        where.words(self.writers[where.place.memory])[...] = len(self.events) - 1

    def _writers(self, where: Map) -> Sequence[int]:
        written = where.words(self.writers[where.place.memory])
        low, high = int(written.min()), int(written.max())
        return (low,) if low == high else np.unique(written).tolist()


def _piece(move: TensorMove, box: Sequence[tuple[int, int]]) -> TensorMove:
    """A part of a transfer. box: the first and the end of its rows, columns and groups of channels."""
    (top, bottom), (left, right), (low, high) = box
    place, (channel, row, column) = move.place, move.start
    base = place.base + top * place.row + left * place.pixel + low * place.group
    return replace(
        move,
        place=replace(place, base=base),
        channels=min(LANES * high, move.channels) - LANES * low,
        height=bottom - top,
        width=right - left,
        start=(channel + LANES * low, row + top, column + left),
    )


def _join_segments(wanted: Sequence[int]) -> list[int]:
    """For every segment the first one of its part, which reaches back as far as any of its segments wants."""
    firsts: list[int] = []
    for number, first in enumerate(wanted):
        firsts.append(number)
        while firsts[number] > first:
            before = firsts[firsts[number] - 1]
            firsts[before:] = [before] * (number + 1 - before)
    return firsts


def _waves(parts: Sequence[Part]) -> list[Wave]:
    """The parts in their order, as waves: in a wave none loads what another stores, and none stores it again."""
    found: list[Wave] = []
    wave: list[Part] = []
    loaded, stored = set[str](), dict[str, Array]()
    for part in parts:
        loads = {move.tensor for each in part for move in each.loads}
        stores = [move for each in part for move in each.stores]
        names = {move.tensor for move in stores}
        again = any(move.tensor in stored and stored[move.tensor][move.window[1:]].any() for move in stores)
        if again or not names.isdisjoint(loaded | loads) or not loads.isdisjoint(stored):
            found += _group_parts(wave)
            wave, loaded, stored = [], set(), {}
        wave.append(part)
        loaded |= loads
        for move in stores:
            stored.setdefault(move.tensor, np.zeros(move.map_shape, bool))[move.window[1:]] = True
    return found + _group_parts(wave)


def _group_parts(wave: Sequence[Part]) -> list[Wave]:
    groups: dict[tuple[object, ...], list[Part]] = {}
    for part in wave:
        groups.setdefault(tuple(map(_geometry, part)), []).append(part)
    return [tuple(map(_tiles, groups.values()))] if groups else []


def _geometry(each: DecodedSegment) -> tuple[object, ...]:
    """What segments that run side by side have in common."""
    moves = (
        (move.tensor, move.shape, move.place.memory, move.channels, move.height, move.width)
        for move in (*each.loads, *each.stores)
    )
    return *moves, len(each.loads), *(word.geometry for word in each.words)


def _tiles(parts: Sequence[Part], *, resumes: bool = False) -> Tiles:
    words = tuple(
        tuple(side_by_side(word) for word in zip(*(each.words for each in segments), strict=True))
        for segments in zip(*parts, strict=True)
    )
    return Tiles(tuple(parts), words, resumes)


class Executor(Protocol):
    """A simulator: memories for a number of samples, and the execution of segments on them."""

    def state(self, samples: int) -> Any:
        """The memories at power-up."""
        ...

    def run(
        self, segment: Segment, state: Any, tensors: dict[str, Array], observe: WordObserver | None = None
    ) -> None:
        """Loads, runs and stores."""
        ...


UNCOMPUTED = 1 << 8
"""Marks elements of observed tensors that no word wrote: it differs from every int8."""


MOST_BYTES = 1 << 26
"""The most bytes of the memories of machines that run side by side."""


class Runner:
    """A program ready to run batch after batch; its kernels are created once.

    executor: what runs its segments, one after the other; None: the word simulator, tiles side by side.
    """

    def __init__(self, program: Program, executor: Executor | None = None) -> None:
        self.contents = Contents.of(program.manifest)
        self.outputs = program.outputs
        self.executor = executor
        self.simulator = Simulator(self.contents.machine, program.files)

    def __call__(self, feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        """Outputs (samples, *shape) for inputs (samples, *shape)."""
        tensors = dict(feeds)
        samples = count_of(feeds)
        state = (self.executor or self.simulator).state(samples)
        seen: dict[str, Array] = {}

        def collect(number: int, values: Array) -> None:
            self._collect(seen, number, values)

        watch = None if observe is None else collect
        if self.executor is not None and self.contents.init.images:
            self.executor.run(self.contents.init, state, tensors)
        for step in self.contents.steps if self.executor is not None else self._plan:
            if isinstance(step, HostStep):
                step.run(tensors)
                seen.update((name, tensors[name]) for name in step.outputs if tensors[name].dtype == np.int8)
            elif isinstance(step, Segment):
                assert self.executor is not None
                self.executor.run(step, state, tensors, watch)
            else:
                self.run_wave(step, state, tensors, watch)
        if observe is not None:
            for name, values in seen.items():
                observe(name, values)
        return outputs_among(tensors, self.outputs)

    @cached_property
    def _plan(self) -> Sequence[HostStep | Wave]:
        return plan_steps(self.contents.steps, self.simulator, self.contents.init)

    def run_wave(
        self, wave: Wave, state: MachineState, tensors: dict[str, Array], watch: WordObserver | None
    ) -> None:
        """Runs all tiles; results are observed in the order of the program."""
        shown: list[tuple[int, int, Array]] = []
        most = max(MOST_BYTES // max(state.fmap.nbytes + state.skip.nbytes, 1), 1)
        for tiles in (piece for each in wave for piece in each.pieces(most)):
            try:
                self._run_tiles(tiles, state, tensors, None if watch is None else shown)
            except ArtefactError:
                for part in tiles.pieces(1):  # to name the first instruction that fails
                    self._run_tiles(part, state, tensors, None)
                raise
        if watch is not None:
            for _, number, values in sorted(shown, key=lambda each: each[:2]):
                watch(number, values)

    def _run_tiles(
        self,
        tiles: Tiles,
        state: MachineState,
        tensors: dict[str, Array],
        shown: list[tuple[int, int, Array]] | None,
    ) -> None:
        own = state if tiles.resumes else self.simulator.state(len(tiles.parts) * len(state.fmap))
        for segments, words in zip(zip(*tiles.parts, strict=True), tiles.words, strict=True):
            watches = None if shown is None else [_note_word(shown, each.number) for each in segments]
            loads, stores = [each.loads for each in segments], [each.stores for each in segments]
            self.simulator.run_tiles(loads, words, stores, own, tensors, watches)

    def _collect(self, seen: dict[str, Array], number: int, values: Array) -> None:
        """Stores the result of one layer word (samples, Ho, Wo, Co), without its unused rows, in its window.

        A word with other extents leaves its window uncomputed.
        """
        table = self.contents.instructions
        entry = table[number] if number < len(table) else None
        if entry is None or entry.tensor is None or entry.shape is None:
            return
        if entry.tensor not in seen:
            size = len(values) * prod(entry.shape) * np.dtype(np.int16).itemsize
            expect_room(size + sum(each.nbytes for each in seen.values()), "what is shown", tensor=entry.tensor)
            seen[entry.tensor] = np.full((len(values), *entry.shape), UNCOMPUTED, np.int16)
        whole = seen[entry.tensor].reshape(len(values), *(*entry.shape[1:], 1, 1)[:3])
        first, row, column = entry.start
        row += entry.unused_rows
        planes = values.transpose(0, 3, 1, 2)[:, :, entry.unused_rows :]
        window = whole[
            :, first : first + planes.shape[1], row : row + planes.shape[2], column : column + planes.shape[3]
        ]
        if window.shape == planes.shape:
            window[...] = planes


def _note_word(shown: list[tuple[int, int, Array]], segment: int) -> WordObserver:
    return lambda number, values: shown.append((segment, number, values))
