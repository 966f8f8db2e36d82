"""Refilling of the ifmap pads during computation: how long a step waits for the next sub-ifmap, in closed form.

With two sets of pads, a word is loaded in any cycle in which the bus is free. With one set, the words of the next
step replace those that this step still reads. They come row by row, and a word may go to an entry below all
entries that will still be read (docs/decisions.md, EasyNPU cycles, one set of ifmap pads). Before the
last channel there is no such entry. Then each kernel position frees what is before its first entry; in the last
one, for the last ozi, the loader follows the reader from position to position.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.easynpu.machine.isa import Layer
from npuc.targets.easynpu.machine.ports import PortUse

BLOCK = 64
"""Positions that are evaluated together, which bounds the memory use."""


@frozen
class Load:
    """Sub-ifmaps (rows, columns) whose rows begin `pitch` entries apart in a pad; one value per candidate tile."""

    rows: Array
    columns: Array
    pitch: Array

    @property
    def words(self) -> Array:
        """Words on the bus, padding included."""
        return self.rows * self.columns

    def below(self, entry: Array) -> Array:
        """The number of words that go to entries below this one."""
        row, column = np.divmod(entry, self.pitch)
        return np.minimum(row * self.columns + np.minimum(column, self.columns), self.words)


@frozen
class Step:
    """A step of 16 channels, with a second set of pads."""

    cycles: Array
    """Cycles without waiting."""
    free: Array
    """Those of its cycles in which a word can be loaded."""

    def wait(self, load: Load) -> Array:
        """Additional cycles until the next step's sub-ifmap is loaded."""
        return np.maximum(load.words - self.free, 0)

    def then(self, load: Load) -> Array:
        """Its cycles with the wait."""
        return self.cycles + self.wait(load)


@frozen
class Sweep:
    """The passes over a tile's positions for one channel of a word."""

    word: Layer
    x: Array
    positions: Array
    """x * y."""
    zs: int
    rows: int
    """Rows of PEs: positions that enter together."""
    pitch: Array
    """Pad entries between rows of the sub-ifmap."""
    cycles: Array
    """Cycles of a pass that uses no port."""


@frozen
class Refilled(Step):
    """A step of 16 channels, with one set of pads."""

    sweep: Sweep
    use: PortUse
    """Port use of the last pass that reads the pads."""
    behind: Array
    """Cycles of the following passes in which a word can be loaded."""

    def wait(self, load: Load) -> Array:
        """The maximum over all moments: words that could not be loaded before, less the free cycles after."""
        wait = np.zeros_like(load.words)
        for entry, free in self._moments():
            wait = np.maximum(wait, (load.words - load.below(entry) - free).max(axis=0))
        return wait

    def _moments(self) -> Iterator[tuple[Array, Array]]:
        """The ends of kernel positions, of the last but one ozi of the last one, and of positions in the last ozi.

        Each as (moments, tiles): the entry from which on none was free before, and the free cycles from then on.
        """
        sweep, word = self.sweep, self.sweep.word
        last = self.behind + self.use.free(sweep.cycles, sweep.positions * sweep.zs)
        tap = np.arange(word.Hk * word.Wk)[:, None]
        hki, wki = np.divmod(tap, word.Wk)
        first = hki * (word.Dh + 1) * sweep.pitch + wki * (word.Dw + 1)
        left = last + (tap[-1] - 1 - tap) * sweep.cycles
        left[-1] = self.behind + (last - self.behind) // sweep.zs
        yield first, left
        for begin in range(0, int(sweep.positions.max()), BLOCK * sweep.rows):
            position = begin + np.arange(BLOCK)[:, None] * sweep.rows
            position = np.where(position < sweep.positions, position, 0)
            oyi, oxi = np.divmod(position, sweep.x)
            yield first[-1] + oyi * word.Sh * sweep.pitch + oxi * word.Sw, self.behind + self._left(position)

    def _left(self, position: Array) -> Array:
        """Free cycles of the last pass after the positions that enter together with this one."""
        others = np.maximum(self.sweep.positions - position - self.sweep.rows, 0)
        if self.use.cycles:
            return others * (self.use.cycles - self.use.blocked)
        return -(-others // self.sweep.rows)
