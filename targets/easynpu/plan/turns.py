"""Tiles that lie in two halves of the DTCMs in turns, so that one is loaded while the other is computed.

A machine with overlap loads a map while words run, only where these neither read nor write. A strip whose tiles
have half of the memory each gives every load such a place; it needs smaller tiles, with more halo.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from npuc.ir import Graph
from npuc.targets.easynpu.machine.memory import MapPlace
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.plan.grids import JobShare, Strip, weights
from npuc.targets.easynpu.plan.placement import PlacedJob, Placement
from npuc.targets.easynpu.plan.ranges import Range


def half(machine: Machine) -> Machine:
    """The machine with half of its memories for maps."""
    return replace(machine, fmap_words=machine.fmap_words // 2, skip_words=machine.skip_words // 2)


def in_turns(
    graph: Graph, strips: Sequence[Strip], machine: Machine, shares: Mapping[str, JobShare]
) -> tuple[Strip, ...]:
    """The strips, with tiles in turns where this is estimated to take less time."""
    return tuple(_in_turns(graph, each, machine, shares) for each in strips)


def _in_turns(graph: Graph, strip: Strip, machine: Machine, shares: Mapping[str, JobShare]) -> Strip:
    fmap, skip = strip.free or (machine.fmap_words, machine.skip_words)
    room = half(replace(machine, fmap_words=fmap, skip_words=skip))
    staying = {name: each.end for name, each in strip.staying.items()}
    tiles = Range(graph, strip.nodes, room, shares, staying=staying)
    weight, grids = weights(machine)["time"], tiles.grids
    loads, cycles, number = (grids[:, 3] - tiles.stored) * weight, grids[:, 4], grids[:, :3].prod(axis=1)
    costs = tiles.stored * weight + np.maximum(loads, cycles) + np.minimum(loads, cycles) / np.maximum(number, 1)
    for at in np.argsort(costs, kind="stable"):
        if costs[at] >= strip.cost(weight):
            break
        found = tiles.strip(at)
        if number[at] > 1 and found.grid not in tiles.roomy and tiles.fits(found.grid):
            return replace(found, free=strip.free, staying=strip.staying, turns=True)
    return strip


def in_upper_half(placement: Placement, room: Machine) -> Placement:
    """A tile's placement in the other half. room: the machine that it was placed in; what stays lies beyond."""

    def moved(place: MapPlace | None) -> MapPlace | None:
        size = 0 if place is None else room.capacity_words(place.memory)
        return place if place is None or place.base >= size else replace(place, base=place.base + size)

    def moved_job(placed: PlacedJob) -> PlacedJob:
        sources = tuple(each for source in placed.sources if (each := moved(source)) is not None)
        places = {name: moved(getattr(placed, name)) for name in ("dst", "opb", "stored")}
        return replace(placed, sources=sources, **places)

    return replace(
        placement,
        jobs=tuple(map(moved_job, placement.jobs)),
        inputs=tuple(replace(each, place=moved(each.place)) for each in placement.inputs),
        outputs=tuple(replace(each, place=moved(each.place)) for each in placement.outputs),
        usage={
            name: replace(use, peak=use.peak + room.capacity_words(name) * (use.peak > 0))
            for name, use in placement.usage.items()
        },
    )
