"""Ifmap pads under computation: how long a step waits for the next one's sub-ifmap, in closed form.

With two sets of pads a word is loaded in any cycle in which nothing keeps it from the bus. With one set the words
of the next step go where those of this one are still read. They come row by row, and a word may go to an entry
that lies below all entries that will be read (docs/decisions.md, EasyNPU stepping simulator, one set of ifmap
pads). Before the last channel there is none. Then each kernel position frees what lies before its first entry; in
the last one, for the last ozi, the loader follows the reader from position to position.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from npuc.ir import Array
from npuc.targets.easynpu.machine.isa import Layer
from npuc.targets.easynpu.machine.ports import PortUse

BLOCK = 64
"""Positions that are looked at together, which bounds the memory that it takes."""


@dataclass(frozen=True)
class Load:
    """Sub-ifmaps (rows, columns) whose rows begin `pitch` entries apart in a pad; a value per candidate tile."""

    rows: Array
    columns: Array
    pitch: Array

    @property
    def words(self) -> Array:
        """Words on the bus, padding included."""
        return self.rows * self.columns

    def below(self, entry: Array) -> Array:
        """The words that go to entries below this one."""
        row, column = np.divmod(entry, self.pitch)
        return np.minimum(row * self.columns + np.minimum(column, self.columns), self.words)


@dataclass(frozen=True)
class Step:
    """A step of 16 channels, with a second set of pads."""

    cycles: Array
    """If it waits for nothing."""
    free: Array
    """Of these, the cycles in which a word can be loaded."""

    def wait(self, load: Load) -> Array:
        """Cycles that it takes longer until the next step's sub-ifmap is loaded."""
        return np.maximum(load.words - self.free, 0)

    def then(self, load: Load) -> Array:
        """Its cycles with the wait."""
        return self.cycles + self.wait(load)


@dataclass(frozen=True)
class Sweep:
    """The passes over a tile's positions for one channel of a word."""

    word: Layer
    x: Array
    positions: Array
    """x * y."""
    zs: int
    rows: int
    """Of PEs: positions that enter together."""
    pitch: Array
    """Entries from row to row of the sub-ifmap."""
    cycles: Array
    """Of a pass that uses no port."""


@dataclass(frozen=True)
class Refilled(Step):
    """The same with one set."""

    sweep: Sweep
    use: PortUse
    """Of the last pass that reads the pads."""
    behind: Array
    """Cycles of the passes behind it in which a word can be loaded."""

    def wait(self, load: Load) -> Array:
        """Of any moment: the words that could not be loaded before, less the cycles left for them."""
        wait = np.zeros_like(load.words)
        for entry, free in self._moments():
            wait = np.maximum(wait, (load.words - load.below(entry) - free).max(axis=0))
        return wait

    def _moments(self) -> Iterator[tuple[Array, Array]]:
        """Ends of kernel positions, and of positions in the last one, and before them of its last but one ozi.

        Of each (moments, tiles): the entry from which on none was free before, and the free cycles from then on.
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
        """Free cycles of the last pass behind the positions that enter with this one."""
        others = np.maximum(self.sweep.positions - position - self.sweep.rows, 0)
        if self.use.cycles:
            return others * (self.use.cycles - self.use.blocked)
        return -(-others // self.sweep.rows)
