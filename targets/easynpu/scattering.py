"""A reshape word behind other words, on the stepping simulator: where the results of a tile go, lane by lane."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npuc.ir import Array
from npuc.targets.easynpu.isa import Reshape
from npuc.targets.easynpu.memory import LANES, Map, groups
from npuc.targets.easynpu.pads import Dtcm
from npuc.targets.easynpu.rearrangement import destination, most_written
from npuc.targets.easynpu.schedule import NONE, Tile


@dataclass(frozen=True)
class Scatter:
    """What a reshape does to every lane of the words before it, instead of writing them as they are.

    A result takes the same number of cycles whatever its place, `writes`: as many as the word that is scattered to
    the most words. In each of them one word is written with lane enables.
    """

    writes: int
    address: Array
    """(Hi, Wi, groups, 16): the word that a lane goes to; NONE beyond the last channel."""
    lane: Array
    first_of_last: Array
    """Whether it is the first channel of the result's last group, with which the unused lanes become zero."""
    unused: int
    """The first unused lane of the result's last group."""

    @classmethod
    def of(cls, word: Reshape, target: Map) -> Scatter:
        """The scatter of a word, whose result lies in this map."""
        shape = (word.Hi, word.Wi, groups(word.Ci) * LANES)
        address, lane = np.full(shape, NONE), np.zeros(shape, np.int64)
        first = np.zeros(shape, np.bool_)
        at = np.indices((word.Hi, word.Wi, word.Ci))
        row, column, channel = destination(word, (at[0], at[1], at[2]))
        address[..., : word.Ci] = target.grid[row, column, channel // LANES]
        lane[..., : word.Ci] = channel % LANES
        unused = word.Co % LANES
        first[..., : word.Ci] = (channel == word.Co - unused) & (unused > 0)
        tiled = (*shape[:2], -1, LANES)
        return cls(most_written(word), address.reshape(tiled), lane.reshape(tiled), first.reshape(tiled), unused)

    def write(self, memory: Dtcm, tile: Tile, ozis: slice, results: Array) -> Array:
        """Writes a tile's results (zs, positions, 16); the addresses, cycle by cycle: (zs, positions, writes)."""
        rows, columns = slice(tile.oy, tile.oy + tile.y), slice(tile.ox, tile.ox + tile.x)
        address, lane, first = (
            each[rows, columns, ozis].transpose(2, 0, 1, 3).reshape(results.shape)
            for each in (self.address, self.lane, self.first_of_last)
        )
        used = address != NONE
        memory.write_lanes(address[used], lane[used], results[used])
        for unused in range(self.unused, LANES) if self.unused else ():
            memory.write_lanes(
                address[first], np.full(int(first.sum()), unused), np.zeros(int(first.sum()), np.int8)
            )
        return self._in_turn(address)

    def _in_turn(self, address: Array) -> Array:
        """The distinct words of each result, ascending; the last again where there are fewer."""
        ordered = np.sort(np.where(address == NONE, address.max(axis=-1, keepdims=True), address), axis=-1)
        new = np.concatenate(
            [np.ones((*ordered.shape[:-1], 1), np.bool_), np.diff(ordered, axis=-1) != 0], axis=-1
        )
        found = np.repeat(ordered[..., -1:], self.writes, axis=-1)
        place = np.cumsum(new, axis=-1) - 1
        np.put_along_axis(found, place, ordered, axis=-1)
        return found
