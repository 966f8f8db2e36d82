"""The cycle model: the cost of a chain of layer words for every candidate tile, in closed form.

Source: easynpu reference, section 6, with a second set of ifmap pads unless the machine has only one
(docs/decisions.md, EasyNPU cycles). A layer loads its bias-scale blocks (5 words per 16 channels) and
first weights (Zs words), then its first sub-ifmap. From then on it proceeds in steps: a step computes with the 16
channels in the pads while the sub-ifmap of the next step is loaded (refilling). Ofmap and ifmap words share one
bus of one word a cycle, on which the ofmap has priority. A step therefore takes its compute cycles, or more if the
words find too few cycles or no free entry. A DTCM serves one access a cycle.
Tests compare every chain of random programs with the hardware.

Refilling of the ifmap pads during computation: how long a step waits for the next sub-ifmap, in closed form.

With two sets of pads, a word is loaded in any cycle in which the bus is free. With one set, the words of the next
step replace those that this step still reads. They come row by row, and a word may go to an entry below all
entries that will still be read (docs/decisions.md, EasyNPU cycles, one set of ifmap pads). Before the
last channel there is no such entry. Then each kernel position frees what is before its first entry; in the last
one, for the last ozi, the loader follows the reader from position to position.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.easynpu.machine.isa import CONV, Layer
from npuc.targets.easynpu.machine.memory import BS_WORDS, LANES, SLOPE_WORDS, TABLE_WORDS, groups
from npuc.targets.easynpu.machine.parameters import Machine


@frozen
class PortUse:
    """The use of the DTCMs by each position of a pass, one word per 16 channels, without the loads."""

    cycles: int = 0
    """Cycles of its accesses; one more if operand and result are in the same memory."""
    blocked: int = 0
    """Cycles in which no sub-ifmap word can be loaded."""
    ofmap: int = 0
    """Cycles of writing over the shared bus: one, or more where a reshape scatters its lanes."""
    apart: bool = False
    """The operand is read before the position enters the PEs; a single psum's bubble begins a cycle later."""
    late: bool = False
    """Positions enter several rows of PEs with the last row's operand, though their results are due at once."""

    def taken(self, sweep: Array, positions: Array) -> Array:
        """Cycles of a pass over this many positions, whose computation alone takes `sweep`."""
        return np.maximum(sweep + self.apart, positions * self.cycles)

    def free(self, sweep: Array, positions: Array) -> Array:
        """Those of its cycles in which a sub-ifmap word can be loaded."""
        return self.taken(sweep, positions) - positions * self.blocked


def port_use(reads: str | None, writes: Sequence[str], source: str, times: int = 1) -> PortUse:
    """The port use of a pass. A DTCM serves one access a cycle; a result is written to several memories at once.

    reads: the memory of its operand, which has its own path apart from the shared bus; writes: the memories of its
    result; source: the memory that sub-ifmaps are loaded from; times: the words that a result is scattered to.
    """
    apart = reads in writes
    written = times if writes else 0
    cycles = written + 1 if apart else max(written, int(reads is not None))
    blocked = written + int(reads == source and (apart or not writes))
    return PortUse(cycles, blocked, written, apart, bool(reads is not None and writes and not apart))


RESULT = PortUse(1, 1, 1)
"""A pass that writes a result and reads no operand."""


BLOCK = 64
"""Positions that are evaluated together, which bounds the memory use."""


@frozen
class PadLoad:
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
class ChannelStep:
    """A step of 16 channels, with a second set of pads."""

    cycles: Array
    """Cycles without waiting."""
    free: Array
    """Those of its cycles in which a word can be loaded."""

    def wait(self, load: PadLoad) -> Array:
        """Additional cycles until the next step's sub-ifmap is loaded."""
        return np.maximum(load.words - self.free, 0)

    def then(self, load: PadLoad) -> Array:
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
class Refilled(ChannelStep):
    """A step of 16 channels, with one set of pads."""

    sweep: Sweep
    use: PortUse
    """Port use of the last pass that reads the pads."""
    behind: Array
    """Cycles of the following passes in which a word can be loaded."""

    def wait(self, load: PadLoad) -> Array:
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
            yield first[-1] + oyi * word.Sh * sweep.pitch + oxi * word.Sw, self.behind + self._spare(position)

    def _spare(self, position: Array) -> Array:
        """Free cycles of the last pass after the positions that enter together with this one."""
        others = np.maximum(self.sweep.positions - position - self.sweep.rows, 0)
        if self.use.cycles:
            return others * (self.use.cycles - self.use.blocked)
        return -(-others // self.sweep.rows)


Extent = TypeVar("Extent", int, Array)
DRAIN = 3
"""Cycles that the controller waits behind the last MAC, as its results leave the PEs; `drain` has them all."""
FEEDBACK = 6
"""Cycles from an operation on a psum to a fused word's operation on its int8 result: the registers of the PE."""


@frozen
class Followers:
    """The additional cost of fused instructions behind a layer: stages, bias-scale words, port use."""

    stages: int = 0
    bs_words: int = 0
    words: int = 0
    """Instruction words of the chain besides its first layer words, and rearrangement.SETUP for a reshape."""
    ports: tuple[PortUse, ...] = ()
    """Port use of the layer's last pass and of each stage; if empty, only the last one writes."""

    @property
    def port_uses(self) -> tuple[PortUse, ...]:
        """Port use per pass: the layer's last, then each stage's."""
        return self.ports or (*[PortUse()] * self.stages, RESULT)


@frozen
class ChainCost:
    """Cycles of a chain, cycles in which the PEs compute (bubbles included), and words on the shared bus."""

    cycles: Array
    compute: Array
    bus: Array


def kernel_extent(kernel: int, dilation: int) -> int:
    """Rows or columns that a kernel spans; dilation as in the word (0 = none)."""
    return (kernel - 1) * (dilation + 1) + 1


def tile_input(layer: Layer, y: Array | int, x: Array | int) -> tuple[Array | int, Array | int]:
    """y' and x': the sub-ifmap that a y by x sub-ofmap needs.

    The document's formulas give one stride too many (its own 5x5 example contradicts them); these are exact.
    """
    rows = (y - 1) * layer.Sh + kernel_extent(layer.Hk, layer.Dh)
    columns = (x - 1) * layer.Sw + kernel_extent(layer.Wk, layer.Dw)
    return rows, columns


def of_a_row(positions: Extent, machine: Machine) -> Extent:
    """Positions of a tile in the fullest row of PEs: its psums per ozi, and its cycles per pass."""
    return -(-positions // machine.pe_rows)


def waiting(sweep: Array | int) -> Array:
    """Cycles before a fused word's pass: one of `sweep` computing cycles may be over before its first result."""
    return np.maximum(FEEDBACK - sweep, 0)


def drain(machine: Machine, last: PortUse) -> int:
    """Cycles behind a chain's last pass, which uses the ports so."""
    return DRAIN + last.late * (machine.pe_rows - 1)


def is_dense(layer: Layer) -> bool:
    """Whether input channels are accumulated (BasicConv) rather than handled one by one (ChannelWise)."""
    operation = layer.operation
    return operation is not None and operation.category == CONV


def is_pointwise(layer: Layer) -> bool:
    """Whether a word reads one pixel for each of its result: no window, steps or padding."""
    return (layer.Hk, layer.Wk, layer.Sh, layer.Sw, layer.Ph, layer.Pw) == (1, 1, 1, 1, 0, 0)


def parameter_words(layer: Layer) -> int:
    """Words of the weight stream that are loaded before the first MAC: bias-scale block, table or slopes."""
    name = layer.operation.mnemonic if layer.operation else ""
    if name == "act":
        return TABLE_WORDS
    return groups(layer.Co) * (SLOPE_WORDS if name == "prelu" else BS_WORDS)


def weight_words(layer: Layer) -> int:
    """Words of weights in the stream for this word, which every tile reads; 0 for words without weights."""
    if layer.operation is None or not layer.operation.weights:
        return 0
    return groups(layer.Co) * layer.Hk * layer.Wk * (layer.Ci if is_dense(layer) else 1)


def chain_cost(parts: Sequence[Layer], y: Array, x: Array, machine: Machine, followers: Followers) -> ChainCost:
    """The cost of a layer and its fused followers for every candidate tile (y[i], x[i]).

    parts: the layer's word, or its words that pass on psums, in order.
    """
    Ho, Wo = parts[0].Ho, parts[0].Wo
    pitches = [np.asarray(tile_input(part, y, x)[1]) for part in parts]
    y, x = np.minimum(y, Ho), np.minimum(x, Wo)
    zs = parts[0].Zs if is_dense(parts[0]) else 1
    (rows, last_row), (columns, last_column) = _split(Ho, y), _split(Wo, x)
    full, right, lower, corner = (
        _Tile.of(parts, pitches, _Passes(tile_y, tile_x, zs, machine), followers)
        for tile_y in (y, last_row.size)
        for tile_x in (x, last_column.size)
    )

    def total(each: Callable[[_Tile], Array]) -> Array:
        upper_row = each(full) * columns.count + each(right) * last_column.count
        lower_row = each(lower) * columns.count + each(corner) * last_column.count
        return upper_row * rows.count + lower_row * last_row.count

    within_row = full.then(full) * (columns.count - 1) + full.then(right) * last_column.count
    within_last = lower.then(lower) * (columns.count - 1) + lower.then(corner) * last_column.count
    at_end = [
        np.where(last_column.count, edge.then(following), inner.then(following))
        for inner, edge, following in (
            (full, right, full),
            (full, right, lower),
            (full, right, None),
            (lower, corner, None),
        )
    ]
    run = total(lambda tile: tile.inner) + within_row * rows.count + within_last * last_row.count
    run = run + at_end[0] * (rows.count - 1) + np.where(last_row.count, at_end[1] + at_end[3], at_end[2])
    start = len(parts) + followers.words + sum(map(parameter_words, parts)) + followers.bs_words
    start += zs if is_dense(parts[0]) else 0
    start += drain(machine, followers.port_uses[-1])
    return ChainCost(start + full.load.words + run, total(lambda tile: tile.compute), total(lambda tile: tile.bus))


@frozen
class _Extent:
    """Tiles of one size along an axis."""

    size: Array
    count: Array


def _split(extent: int, tile: Array) -> tuple[_Extent, _Extent]:
    """The full tiles and the last, smaller one (count 0 if none)."""
    rest = extent % tile
    return _Extent(tile, extent // tile), _Extent(np.maximum(rest, 1), (rest > 0).astype(np.int64))


@frozen
class _Tile:
    """Tiles of one size: cycles of all steps but the last, and the last step, which loads for the next tile."""

    inner: Array
    last: ChannelStep
    load: PadLoad
    """The first sub-ifmap."""
    compute: Array
    bus: Array

    def then(self, following: _Tile | None) -> Array:
        """Cycles of the last step if this tile follows, or none."""
        return self.last.cycles if following is None else self.last.then(following.load)

    @classmethod
    def of(cls, parts: Sequence[Layer], pitches: Sequence[Array], passes: _Passes, followers: Followers) -> _Tile:
        """The steps of 16 channels of a tile: part after part, or, channel-wise, all parts for each group.

        pitches: entries between rows of each part's sub-ifmap, which are the same in edge tiles.
        """
        rounds = 1 if is_dense(parts[0]) else groups(parts[0].Co)
        loads = [passes.load(part, pitch) for part, pitch in zip(parts, pitches, strict=True)]
        inner, words, count = np.zeros_like(passes.y), passes.ofmap(followers), followers.stages
        for at, (part, pitch, load) in enumerate(zip(parts, pitches, loads, strict=True)):
            whole, rest = _channels(part)
            count += (whole * LANES + rest) * part.Hk * part.Wk
            words = words + (whole + 1) * load.words
            if whole:
                inner = inner + whole * passes.step(part, pitch, LANES).then(load)
            if at + 1 < len(parts):
                inner = inner + passes.step(part, pitch, rest).then(loads[at + 1])
        last = passes.step(parts[-1], pitches[-1], _channels(parts[-1])[1], followers.port_uses)
        inner = rounds * inner + (rounds - 1) * last.then(loads[0])
        return cls(inner, last, loads[0], rounds * count * passes.sweep, rounds * words)


def _channels(part: Layer) -> tuple[int, int]:
    """Full steps of 16 input channels before the last, and the last step's channels; channel-wise (0, 1)."""
    return (groups(part.Ci) - 1, (part.Ci - 1) % LANES + 1) if is_dense(part) else (0, 1)


@frozen
class _Passes:
    """Passes over the positions of tiles of one size, once per ozi."""

    y: Array
    x: Array
    zs: int
    machine: Machine

    @property
    def sweep(self) -> Array:
        """Cycles of a pass that uses no port, bubbles included."""
        cycles = of_a_row(self.y * self.x, self.machine) * self.zs
        return cycles * (1 + np.logical_and(cycles == 1, not self.machine.psum_write_first))

    def ofmap(self, followers: Followers) -> Array:
        """Words of results on the bus."""
        return self.y * self.x * self.zs * sum(use.ofmap for use in followers.port_uses)

    def load(self, part: Layer, pitch: Array) -> PadLoad:
        """The sub-ifmap of a part."""
        rows, columns = tile_input(part, self.y, self.x)
        return PadLoad(np.asarray(rows), np.asarray(columns), pitch)

    def step(
        self, part: Layer, pitch: Array, channels: int, uses: Sequence[PortUse] = (PortUse(),)
    ) -> ChannelStep:
        """A step with these channels of a part; uses: the port use of its last pass and of the passes after it."""
        positions, sweep = self.y * self.x * self.zs, self.sweep
        before = (channels * part.Hk * part.Wk - 1) * sweep
        waits = (len(uses) - 1) * waiting(sweep)
        cycles = before + sum(use.taken(sweep, positions) for use in uses) + waits
        free = [waits, *(use.free(sweep, positions) for use in uses)]
        if self.machine.ifmap_pad_sets > 1:
            return ChannelStep(cycles, before + sum(free))
        shape = Sweep(part, self.x, self.y * self.x, self.zs, self.machine.pe_rows, pitch, sweep)
        return Refilled(cycles, before + sum(free), shape, uses[0], sum(free) - free[1])
