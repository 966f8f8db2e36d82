"""Storage of the stepping simulator: DTCMs, pads and psums, each with a mask of what was written.

An access that the hardware could not make raises ArtefactError (E503): an address out of range, an entry that has
not been written, more entries than there are. Source: easynpu, Scratch Pad and Storage.
"""

from __future__ import annotations

import numpy as np

from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.targets.easynpu.machine.memory import LANES

NEVER = np.iinfo(np.int64).min // 2
"""A cycle before all others."""


def trap(reason: str, limit: str | None = None) -> ArtefactError:
    """The error for what the hardware could not do."""
    return ArtefactError("E503", reason, limit=limit)


class Dtcm:
    """A memory of 16-lane words; `values` is (words, 16) int8."""

    def __init__(self, name: str, words: int) -> None:
        self.name = name
        self.values = np.zeros((words, LANES), np.int8)
        self.written = np.zeros(words, np.bool_)
        self.replaced = np.zeros(words, np.bool_)
        """Words that the running layer wrote; reading one would be too late."""

    def read(self, at: Array) -> Array:
        """The words at these addresses."""
        self._expect_inside(at)
        if not self.written[at].all():
            raise trap(
                f"word {_first(at, ~self.written[at])} of the {self.name} DTCM is read before it is written"
            )
        if self.replaced[at].any():
            word = _first(at, self.replaced[at])
            raise trap(f"word {word} of the {self.name} DTCM is read after the same layer replaced it")
        return self.values[at]

    def write(self, at: Array, words: Array) -> None:
        """Stores words (..., 16) at these addresses."""
        self._expect_inside(at)
        self.values[at] = words
        self.written[at] = self.replaced[at] = True

    def write_lanes(self, at: Array, lanes: Array, values: Array) -> None:
        """Stores single lanes of the words at these addresses; the other lanes are unchanged."""
        self._expect_inside(at)
        self.values[at, lanes] = values
        self.written[at] = self.replaced[at] = True

    def load(self, at: Array, words: Array) -> None:
        """Stores words from the host, between layers."""
        self.write(at, words)
        self.settle()

    def settle(self) -> None:
        """Makes everything written so far readable."""
        self.replaced[:] = False

    def _expect_inside(self, at: Array) -> None:
        words = len(self.values)
        outside = (at < 0) | (at >= words)
        if outside.any():
            raise trap(f"word {_first(at, outside)} of the {self.name} DTCM is addressed", f"0..{words - 1}")


def _first(at: Array, wrong: Array) -> int:
    return int(at[wrong][0])


class IfmapPads:
    """Sets of 16 pads, one of which is read. A word on the bus fills an entry of all 16 pads of a set.

    With two sets, one is loaded while the other is read. With one set, entries are overwritten after their last
    read. Cycles count from the start of the layer.
    """

    def __init__(self, entries: int, sets: int = 2) -> None:
        self.values = np.zeros((sets, entries, LANES), np.int8)
        self.written = np.zeros((sets, entries), np.bool_)
        self.needed = np.full((sets, entries), NEVER)
        """The last cycle in which the content of each entry is read."""
        self.most = 0

    def load(self, side: int, entries: Array, words: Array, cycles: Array) -> None:
        """Replaces a set: words (n, 16) at n entries in these cycles; other entries become unwritten."""
        if entries.max() >= self.values.shape[1]:
            raise trap(f"entry {entries.max()} of an ifmap pad is loaded", f"0..{self.values.shape[1] - 1}")
        early = cycles <= self.needed[side, entries]
        if early.any():
            raise trap(f"entry {_first(entries, early)} of an ifmap pad is overwritten before its last read")
        self.written[side] = False
        self.written[side, entries] = True
        self.values[side, entries] = words
        self.most = max(self.most, len(entries))

    def read(self, side: int, entries: Array, last: Array) -> Array:
        """The entries, of any shape, in all 16 pads: (..., 16); last: the cycle of the last read of each."""
        if entries.max() >= self.values.shape[1] or not self.written[side, entries].all():
            raise trap("an ifmap pad entry is read before it is written")
        self.needed[side] = last
        return self.values[side, entries]


class WeightPads:
    """The 16 weight pads as a FIFO: a word fills the next free entry of all 16, one word a cycle.

    An entry is free from the last cycle of its use on, as a register is read before it is written. Cycles count
    from the start of the layer.
    """

    def __init__(self, entries: int) -> None:
        self.entries = entries
        self.reset(0)
        self.most = 0

    def reset(self, cycle: int) -> None:
        """Empties the pads; the first word can be fetched in this cycle."""
        self.count = 0
        self.fetched = np.full(1, cycle - 1, np.int64)
        self.last_used = np.full(self.entries, NEVER, np.int64)

    def stream(self, first: Array, last: Array) -> tuple[Array, Array]:
        """The pad entry and the fetch cycle of words that are used from cycle `first` to cycle `last`.

        Raises ArtefactError (E503) for a word that is used before it has arrived.
        """
        order = np.arange(len(first))
        freed = np.concatenate([self.last_used, last])
        earliest = freed[: len(first)] - order
        earliest[0] = max(earliest[0], self.fetched[-1] + 1)
        fetched = np.maximum.accumulate(earliest) + order
        if (fetched >= first).any():
            raise trap("a weight pad entry is read before it is written")
        held = self.entries + order + 1 - np.searchsorted(freed, fetched, side="right")
        self.most = max(self.most, int(held.max()))
        entries = (self.count + order) % self.entries
        self.count += len(first)
        self.fetched, self.last_used = fetched[-1:], freed[-self.entries :]
        return entries, fetched


class PsumFile:
    """The psums of all PEs, within 32 bits: row r has those of positions r, r + rows, r + 2 rows and so on."""

    def __init__(self, entries: int, rows: int = 1) -> None:
        self.entries = entries
        self.rows = rows
        self.values = np.zeros((entries * rows, LANES), np.int64)
        self.written = np.zeros(entries * rows, np.bool_)
        self.most = 0

    def clear(self) -> None:
        """Invalidates all psums, for a new tile."""
        self.written[:] = False

    def write(self, psums: Array) -> None:
        """All psums (zs, positions, 16) of a tile."""
        zs, positions, _ = psums.shape
        needed = zs * -(-positions // self.rows)
        if needed > self.entries:
            raise trap(f"psum {needed - 1} is written", f"0..{self.entries - 1}")
        self.values[: zs * positions], self.written[: zs * positions] = psums.reshape(-1, LANES), True
        self.most = max(self.most, needed)

    def read(self, zs: int, positions: int) -> Array:
        """All psums (zs, positions, 16) of a tile."""
        if zs * positions > len(self.values) or not self.written[: zs * positions].all():
            raise trap("a psum is read before it is written")
        return self.values[: zs * positions].reshape(zs, positions, LANES)


class ParameterPads:
    """Bias and scale pads: entries of 32 + 8 bits per PE, (entries, 5, 16) int8 as the stream has them."""

    def __init__(self, entries: int) -> None:
        self.values = np.zeros((entries, 5, LANES), np.int8)
        self.used = 0
        self.most = 0

    def clear(self) -> None:
        """Frees all entries, for a new layer."""
        self.used = 0

    def load(self, planes: Array) -> slice:
        """Loads n entries (n, 5, 16) and returns their range."""
        place = slice(self.used, self.used + len(planes))
        if place.stop > len(self.values):
            raise trap(f"{place.stop} entries of the bias and scale pads", f"{len(self.values)}")
        self.values[place] = planes
        self.used = place.stop
        self.most = max(self.most, self.used)
        return place

    def bias(self, place: slice) -> Array:
        """The biases, (n, 16) int64."""
        planes = np.ascontiguousarray(self.values[place, :4].transpose(0, 2, 1))
        return planes.view("<i4")[..., 0].astype(np.int64)

    def scale(self, place: slice) -> Array:
        """The scales, (n, 16) int64; negative = right shift."""
        return self.values[place, 4].astype(np.int64)
