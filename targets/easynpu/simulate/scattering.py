"""A reshape word behind other words on the stepping simulator: where a tile's results go, lane by lane."""

from __future__ import annotations

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.easynpu.machine.isa import Reshape
from npuc.targets.easynpu.machine.memory import LANES, Map, groups
from npuc.targets.easynpu.machine.rearrangement import most_written, piece_starts, targets
from npuc.targets.easynpu.simulate.pads import Dtcm
from npuc.targets.easynpu.simulate.schedule import NONE, Tile


@frozen
class Scatter:
    """The destination of every lane of the previous word's results, which a reshape scatters.

    Every result takes the same number of cycles, `writes` (rearrangement.most_written). In each cycle one piece of
    it is written with lane enables, in lane order; if there are fewer pieces, the last word is addressed again.
    """

    writes: int
    address: Array
    """(Hi, Wi, groups, 16): the address that a lane goes to; NONE beyond the last channel."""
    lane: Array
    starts: Array
    """Whether a piece begins with the lane."""
    first_of_last: Array
    """Whether it is the first channel of the result's last group, with which unused lanes are zeroed."""
    unused: int
    """The first unused lane of the result's last group."""

    @classmethod
    def of(cls, word: Reshape, target: Map) -> Scatter:
        """The scatter of a word whose result is this map."""
        shape = (word.Hi, word.Wi, groups(word.Ci) * LANES)
        address, lane = np.full(shape, NONE), np.zeros(shape, np.int64)
        starts, first = np.zeros(shape, np.bool_), np.zeros(shape, np.bool_)
        row, column, channel = targets(word)
        address[..., : word.Ci] = target.grid[row, column, channel // LANES]
        lane[..., : word.Ci] = channel % LANES
        starts[..., : word.Ci] = piece_starts(word)
        unused = word.Co % LANES
        first[..., : word.Ci] = (channel == word.Co - unused) & (unused > 0)
        tiled = (*shape[:2], -1, LANES)
        address, lane, starts, first = (each.reshape(tiled) for each in (address, lane, starts, first))
        return cls(most_written(word), address, lane, starts, first, unused)

    def write(self, memory: Dtcm, tile: Tile, ozis: slice, results: Array) -> Array:
        """Writes a tile's results (zs, positions, 16); the addresses, cycle by cycle: (zs, positions, writes)."""
        rows, columns = slice(tile.oy, tile.oy + tile.y), slice(tile.ox, tile.ox + tile.x)
        address, lane, starts, first = (
            each[rows, columns, ozis].transpose(2, 0, 1, 3).reshape(results.shape)
            for each in (self.address, self.lane, self.starts, self.first_of_last)
        )
        used = address != NONE
        memory.write_lanes(address[used], lane[used], results[used])
        for unused in range(self.unused, LANES) if self.unused else ():
            memory.write_lanes(
                address[first], np.full(int(first.sum()), unused), np.zeros(int(first.sum()), np.int8)
            )
        return self._in_turn(address, starts)

    def _in_turn(self, address: Array, starts: Array) -> Array:
        """The addresses of each result's pieces; the last one repeats where there are fewer."""
        count = starts.sum(axis=-1, keepdims=True)
        lanes = np.argsort(~starts, axis=-1, kind="stable")
        turn = np.minimum(np.arange(self.writes), count - 1)
        return np.take_along_axis(address, np.take_along_axis(lanes, turn, axis=-1), axis=-1)
