"""The maps kept in the second memory: those that save their layers the most clocks per byte, as many as fit.

What the host loads or stores stays in DRAM, which it can reach on every system. As in DRAM, two maps share memory
if they are never needed together. Whether the program gains is decided with a plan of its own (lowering).
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

from npuc.allocation import Buffer as Lifetime
from npuc.allocation import fits
from npuc.targets.nvdla.machine.parameters import SRAM_BASE
from npuc.targets.nvdla.operations import pingpong
from npuc.targets.nvdla.selection import Constants, Context, PlannedLayer, select
from npuc.targets.nvdla.selection.phases import UNIT


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
    free = [each for each in lifetimes if each.name not in bound and each.size <= capacity]
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
    return pingpong.alone(select(context, layer, edges[layer.name]), context.machine)
