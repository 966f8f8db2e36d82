"""Weights that BDMA brings into the second memory while layers before compute, where DRAM has time for it.

A layer whose weights take DRAM longer than its products take the array waits for them. Where DRAM is idle beside
earlier layers, BDMA copies such weights piece by piece behind their operations, and the layer then reads them at
the speed of the second memory. The pieces of a layer end two layers before it, so that it waits for nothing that
still computes. Whether the program gains is seen with its own plan (lowering).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise

from npuc.allocation import Buffer as Lifetime
from npuc.allocation import fits
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.operations import pingpong, timing
from npuc.targets.nvdla.operations.operation import Convolution, Operation
from npuc.targets.nvdla.selection import Constants, Context, PlannedLayer, passes, select
from npuc.targets.nvdla.selection.context import KernelKey, Piece
from npuc.targets.nvdla.selection.parts import Part
from npuc.targets.nvdla.selection.phases import UNIT

LEAST = 4096
"""Bytes of a piece at least, but for the last one: a copy takes some 14 register writes."""
AHEAD = 2
"""Layers between the last piece and the layer that reads it, itself counted."""


@dataclass(frozen=True)
class Prefetch:
    """Which weights are copied where, and the pieces behind the operations of each layer."""

    buffers: Mapping[KernelKey, str] = field(default_factory=dict[KernelKey, str])
    lifetimes: Sequence[Lifetime] = ()
    pieces: Mapping[str, Sequence[Piece]] = field(default_factory=dict[str, "Sequence[Piece]"])
    """By the name of the layer behind which they are copied."""


@dataclass
class _Load:
    """What a layer takes, in clocks."""

    taken: float
    dram: float
    second: float
    computed: float

    @property
    def idle(self) -> float:
        """For which DRAM has nothing to do."""
        return max(self.taken - self.dram, 0)

    @property
    def waits(self) -> float:
        """For which the layer only waits for DRAM."""
        return self.taken - max(self.computed, self.second)

    def without(self, size: int, machine: Machine) -> _Load:
        """With so many bytes of weights that are read of the second memory."""
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
    """What to copy: first what saves the most clocks for each byte.

    context: as planned so far; edges: of the tiles of every layer; steps: when each layer is computed, in the
    steps of lifetimes; kept: the maps in the second memory.
    """
    machine = context.machine
    operations = [select(context, each, edges[each.name]) for each in layers]
    loads = _loads(operations, machine)
    lifetimes, buffers, pieces = list(kept), dict[KernelKey, str](), dict[str, list[Piece]]()
    names = {each.view.buffer.name for each in context.placed.values()}
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
        name = _unique(f"{layer.name}/weights", names)
        lifetime = Lifetime(name, -(-one.bytes // UNIT), first, steps[number] + 1)
        if not fits([*lifetimes, lifetime], machine.sram_bytes // UNIT):
            continue
        lifetimes.append(lifetime)
        names.add(name)
        buffers[one.key] = name
        for at, start, size in found:
            pieces.setdefault(layers[at].name, []).append(Piece(layer, one.part, start, size))
            loads[at].dram += size / machine.dram_bytes_per_cycle
        loads[number] = loads[number].without(one.bytes * one.times, machine)
    return Prefetch(buffers, lifetimes[len(kept) :], pieces)


def _loads(operations: Sequence[Sequence[Operation]], machine: Machine) -> list[_Load]:
    """Of every layer, one behind the other."""
    ends = pingpong.layer_ends(operations, machine)
    found: list[_Load] = []
    for (begin, end), each in zip(pairwise((0.0, *ends)), operations, strict=True):
        moved = [timing.moving_cycles(operation, machine) for operation in each]
        dram, second = (sum(memory) for memory in zip(*moved, strict=True)) if moved else (0.0, 0.0)
        computed = sum(
            timing.compute_cycles(one.kernels, one.destination, machine)
            for one in each
            if isinstance(one, Convolution)
        )
        found.append(_Load(end - begin, dram, second, computed))
    return found


@dataclass(frozen=True)
class _Weights:
    """The weights of a pass: how many bytes, and how often they are read."""

    key: KernelKey
    part: Part
    bytes: int
    times: int


def _weights(context: Context, layer: PlannedLayer, edges: Sequence[int]) -> Iterator[_Weights]:
    """Those of a layer's passes that can be copied: compressed ones, three surfaces each, stay where they are."""
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
    """Pieces of so many bytes: behind which layer, from which byte on, how many; none where DRAM lacks time."""
    found: list[tuple[int, int, int]] = []
    for at in range(len(before) - 1, -1, -1):
        free = int(before[at].idle * machine.dram_bytes_per_cycle) // UNIT * UNIT
        if free >= size:
            return [*found, (at, 0, size)]
        if free >= LEAST:
            size -= free
            found.append((at, size, free))
    return []


def _unique(name: str, taken: Collection[str]) -> str:
    """A name that no buffer has."""
    while name in taken:
        name += "'"
    return name
