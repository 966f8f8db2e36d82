"""The schedule of a fused chain, cycle by cycle, as scheduler and PE controller derive it from its words.

The loops are the document's (easynpu, Master controller), corrected as in docs/decisions.md. Tiles go row by row.
A tile runs the accumulating words, each with its groups of 16 input channels (channel-wise: each group with its
words). Such a step has the passes over kzi, hki, wki, then those over the fused words; a pass goes over ozi, oyi,
oxi, once over all psums of a tile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property, lru_cache

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.easynpu.machine.chains import Stage
from npuc.targets.easynpu.machine.isa import Layer
from npuc.targets.easynpu.machine.memory import LANES, groups
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.timing import is_dense, tile_input
from npuc.targets.easynpu.simulate.pads import trap

NONE = -1


@frozen
class Tile:
    """A sub-ofmap: its first row and column, and its size, which is smaller at the edges."""

    oy: int
    ox: int
    y: int
    x: int

    @property
    def positions(self) -> int:
        """Output pixels."""
        return self.y * self.x


@frozen
class PadStep:
    """The computation with one filling of the pads: 16 input channels of one accumulating word, for a tile."""

    tile: Tile
    part: int
    """The accumulating word's position in the chain."""
    group: int
    """The 16-channel group of its ifmap."""
    channels: int
    """Input channels to sweep, with one pass per kernel position each; 1 channel-wise."""
    first: bool
    """Its first pass starts the psums."""
    last: bool
    """Its last pass completes the psums; the fused words follow."""


def accumulating(chain: Sequence[Stage]) -> int:
    """The number of words that read an ifmap: the first, and those that continue on kept psums."""
    return 1 + sum(stage.keeps for stage in chain[:-1])


def steps(parts: Sequence[Layer], *, takes: bool = False, leaves: bool = False) -> Iterator[PadStep]:
    """The steps of a layer in order; parts: the accumulating words.

    takes: the first step continues on kept psums; leaves: the last step's psums stay in the pads.
    """
    head = parts[0]
    for oy in range(0, head.Ho, head.y):
        for ox in range(0, head.Wo, head.x):
            tile = Tile(oy, ox, min(head.y, head.Ho - oy), min(head.x, head.Wo - ox))
            for step in _dense(parts, tile) if is_dense(head) else _channel_wise(parts, tile):
                yield replace(step, first=step.first and not takes, last=step.last and not leaves)


def _dense(parts: Sequence[Layer], tile: Tile) -> Iterator[PadStep]:
    for part, layer in enumerate(parts):
        for kz in range(0, layer.Ci, LANES):
            first, last = part == 0 and kz == 0, part == len(parts) - 1 and kz + LANES >= layer.Ci
            yield PadStep(tile, part, kz // LANES, min(LANES, layer.Ci - kz), first, last)


def _channel_wise(parts: Sequence[Layer], tile: Tile) -> Iterator[PadStep]:
    for group in range(groups(parts[0].Co)):
        for part in range(len(parts)):
            yield PadStep(tile, part, group, 1, part == 0, part == len(parts) - 1)


@frozen
class SubIfmap:
    """A sub-ifmap: pad entries, which of them are inside the map, and rows and columns of those."""

    entries: Array
    inside: Array
    iy: Array
    ix: Array


@lru_cache(maxsize=64)
def window(layer: Layer, tile: Tile) -> SubIfmap:
    """The sub-ifmap that a tile needs, row by row; the row pitch in the pad is the word's x'.

    Raises ArtefactError (E503) if the word's y' and x' are smaller.
    """
    rows, columns = (int(extent) for extent in tile_input(layer, tile.y, tile.x))
    if rows > layer.yi or columns > layer.xi:
        raise trap(f"the tile needs {rows} x {columns} entries", f"y' x' are {layer.yi} x {layer.xi}")
    row, column = (axis.ravel() for axis in np.mgrid[:rows, :columns])
    iy, ix = row + layer.Sh * tile.oy - layer.Ph, column + layer.Sw * tile.ox - layer.Pw
    inside = (iy >= 0) & (iy < layer.Hi) & (ix >= 0) & (ix < layer.Wi)
    return SubIfmap(row * layer.xi + column, inside, iy[inside], ix[inside])


@lru_cache(maxsize=64)
def pad_addresses(layer: Layer, y: int, x: int) -> Array:
    """if_hw_addr for each (tap, position) of a y by x tile: IF_PAD[sh*oyi + hki*(dh+1)][sw*oxi + wki*(dw+1)]."""
    hki, wki, oyi, oxi = np.ogrid[: layer.Hk, : layer.Wk, :y, :x]
    row, column = layer.Sh * oyi + hki * (layer.Dh + 1), layer.Sw * oxi + wki * (layer.Dw + 1)
    return (row * layer.xi + column).reshape(layer.Hk * layer.Wk, y * x)


@frozen
class Sweep:
    """Identical passes, and what happens in each cycle of the positions of one ozi."""

    stage: int
    """The position in the chain of the word that is executed."""
    passes: int
    ozis: int
    words: int
    """Weight words per pass: one per ozi, or none."""
    compute: int
    """Cycles per ozi in which the PEs compute, including the bubble after a single psum."""
    position: Array
    """Per cycle, the position of row 0; the other rows have the next positions."""
    issue: Array
    """Whether the positions enter the PEs."""
    operand: Array
    """The position whose operand is read, or NONE."""
    result: Array
    """The number of the write, or NONE: write n is that of position n // writes."""
    writes: int
    """Cycles in which every result is written."""
    blocked: Array
    """Whether no sub-ifmap word can be loaded."""
    wait: int = 0
    """Cycles behind them until the pass of a fused word can begin."""

    @property
    def swept(self) -> int:
        """Cycles of all passes."""
        return self.passes * self.ozis * len(self.issue)

    @property
    def cycles(self) -> int:
        """Cycles of all passes, and the wait behind them."""
        return self.swept + self.wait

    @classmethod
    def of(
        cls,
        stage: int,
        passes: int,
        ozis: int,
        words: int,
        access: Access,
        positions: int,
        source: str,
        machine: Machine,
    ) -> Sweep:
        """The cycles of passes over these positions; source: the memory that sub-ifmaps come from.

        Each row of PEs takes a position per cycle. Operands and results are transferred one per cycle, results
        after operands if both use the same memory. Two operations on one psum are two cycles apart, unless the
        psum port writes first.
        """
        firsts = range(0, positions, machine.pe_rows)
        bubble = len(firsts) * ozis == 1 and not machine.psum_write_first
        cycles = [access.cycles(range(at, min(at + machine.pe_rows, positions)), 1 + bubble) for at in firsts]
        position, issue, operand, result = (np.concatenate(each) for each in zip(*cycles, strict=True))
        blocked = (result != NONE) | ((operand != NONE) & (access.operand == source))
        compute = len(firsts) * (1 + bubble)
        columns = (position, issue == 1, operand, result)
        return cls(stage, passes, ozis, words, compute, *columns, access.writes, blocked)


@frozen
class Access:
    """The memories from which each position of a pass reads an operand and to which it writes its result."""

    operand: str | None = None
    results: frozenset[str] = frozenset()
    writes: int = 1
    """Cycles in which every result is written, if there are results."""

    def cycles(self, positions: range, least: int) -> tuple[Array, Array, Array, Array]:
        """The cycles of positions that enter the PEs together, at least `least` from their entry on.

        Per cycle: the first position; whether they enter; the position whose operand is read, and the write, or
        NONE.
        """
        reads = len(positions) if self.operand is not None else 0
        writes = len(positions) * self.writes if self.results else 0
        begin = reads if self.operand in self.results else 0
        first = np.full(max(reads, begin + max(writes, least)), positions[0])
        issue, operand, result = np.zeros_like(first), np.full_like(first, NONE), np.full_like(first, NONE)
        issue[begin] = 1
        operand[:reads] = positions[:reads]
        result[begin : begin + writes] = positions[0] * self.writes + np.arange(writes)
        return first, issue, operand, result


@frozen
class Plan:
    """The consecutive sweeps of a step."""

    sweeps: tuple[Sweep, ...]

    @cached_property
    def cycles(self) -> int:
        """Cycles of the step without waiting."""
        return sum(sweep.cycles for sweep in self.sweeps)

    @cached_property
    def compute(self) -> int:
        """Cycles in which the PEs compute."""
        return sum(sweep.passes * sweep.ozis * sweep.compute for sweep in self.sweeps)

    @cached_property
    def free(self) -> Array:
        """The cycles in which a sub-ifmap word can be loaded."""
        blocked = [
            np.append(np.tile(sweep.blocked, sweep.passes * sweep.ozis), np.zeros(sweep.wait, np.bool_))
            for sweep in self.sweeps
        ]
        return np.flatnonzero(~np.concatenate(blocked))

    @cached_property
    def weight_uses(self) -> tuple[Array, Array]:
        """First and last cycle in which every weight word is used, counted from the step's start."""
        firsts: list[Array] = []
        lasts: list[Array] = []
        start = 0
        for sweep in self.sweeps:
            if sweep.words:
                length = len(sweep.issue)
                begins = start + length * np.arange(sweep.passes * sweep.ozis)
                firsts.append(begins)
                lasts.append(begins + length - 1)
            start += sweep.cycles
        if not firsts:
            return np.zeros(0, np.int64), np.zeros(0, np.int64)
        return np.concatenate(firsts), np.concatenate(lasts)
