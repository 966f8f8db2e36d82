"""Maps that are still in the DTCMs, which a segment need not load again."""

from __future__ import annotations

from collections.abc import Sequence

from npuc.targets.easynpu.machine.memory import Map, Place, groups
from npuc.targets.easynpu.plan.placement import Placement
from npuc.targets.easynpu.program.artefact import Segment, TensorMove


class Resident:
    """The maps known to be in the map memories between segments."""

    def __init__(self) -> None:
        self.known: list[TensorMove] = []

    def load(self, moves: Sequence[TensorMove]) -> tuple[TensorMove, ...]:
        """The moves that are still needed. Their maps become resident, and those they overwrite no longer are."""
        needed = tuple(move for move in moves if move not in self.known)
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

    def _cover(self, written: Map) -> None:
        first, last = written.span
        self.known = [
            move
            for move in self.known
            if move.place.memory != written.place.memory or move.map.span[0] > last or move.map.span[1] < first
        ]


def _map(place: Place, channels: int, height: int, width: int) -> Map:
    return Map(place, height, width, groups(channels))
