"""The cycle model: what a chain of layer words costs for every candidate tile, in closed form.

Source: easynpu reference, section 6, with a second set of ifmap pads (docs/decisions.md, EasyNPU stepping
simulator). A layer loads its bias-scale blocks (5 words per 16 channels) and first weights (Zs words), then its
first sub-ifmap. From then on it goes from step to step: a step computes with the 16 channels of one set of pads
while the other set is loaded for the next step. Ofmap and ifmap words share one bus of one word a cycle, and the
ofmap wins; so a step takes its compute cycles, and longer where the words to load exceed the cycles left for them.
The stepping simulator counts the same cycles one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from npuc.ir import Array
from npuc.targets.easynpu.machine.isa import CONV, Layer
from npuc.targets.easynpu.machine.memory import BS_WORDS, LANES, SLOPE_WORDS, TABLE_WORDS, groups
from npuc.targets.easynpu.machine.parameters import Machine

Extent = TypeVar("Extent", int, Array)
DRAIN = 3
"""Cycles from the last MAC to its result in the DTCM: the registers of the PE."""


@dataclass(frozen=True)
class PortUse:
    """What each position of a pass, one word per 16 channels, asks of the DTCMs beside the loads."""

    cycles: int = 0
    """Cycles that its accesses take; one more where an operand is read from a memory that the result goes to."""
    blocked: int = 0
    """Cycles in which no sub-ifmap word can be loaded."""
    ofmap: int = 0
    """Cycles that it writes over the shared bus: one, or more where a reshape scatters its lanes."""
    apart: bool = False
    """The operand is read before the position enters the PEs: the bubble of a single psum begins a cycle later."""


def port_use(reads: str | None, writes: Sequence[str], source: str, times: int = 1) -> PortUse:
    """The ports that a pass uses. A DTCM serves one access a cycle; a result goes to several memories at once.

    reads: the memory of its operand, which has a path of its own beside the shared bus; writes: the memories of
    its result; source: the memory that sub-ifmaps are loaded from; times: the words that a result is scattered to.
    """
    apart = reads in writes
    written = times if writes else 0
    cycles = written + 1 if apart else max(written, int(reads is not None))
    blocked = written + int(reads == source and (apart or not writes))
    return PortUse(cycles, blocked, written, apart)


RESULT = PortUse(1, 1, 1)
"""A pass that writes a result and reads no operand."""


@dataclass(frozen=True)
class Followers:
    """What the fused instructions behind a layer add: stages, their bias-scale words, their use of the ports."""

    stages: int = 0
    bs_words: int = 0
    words: int = 0
    """Instruction words of the chain beside its first layer words."""
    ports: tuple[PortUse, ...] = ()
    """Of the layer's last pass and of each stage; if empty, only the last one writes."""

    @property
    def port_uses(self) -> tuple[PortUse, ...]:
        """One per pass: the layer's last, then each stage's."""
        return self.ports or (*[PortUse()] * self.stages, RESULT)


@dataclass(frozen=True)
class Cost:
    """Cycles of a chain, cycles in which the PEs compute (bubbles included), words on the shared bus."""

    cycles: Array
    compute: Array
    bus: Array


def kernel_extent(kernel: int, dilation: int) -> int:
    """Rows or columns that a kernel spans; dilation as the word has it (0 = none)."""
    return (kernel - 1) * (dilation + 1) + 1


def tile_input(layer: Layer, y: Array | int, x: Array | int) -> tuple[Array | int, Array | int]:
    """y' and x': the sub-ifmap that a y by x sub-ofmap needs.

    The document's formulas give one stride too many (its own 5x5 example contradicts them); these are exact.
    """
    rows = (y - 1) * layer.Sh + kernel_extent(layer.Hk, layer.Dh)
    columns = (x - 1) * layer.Sw + kernel_extent(layer.Wk, layer.Dw)
    return rows, columns


def of_a_row(positions: Extent, machine: Machine) -> Extent:
    """Positions of a tile that the fullest row of PEs has: its psums per ozi, and its cycles of a pass."""
    return -(-positions // machine.pe_rows)


def is_dense(layer: Layer) -> bool:
    """Whether input channels are accumulated (BasicConv), not handled one by one (ChannelWise)."""
    operation = layer.operation
    return operation is not None and operation.category == CONV


def parameter_words(layer: Layer) -> int:
    """Words of the weight stream that are loaded before the first MAC: bias-scale block, table or slopes."""
    name = layer.operation.mnemonic if layer.operation else ""
    if name == "act":
        return TABLE_WORDS
    return groups(layer.Co) * (SLOPE_WORDS if name == "prelu" else BS_WORDS)


def weight_words(layer: Layer) -> int:
    """Weight words that the stream has for this word, and that every tile reads; 0 for words without weights."""
    if layer.operation is None or not layer.operation.weights:
        return 0
    return groups(layer.Co) * layer.Hk * layer.Wk * (layer.Ci if is_dense(layer) else 1)


def chain_cost(parts: Sequence[Layer], y: Array, x: Array, machine: Machine, followers: Followers) -> Cost:
    """The cost of a layer and its fused followers for every candidate tile (y[i], x[i]).

    parts: the layer's word, or the words that keep psums for each other and the one that takes them.
    """
    Ho, Wo = parts[0].Ho, parts[0].Wo
    y, x = np.minimum(y, Ho), np.minimum(x, Wo)
    (rows, last_row), (columns, last_column) = _split(Ho, y), _split(Wo, x)
    full, right, lower, corner = (
        _Tile.of(parts, tile_y, tile_x, machine, followers)
        for tile_y in (y, last_row.size)
        for tile_x in (x, last_column.size)
    )

    def total(each: Callable[[_Tile], Array]) -> Array:
        upper_row = each(full) * columns.count + each(right) * last_column.count
        lower_row = each(lower) * columns.count + each(corner) * last_column.count
        return upper_row * rows.count + lower_row * last_row.count

    within_row = full.then(full.load) * (columns.count - 1) + full.then(right.load) * last_column.count
    within_last = lower.then(lower.load) * (columns.count - 1) + lower.then(corner.load) * last_column.count
    at_end = [
        np.where(last_column.count, edge.then(load), inner.then(load))
        for inner, edge, load in (
            (full, right, full.load),
            (full, right, lower.load),
            (full, right, 0),
            (lower, corner, 0),
        )
    ]
    run = total(lambda tile: tile.inner) + within_row * rows.count + within_last * last_row.count
    run = run + at_end[0] * (rows.count - 1) + np.where(last_row.count, at_end[1] + at_end[3], at_end[2])
    start = len(parts) + followers.words + sum(map(parameter_words, parts)) + followers.bs_words
    start += parts[0].Zs if is_dense(parts[0]) else 0
    return Cost(start + full.load + run + DRAIN, total(lambda tile: tile.compute), total(lambda tile: tile.bus))


@dataclass(frozen=True)
class _Extent:
    """Tiles of one size along an axis."""

    size: Array
    count: Array


def _split(extent: int, tile: Array) -> tuple[_Extent, _Extent]:
    """The full tiles and the last, smaller one (count 0 if none)."""
    rest = extent % tile
    return _Extent(tile, extent // tile), _Extent(np.maximum(rest, 1), (rest > 0).astype(np.int64))


@dataclass(frozen=True)
class _Tile:
    """Tiles of one size: cycles of all steps but the last, and what the last one leaves for the next tile."""

    inner: Array
    last: Array
    """Cycles of the last step, if nothing is loaded under it."""
    free: Array
    """Of these, the cycles in which a word can be loaded."""
    load: Array
    """Words of the first sub-ifmap."""
    compute: Array
    bus: Array

    def then(self, load: Array | int) -> Array:
        """Cycles of the last step when the next tile's first sub-ifmap has this many words."""
        return self.last + np.maximum(load - self.free, 0)

    @classmethod
    def of(cls, parts: Sequence[Layer], y: Array, x: Array, machine: Machine, followers: Followers) -> _Tile:
        """A tile's steps of 16 channels: those of one part after the other, or channel-wise all parts in turn."""
        dense = is_dense(parts[0])
        rounds = 1 if dense else groups(parts[0].Co)
        zs = parts[0].Zs if dense else 1
        positions, cycles = y * x * zs, of_a_row(y * x, machine) * zs
        bubble = np.logical_and(cycles == 1, not machine.psum_write_first)
        sweep = cycles * (1 + bubble)
        inner = step = words = np.zeros_like(y)
        passes = followers.stages
        loads = [np.multiply(*tile_input(part, y, x)) for part in parts]
        for position, (part, load) in enumerate(zip(parts, loads, strict=True)):
            whole, rest = (groups(part.Ci) - 1, (part.Ci - 1) % LANES + 1) if dense else (0, 1)
            taps = part.Hk * part.Wk
            passes += (whole * LANES + rest) * taps
            words = words + (whole + 1) * load
            inner = inner + (np.maximum(step, load) if position else 0)
            inner = inner + whole * np.maximum(LANES * taps * sweep, load)
            step = rest * taps * sweep
        uses = followers.port_uses
        last = step - sweep + sum(np.maximum(sweep + use.apart, positions * use.cycles) for use in uses)
        free = last - positions * sum(use.blocked for use in uses)
        inner = rounds * inner + (rounds - 1) * (last + np.maximum(loads[0] - free, 0))
        words = words + positions * sum(use.ofmap for use in uses)
        return cls(inner, last, free, loads[0], rounds * passes * sweep, rounds * words)
