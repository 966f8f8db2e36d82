"""The second memory: maps that are kept there, and weights that BDMA copies there while DRAM is idle.

Maps: those that save their layers the most clocks per byte, as many as fit. What the host loads or stores stays in
DRAM, which it can reach on every system. As in DRAM, two maps share memory if they are never needed together.

Weights: a layer waits for them if DRAM takes longer to deliver them than the array takes to compute. Where DRAM is
idle during earlier layers, BDMA copies such weights piece by piece behind their operations, and the layer then
reads them at the speed of the second memory. The last piece is copied two layers ahead, so that the layer does not
wait for an operation that still runs. Whether the program gains is decided with a plan of its own (lowering).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from npuc.frozen import frozen
from npuc.host.allocation import Buffer as Lifetime
from npuc.host.allocation import fits
from npuc.targets.nvdla.machine.parameters import SRAM_BASE, Machine
from npuc.targets.nvdla.operations import pingpong, timing
from npuc.targets.nvdla.operations.operation import Convolution, Operation
from npuc.targets.nvdla.selection import Constants, Context, PlannedLayer, passes, select
from npuc.targets.nvdla.selection.context import ConvolutionPart, KernelKey, Piece
from npuc.targets.nvdla.selection.phases import UNIT
from npuc.text.escaping import Names

LEAST = 4096
"""The smallest piece in bytes, except for the last one: a copy takes some 14 register writes."""
AHEAD = 2
"""Layers from the last piece to the layer that reads it, the latter included."""


def residents(
    context: Context,
    layers: Sequence[PlannedLayer],
    edges: Mapping[str, Sequence[int]],
    lifetimes: Sequence[Lifetime],
    bound: Collection[str],
) -> frozenset[str]:
    """The buffers to keep in the second memory.

    context: with all maps in DRAM; edges: of the tiles of every layer, by the name of its result; bound: the
    buffers that must stay in DRAM.
    """
    capacity = context.machine.sram_bytes // UNIT
    free = [each for each in lifetimes if each.name not in bound]
    alone = {each.name: _clocks(context, each, edges) for each in layers}
    saved = {each.name: _clocks_saved(context, each.name, layers, edges, alone) for each in free}
    kept: list[Lifetime] = []
    for each in sorted(free, key=lambda one: (-saved[one.name] / one.size, one.first)):
        if saved[each.name] >= 0 and fits([*kept, each], capacity):
            kept.append(each)
    return frozenset(each.name for each in kept)


def _clocks_saved(
    context: Context,
    buffer: str,
    layers: Sequence[PlannedLayer],
    edges: Mapping[str, Sequence[int]],
    alone: Mapping[str, float],
) -> float:
    """Clocks saved with one buffer in the second memory, summed over its layers, each run alone."""
    moved = {
        name: replace(each, base=SRAM_BASE) if each.view.buffer.name == buffer else each
        for name, each in context.placed.items()
    }
    constants = Constants(context.machine, 0, kernels=context.constants.kernels, counted=True)
    there = replace(context, placed=moved, constants=constants)
    touching = (each for each in layers if buffer in _buffers(context, each))
    return sum(alone[each.name] - _clocks(there, each, edges) for each in touching)


def _buffers(context: Context, layer: PlannedLayer) -> Iterator[str]:
    """The buffers that a layer reads and writes."""
    for node in layer.nodes:
        for name in (*node.inputs, *node.outputs):
            if name in context.placed:
                yield context.placed[name].view.buffer.name


def _clocks(context: Context, layer: PlannedLayer, edges: Mapping[str, Sequence[int]]) -> float:
    """Clocks of a layer run alone."""
    return pingpong.sequence_clocks(select(context, layer, edges[layer.name]), context.machine)


@frozen
class Prefetch:
    """Where weights are copied to, and the pieces scheduled behind each layer's operations."""

    buffers: Mapping[KernelKey, str] = field(default_factory=dict[KernelKey, str])
    lifetimes: Sequence[Lifetime] = ()
    pieces: Mapping[str, Sequence[Piece]] = field(default_factory=dict[str, "Sequence[Piece]"])
    """By the name of the layer behind which they are copied."""


@dataclass
class _Load:
    """The clocks of a layer: in all, of DRAM, of the second memory, of the MAC array."""

    taken: float
    dram: float
    second: float
    computed: float

    @property
    def idle(self) -> float:
        """Clocks for which DRAM is idle."""
        return max(self.taken - self.dram, 0)

    @property
    def waits(self) -> float:
        """Clocks for which the layer only waits for DRAM."""
        return self.taken - max(self.computed, self.second)

    def without(self, size: int, machine: Machine) -> _Load:
        """The load with `size` bytes of weights read from the second memory instead."""
        dram = self.dram - size / machine.dram_bytes_per_cycle
        second = self.second + size / machine.sram_bytes_per_cycle
        return _Load(max(self.computed, dram, second), dram, second, self.computed)


def prefetch(
    context: Context,
    layers: Sequence[PlannedLayer],
    edges: Mapping[str, Sequence[int]],
    steps: Sequence[int],
    kept: Sequence[Lifetime],
) -> Prefetch:
    """The weights to copy, chosen by the most clocks saved per byte.

    context: as planned so far; edges: of the tiles of every layer; steps: the step of each layer, as in lifetimes;
    kept: the maps in the second memory.
    """
    machine = context.machine
    operations = [select(context, each, edges[each.name]) for each in layers]
    loads = _loads(operations, machine)
    lifetimes, buffers, pieces = list(kept), dict[KernelKey, str](), dict[str, list[Piece]]()
    names = Names(each.view.buffer.name for each in context.placed.values())
    waiting = [
        (number, one)
        for number, layer in enumerate(layers)
        if loads[number].waits > 0
        for one in _weights(context, layer, edges[layer.name])
    ]
    for number, one in sorted(waiting, key=lambda each: -loads[each[0]].waits / each[1].bytes):
        layer, found = layers[number], _pieces(one.bytes, loads[: max(number - AHEAD + 1, 0)], machine)
        if loads[number].waits <= 0 or not found:
            continue
        first = steps[min(at for at, _, _ in found)]
        name = names.new(f"{layer.name}/weights")
        lifetime = Lifetime(name, -(-one.bytes // UNIT), first, steps[number] + 1)
        if not fits([*lifetimes, lifetime], machine.sram_bytes // UNIT):
            continue
        lifetimes.append(lifetime)
        buffers[one.key] = name
        for at, start, size in found:
            pieces.setdefault(layers[at].name, []).append(Piece(layer, one.part, start, size))
            loads[at].dram += size / machine.dram_bytes_per_cycle
        loads[number] = loads[number].without(one.bytes * one.times, machine)
    return Prefetch(buffers, lifetimes[len(kept) :], pieces)


def _loads(operations: Sequence[Sequence[Operation]], machine: Machine) -> list[_Load]:
    """The load of every layer, in order."""
    ends = pingpong.layer_ends(operations, machine)
    found: list[_Load] = []
    for (begin, end), each in zip(pairwise((0.0, *ends)), operations, strict=True):
        moved = [timing.moving_cycles(one, timing.read_by_memory(one, machine), machine) for one in each]
        dram, second = (sum(memory) for memory in zip(*moved, strict=True)) if moved else (0.0, 0.0)
        computed = sum(
            timing.compute_cycles(one.kernels, one.destination, machine)[0]
            for one in each
            if isinstance(one, Convolution)
        )
        found.append(_Load(end - begin, dram, second, computed))
    return found


@frozen
class _Weights:
    """The weights of a pass: their size, and how often they are read."""

    key: KernelKey
    part: ConvolutionPart
    bytes: int
    times: int


def _weights(context: Context, layer: PlannedLayer, edges: Sequence[int]) -> Iterator[_Weights]:
    """The weights of a layer's passes that can be copied; not compressed ones, which have three surfaces each."""
    if layer.node.op != "NvConv":
        return
    constants = Constants(context.machine, 0, counted=True)
    operations = select(replace(context, constants=constants), layer, edges)
    parts = {(each.first, each.count): each for each in passes(context, layer.node)}
    for key, kernels in constants.kernels.items():
        part = parts.get((key[1], key[2]))
        if part is not None and kernels.mask is None:
            times = sum(isinstance(each, Convolution) and each.kernels is kernels for each in operations)
            yield _Weights(key, part, kernels.bytes, times)


def _pieces(size: int, before: Sequence[_Load], machine: Machine) -> list[tuple[int, int, int]]:
    """Pieces (layer behind which to copy, first byte, size) of `size` bytes; empty if DRAM lacks idle time."""
    found: list[tuple[int, int, int]] = []
    for at in range(len(before) - 1, -1, -1):
        free = int(before[at].idle * machine.dram_bytes_per_cycle) // UNIT * UNIT
        if free >= size:
            return [*found, (at, 0, size)]
        if free >= LEAST:
            size -= free
            found.append((at, size, free))
    return []
