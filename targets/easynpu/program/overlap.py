"""Loads that the bus carries while words run, for the segments behind (Machine.overlap).

A load moves to the run before its own where that one neither reads nor writes these words; weights that exceed the
time of a run move on to the one before. A run takes as long as the array or the bus, whichever is longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np

from npuc.ir import Array
from npuc.targets.easynpu.machine.memory import Map, groups
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.program.artefact import ImageLoad, Segment, Step, TensorMove
from npuc.targets.easynpu.program.residence import EmittedRun

Busy = dict[str, Array]
"""For every word of each memory, whether a segment uses it."""
Split = tuple[list[ImageLoad], list[ImageLoad]]
"""What moves ahead, and what does not."""


def with_loads_ahead(steps: Sequence[Step], runs: Sequence[EmittedRun], machine: Machine) -> tuple[Step, ...]:
    """The steps with their loads as far ahead as they may be. runs: of the segments, in order."""
    found = [*steps]
    numbers = [number for number, step in enumerate(steps) if isinstance(step, Segment)]
    for (before, number), (run, own) in reversed([*zip(pairwise(numbers), pairwise(runs), strict=True)]):
        segment, later = found[before], found[number]
        assert isinstance(segment, Segment) and isinstance(later, Segment)
        busy = _busy_words(run, segment, machine)
        excess = later.words_ahead - own.cycles * machine.host_bytes_per_cycle // machine.word_bytes
        ahead, images = _free(later.images, busy)
        more, kept = _free_words(later.images_ahead, busy, excess)
        loads, waiting = [], later.loads
        if number == before + 1:
            loads, waiting = _free_rows(later.loads, segment, busy)
        found[number] = replace(later, images=tuple(images), images_ahead=tuple(kept), loads=tuple(waiting))
        found[before] = replace(segment, images_ahead=(*ahead, *more), loads_ahead=tuple(loads))
    return tuple(found)


def _busy_words(run: EmittedRun, segment: Segment, machine: Machine) -> Busy:
    """The words that a segment loads, reads, writes or stores."""
    busy = {name: np.zeros(machine.capacity_words(name), np.bool_) for name in ("fmap", "skip", "weight")}
    busy["weight"][run.weights_at : run.weights_at + run.stream[1]] = True
    maps = [move.map for move in (*segment.loads, *segment.stores)]
    for placed in run.placement.jobs:
        job = placed.job
        views = [*zip(job.sources, placed.sources, strict=True), (job.operand, placed.opb)]
        views += [] if job.leaves else [(job.result, placed.dst), (job.kept, placed.stored)]
        maps += [
            Map(place, view.height, view.width, groups(view.channels))
            for view, place in views
            if view is not None and place is not None
        ]
    for each in maps:
        busy[each.place.memory][each.grid] = True
    return busy


def _free(images: Sequence[ImageLoad], busy: Busy) -> Split:
    """The parts of the weights among images that lie in free words, and the rest."""
    ahead, rest = list[ImageLoad](), list[ImageLoad]()
    for image in images:
        if image.memory != "weight":
            rest.append(image)
            continue
        used = busy["weight"][image.address : image.address + image.words]
        edges = [0, *(np.flatnonzero(np.diff(used)) + 1).tolist(), image.words]
        for first, end in pairwise(edges):
            (rest if used[first] else ahead).append(_part(image, first, end))
    return ahead, rest


def _part(image: ImageLoad, first: int, end: int) -> ImageLoad:
    return replace(image, address=image.address + first, start=image.start + first, words=end - first)


def _free_words(images: Sequence[ImageLoad], busy: Busy, most: int) -> Split:
    """The same, with at most so many words that move."""
    ahead, rest = _free(images, busy)
    moving = list[ImageLoad]()
    for each in ahead:
        count = min(max(most, 0), each.words)
        most -= count
        moving += [_part(each, 0, count)] if count else []
        rest += [_part(each, count, each.words)] if count < each.words else []
    return moving, rest


def _free_rows(
    loads: Sequence[TensorMove], segment: Segment, busy: Busy
) -> tuple[list[TensorMove], list[TensorMove]]:
    """The rows of loads into free words that the segment before does not store, and the others."""
    ahead, rest = list[TensorMove](), list[TensorMove]()
    for move in loads:
        waits = busy[move.place.memory][move.map.grid].any(axis=(1, 2))
        waits |= move.rows_in(each.window[1:] for each in segment.stores if each.tensor == move.tensor)
        ahead += move.parts(~waits)
        rest += move.parts(waits)
    return ahead, rest
