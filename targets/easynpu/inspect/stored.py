"""Where a run writes a tensor in the DTCMs."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from npuc.ir import Array
from npuc.program import Program
from npuc.target import Stored
from npuc.targets.easynpu.machine.memory import LANES, Map, groups, unpack_feature
from npuc.targets.easynpu.program.artefact import Contents, Produced
from npuc.targets.easynpu.simulate.walk import segments_of

Written = tuple[tuple[int, ...], tuple[int, int, int], Map]
"""The shape of a tensor; the first channel, row and column of a window of it; the window's words."""


def stored(program: Program, tensor: str) -> Stored | None:
    """The place of a tensor in a DTCM once a segment has loaded or written all of it; None if none does.

    Raises ArtefactError (E502, E503) for a program that cannot be run.
    """
    for windows in _segments(program, tensor):
        memories = {each.place.memory for _, _, each in windows}
        if len(memories) != 1 or any(start[0] % LANES for _, start, _ in windows):
            continue
        shape = windows[0][0]
        channels, height, width = (*shape[1:], 1, 1)[:3]
        grid = np.full((height, width, groups(channels)), -1)
        for _, (channel, row, column), words in windows:
            first = channel // LANES
            part = grid[row : row + words.height, column : column + words.width, first : first + words.groups]
            if part.shape == words.grid.shape:
                part[...] = words.grid
        if grid.min() >= 0 and len(np.unique(grid)) == grid.size:
            return _stored(memories.pop(), grid, shape, channels)
    return None


def _stored(memory: str, grid: Array, shape: tuple[int, ...], channels: int) -> Stored:
    first, last = int(grid.min()), int(grid.max())

    def unpack(data: Array) -> Array:
        words = data.view(np.int8).reshape(-1, LANES)[grid - first]
        return unpack_feature(words[None], channels).reshape(shape)

    return Stored(f"words {first}..{last} of the {memory} DTCM", (last - first + 1) * LANES, unpack)


def _used(entry: Produced, written: Map) -> tuple[tuple[int, int, int], Map]:
    """The first element of a tensor that a word gives, and where its result lies from there on."""
    channel, row, column = entry.start
    unused, place = entry.unused_rows, written.place
    place = replace(place, base=place.base + unused * place.row)
    return (channel, row + unused, column), replace(written, place=place, height=written.height - unused)


def _segments(program: Program, tensor: str) -> Iterator[list[Written]]:
    """The windows of a tensor that each segment loads or computes, for segments that have any."""
    table = Contents.of(program.manifest).instructions
    for segment, chains in segments_of(program):
        loaded = [(each.shape, each.start, each.map) for each in segment.loads if each.tensor == tensor]
        computed = [
            (entry.shape, *_used(entry, each))
            for chain in chains
            for stage in chain.stages
            for entry in table[stage.number : stage.number + 1]
            if entry.tensor == tensor and entry.shape is not None
            for each in chain.written(stage)[:1]
        ]
        if found := [*loaded, *computed]:
            yield found
