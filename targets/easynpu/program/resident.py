"""Maps that are still in the DTCMs: rows that a segment need not load again, and rows that need not be stored."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

import numpy as np

from npuc.host.step import HostStep
from npuc.ir import Array
from npuc.targets.easynpu.machine.memory import Map, Place, groups
from npuc.targets.easynpu.plan.placement import Placement
from npuc.targets.easynpu.program.artefact import Segment, Step, TensorMove


class Resident:
    """The windows of maps known to be in the map memories between segments."""

    def __init__(self) -> None:
        self.known: list[TensorMove] = []

    def load(self, moves: Sequence[TensorMove]) -> tuple[TensorMove, ...]:
        """The rows that must still be loaded. They become resident, and what they overwrite no longer is."""
        needed = tuple(part for move in moves for part in _parts(move, self._missing(move)))
        for move in needed:
            self._cover(move.map)
        self.known += needed
        return needed

    def run(self, placement: Placement, segment: Segment) -> None:
        """Records the maps that a segment's jobs overwrite, and those that the host has stored."""
        for placed in placement.jobs:
            job = placed.job
            for view, place in ((job.result, placed.dst), (job.kept or job.result, placed.stored)):
                if place is not None and not job.leaves:
                    self._cover(_map(place, view.channels, view.height, view.width))
        self.known += [move for move in segment.stores if move not in self.known]

    def _missing(self, move: TensorMove) -> Array:
        """For every row of a move, whether it is not where the move would put it."""
        missing = np.ones(move.height, np.bool_)
        for known in self.known:
            first = known.start[1] - move.start[1]
            if _sub(move, first, known.height) == known:
                missing[max(first, 0) : max(first + known.height, 0)] = False
        return missing

    def _cover(self, written: Map) -> None:
        first, last = written.span
        left: list[TensorMove] = []
        for move in self.known:
            start, end = move.map.span
            if move.place.memory != written.place.memory or start > last or end < first:
                left.append(move)
                continue
            row, _ = replace(move.map, height=1).span
            low = row + np.arange(move.height) * move.place.row
            high = low + replace(move.map, height=1).span[1] - row
            left += _parts(move, (low > last) | (high < first))
        self.known = left


def without_dead_stores(steps: Sequence[Step], outputs: Collection[str]) -> tuple[Step, ...]:
    """The steps without the stored rows that no later step reads. outputs: tensors that leave the program."""
    read = {name for step in steps if isinstance(step, HostStep) for name in step.inputs}.union(outputs)
    loads: dict[str, list[TensorMove]] = {}
    for step in steps:
        for move in step.loads if isinstance(step, Segment) else ():
            loads.setdefault(move.tensor, []).append(move)

    def kept(step: Step) -> Step:
        if isinstance(step, HostStep):
            return step
        stores = [
            part
            for move in step.stores
            for part in (
                [move] if move.tensor in read else _parts(move, _loaded(move, loads.get(move.tensor, ())))
            )
        ]
        return replace(step, stores=tuple(stores))

    return tuple(map(kept, steps))


def _loaded(store: TensorMove, loads: Sequence[TensorMove]) -> Array:
    """For every row of a store, whether a load reads some of it."""
    found = np.zeros(store.height, np.bool_)
    for load in loads:
        (_, *mine), (_, *others) = store.window, load.window
        if all(one.start < other.stop and other.start < one.stop for one, other in zip(mine, others, strict=True)):
            first = load.start[1] - store.start[1]
            found[max(first, 0) : max(first + load.height, 0)] = True
    return found


def _parts(move: TensorMove, wanted: Array) -> Iterator[TensorMove]:
    """The wanted rows of a move, as few moves."""
    bounds = np.flatnonzero(np.diff(wanted.astype(np.int8), prepend=0, append=0)).tolist()
    for first, end in zip(bounds[::2], bounds[1::2], strict=True):
        yield _sub(move, first, end - first)


def _sub(move: TensorMove, first: int, height: int) -> TensorMove:
    """A move of other rows of the same tensor, at the same distance from one another; they may lie outside it."""
    channel, row, column = move.start
    place = replace(move.place, base=move.place.base + first * move.place.row)
    return replace(move, place=place, height=height, start=(channel, row + first, column))


def _map(place: Place, channels: int, height: int, width: int) -> Map:
    return Map(place, height, width, groups(channels))
