"""Weights that stay in their DTCM from inference to inference.

Every stream of weights has a place in the weight DTCM. Where all fit, they lie one behind the other; otherwise
those that would be loaded most lie behind the room that the others share, from word 0 on, and long runs are
divided so that this room is small. What the DTCM holds is not loaded again. An initialisation loads what is there
when an inference begins, which is also there when it ends.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace
from itertools import accumulate, pairwise, product
from math import inf

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.easynpu.layers.jobs import Stage
from npuc.targets.easynpu.machine.memory import BS_WORDS, LANES
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.plan.placement import Placement
from npuc.targets.easynpu.program.artefact import ImageLoad
from npuc.targets.easynpu.program.emission import EmittedJob, emit_job, without_data

Stream = tuple[int, int]
"""The first word of a stream in the weight image, and its words."""
WORTH = 4
"""Words of the shortest stream for which a segment, or a word that sets its address, is worth while."""
NONE = -2
"""In place of a word of the image; two less than the first one, as words that follow one another differ by 1."""
MOST_ROOMS = 16
"""The most divisions of runs that are compared."""


@frozen
class WeightImage:
    """The weight file: every distinct stream once."""

    image: bytearray = field(default_factory=bytearray)
    starts: dict[bytes, int] = field(default_factory=dict[bytes, int])

    def add(self, stream: bytes) -> Stream:
        """A stream's place in the file."""
        if stream not in self.starts:
            self.starts[stream] = len(self.image) // LANES
            self.image.extend(stream)
        return self.starts[stream], len(stream) // LANES

    @property
    def contents(self) -> Array:
        """For every word, the first word of the file that equals it."""
        words = np.frombuffer(bytes(self.image), np.dtype((np.void, LANES)))
        _, first, same = np.unique(words, return_index=True, return_inverse=True)
        return first[same]


@frozen
class EmittedRun:
    """A placed run with its emitted jobs, without their weights, which are a stream of the weight image."""

    placement: Placement
    """Its jobs have no weights either."""
    jobs: tuple[EmittedJob, ...]
    stream: Stream
    weights_at: int = 0
    """Address of the stream in the weight DTCM."""
    before: int = 0
    """Words before it in the stream that it is a part of, from whose start its jobs' addresses count."""

    @property
    def cycles(self) -> int:
        """Cycles of all its words."""
        return sum(job.tiling.cycles for job in self.jobs)

    def divided(self, room: int) -> Iterator[EmittedRun]:
        """The run in parts whose streams have at most so many words, or one job each.

        Only where addresses are explicit, so that a part finds its maps, and no job streams another part's words.
        """
        if not all(each.placed.explicit for each in self.jobs):
            yield self
            return
        parts: list[list[EmittedJob]] = [[]]
        ends = [0, *accumulate(len(job.weights) for job in self.jobs)]
        least = [*accumulate(reversed([*self._first_words()]), min)][::-1]
        for at, job in enumerate(self.jobs):
            apart = least[at] >= ends[at]
            if apart and parts[-1] and sum(len(each.weights) for each in (*parts[-1], job)) > room:
                parts.append([])
            parts[-1].append(job)
        start = self.stream[0]
        for part in parts:
            inputs, outputs = self.placement.inputs, self.placement.outputs
            placement = replace(
                self.placement,
                jobs=tuple(each.placed for each in part),
                inputs=inputs if part is parts[0] else (),
                outputs=outputs if part is parts[-1] else (),
            )
            words = sum(len(each.weights) for each in part)
            before = start - self.stream[0]
            yield replace(self, placement=placement, jobs=tuple(part), stream=(start, words), before=before)
            start += words

    def _first_words(self) -> Iterator[float]:
        """The lowest address of the stream that each job reads from; infinity for one that reads none."""
        behind = 0
        for job in self.jobs:
            lowest = inf
            for stage in job.placed.job.stages:
                if len(stage.block):
                    first = behind if stage.weights_at is None else stage.weights_at
                    lowest, behind = min(lowest, first), first + len(stage.block)
            yield lowest

    def with_weights_at(self, base: int, machine: Machine) -> EmittedRun:
        """The run with its stream at an address, or at word 0 if the ITCM has no room for a word that sets it."""
        if sum(len(job.words) for job in self.jobs) >= machine.itcm_words:
            base = 0
        if base == self.before == 0:
            return replace(self, weights_at=0)
        found: list[EmittedJob] = []
        begins = bool(base)
        for each in self.jobs:
            job = each.placed.job
            moved: dict[int, Stage] = {}
            for at, stage in enumerate(job.stages):
                if len(stage.block) and (begins or stage.weights_at is not None):
                    given = self.before if stage.weights_at is None else stage.weights_at
                    moved[at] = replace(stage, weights_at=base + given - self.before)
                    begins = False
            stages = tuple(moved.get(at, stage) for at, stage in enumerate(job.stages))
            placed = replace(each.placed, job=replace(job, stages=stages))
            found.append(without_data(emit_job(placed, machine)) if moved else each)
        return replace(self, jobs=tuple(found), weights_at=base)


def arranged(runs: Sequence[EmittedRun], machine: Machine, contents: Array) -> list[list[EmittedRun]]:
    """The parts of each run, with the places of their streams, for the fewest words that are loaded again.

    contents: of every word of the image, a number that equal words have in common (WeightImage.contents).
    Long runs are divided where smaller ones share less room, so that more stays.
    """
    counts = Counter(run.stream for run in runs)
    sizes = sorted({len(job.weights) for run in runs for job in run.jobs if counts[run.stream] == 1})
    best: tuple[int, list[list[EmittedRun]], list[int]] | None = None
    streams: list[Stream] = []
    for room in (machine.weight_words, *sizes[:: -(len(sizes) // MOST_ROOMS + 1)]):
        parts = [[*run.divided(room)] if counts[run.stream] == 1 else [run] for run in runs]
        before, streams = streams, [each.stream for part in parts for each in part]
        if streams == before:
            continue
        flat = [each for part in parts for each in part]
        times = [each.cycles * machine.host_bytes_per_cycle // machine.word_bytes for each in flat]
        bases = (
            places_in_turns(streams, machine, times) if machine.overlap else places_of_streams(streams, machine)
        )
        placed = [*zip(streams, bases, strict=True)]
        _, loads = resident(placed, machine, contents)
        needed = [sum(each.words for each in load) for load in loads]
        cost = (exposed_words(placed, needed, times) if machine.overlap else sum(needed)) + WORTH * len(streams)
        if best is None or cost < best[0]:
            best = cost, parts, bases
    assert best is not None
    at = iter(best[2])
    return [[each.with_weights_at(next(at), machine) for each in part] for part in best[1]]


def places_of_streams(streams: Sequence[Stream], machine: Machine) -> list[int]:
    """The address of each segment's stream, for the fewest words that are loaded in an inference.

    Streams stay for good, or from the first segment that uses them up to the last; the others lie at word 0, one
    after the other. Those that save most for the words and segments that they take come first, but before them,
    in turn, all that are longer than some stream: they would leave little room.
    """
    used: dict[Stream, list[int]] = {}
    for at, stream in enumerate(streams):
        used.setdefault(stream, []).append(at)
    loads = Counter(stream for at, stream in enumerate(streams) if not at or streams[at - 1] != stream)

    def stay(stream: Stream, first: int, last: int, saved: int) -> tuple[float, Stream, slice, int]:
        return saved / (last + 1 - first), stream, slice(first, last + 1), saved * stream[1]

    always = [stay(each, 0, len(streams) - 1, count) for each, count in loads.items()]
    meanwhile = [stay(each, used[each][0], used[each][-1], loads[each] - 1) for each in loads if loads[each] > 1]
    long, stays = (
        sorted((each for each in kind if each[1][1] >= WORTH), key=lambda each: (-each[0], -each[1][1]))
        for kind in (always, [*always, *meanwhile])
    )
    best: tuple[int, dict[Stream, int]] = 0, {}
    sizes = sorted({size for _, size in streams})
    rooms = (0, *reversed(sizes[:: -(len(sizes) // MOST_ROOMS + 1)]))
    for room, kind in product(rooms, (long, stays)):
        total, places = 0, dict[Stream, int]()
        tops, alone = np.zeros((2, len(streams)), np.int64)
        """For every segment, the words behind what stays, and those of its stream if that does not."""
        alone[:] = [size if size <= room else 0 for _, size in streams]
        for _, stream, span, saved in (*(each for each in long if each[1][1] > room), *kind):
            if stream in places or tops[span.start] + stream[1] > machine.weight_words:
                continue
            mine, alone[used[stream]] = alone[used[stream]], 0
            low = int(np.maximum(tops[span], alone[span]).max())
            if low + stream[1] <= machine.weight_words:
                places[stream], tops[span] = low, low + stream[1]
                total += saved
            else:
                alone[used[stream]] = mine
        if total > best[0] and all(each in places for each in loads if each[1] > room):
            best = total, places
    return [best[1].get(stream, 0) for stream in streams]


def places_in_turns(streams: Sequence[Stream], machine: Machine, times: Sequence[int]) -> list[int]:
    """The same for the fewest words that are loaded while nothing runs (Machine.overlap).

    times: words that the bus carries during each segment. Streams that do not stay lie at both ends of their room.
    """
    new = [not at or streams[at - 1] != stream for at, stream in enumerate(streams)]
    loads = Counter(stream for stream, first in zip(streams, new, strict=True) if first)
    order = sorted(loads, key=lambda stream: (-loads[stream], -stream[1]))
    both = sorted({min(one[1] + other[1], machine.weight_words) for one, other in pairwise(streams)})
    best: tuple[int, list[int]] | None = None
    for room in sorted({0, *(size for _, size in streams), *both[:: len(both) // MOST_ROOMS + 1]}):
        places: dict[Stream, int] = {}
        end = room
        for stream in (*(each for each in order if each[1] > room), *(each for each in order if each[1] <= room)):
            if WORTH <= stream[1] <= machine.weight_words - end:
                places[stream], end = end, end + stream[1]
        if any(stream[1] > room and stream not in places for stream in order):
            continue
        bases = _in_turns(streams, places, room)
        needed = [stream[1] * (first and stream not in places) for stream, first in zip(streams, new, strict=True)]
        cost = exposed_words([*zip(streams, bases, strict=True)], needed, times)
        if best is None or cost < best[0]:
            best = cost, bases
    return best[1] if best is not None else [0] * len(streams)


def _in_turns(streams: Sequence[Stream], places: Mapping[Stream, int], room: int) -> list[int]:
    """The addresses of streams; of two in succession without a place, one is at each end of the room."""
    found, last, low = list[int](), None, False
    for stream in streams:
        if stream not in places and stream != last:
            last, low = stream, not low
        found.append(places.get(stream, 0 if low else room - stream[1]))
    return found


def exposed_words(streams: Sequence[tuple[Stream, int]], needed: Sequence[int], times: Sequence[int]) -> int:
    """About how many of the needed words are loaded while nothing runs.

    times: words that the bus carries during each segment.
    """
    free, exposed = [*times], 0
    for at, ((_, size), base) in enumerate(streams):
        left = apart = needed[at]
        for before in range(at - 1, -1, -1):
            (_, other), start = streams[before]
            apart = min(apart, size - max(min(base + size, start + other) - max(base, start), 0))
            moved = min(free[before], apart, left)
            if not left or not apart:
                break
            free[before], left, apart = free[before] - moved, left - moved, apart - moved
        exposed += left
    return exposed


def resident(
    streams: Sequence[tuple[Stream, int]], machine: Machine, contents: Array
) -> tuple[tuple[ImageLoad, ...], list[tuple[ImageLoad, ...]]]:
    """What is loaded before the first inference, and by each segment of every inference.

    streams: of each segment, with its address.
    """
    held, holds = np.full((2, machine.weight_words), NONE)
    """For each word of the DTCM the word of the image that it holds, and the number of its contents."""
    image = np.arange(len(contents))

    def load(stream: Stream, base: int) -> tuple[ImageLoad, ...]:
        here, there = slice(base, base + stream[1]), slice(stream[0], sum(stream))
        others = _without_gaps(holds[here] != contents[there])
        held[here], holds[here] = np.where(others, image[there], held[here]), contents[there]
        return tuple(_loads(np.where(others, image[there], NONE), base)) if others.any() else ()

    for stream, base in streams:
        load(stream, base)
    before, loaded = held.copy(), np.zeros(len(held), np.bool_)
    used = np.zeros(len(held), np.bool_)
    """The words that an inference reads before it loads them."""
    found: list[tuple[ImageLoad, ...]] = []
    for stream, base in streams:
        found.append(load(stream, base))
        for each in found[-1]:
            loaded[each.address : each.address + each.words] = True
        here = slice(base, base + stream[1])
        used[here] |= ~loaded[here]
    return tuple(_loads(np.where(used, before, NONE), 0)), found


def _without_gaps(wanted: Array) -> Array:
    """The words to load, with those between them that are too few for a transfer to end: bias and scale."""
    edges = np.flatnonzero(np.diff(wanted, prepend=True, append=True))
    found = wanted.copy()
    for first, end in zip(edges[::2], edges[1::2], strict=True):
        found[first:end] = end - first <= BS_WORDS
    return found


def _loads(wanted: Array, base: int) -> Iterator[ImageLoad]:
    """The loads of words of the image to addresses from a base on; NONE where none is wanted."""
    breaks = np.flatnonzero(np.diff(wanted) != np.where(wanted[1:] < 0, 0, 1)) + 1
    for part in np.split(np.arange(len(wanted)), breaks):
        if len(part) and wanted[part[0]] >= 0:
            yield ImageLoad("weight", base + int(part[0]), "weight.bin", int(wanted[part[0]]), len(part))
