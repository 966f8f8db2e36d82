"""The tile (y, x) of each layer by enumeration: the fewest DTCM words within 1 % of the fewest cycles.

Legal (easynpu reference, section 4): x*y*zs psums, zs weights, x'*y' ifmap entries per pad, 6-bit extents. A layer
has fewer than 700 candidates, so all are evaluated at once and the optimum is exact.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np

from npuc.errors import DoesNotFit
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.easynpu.machine.isa import Layer
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.timing import (
    Followers,
    chain_cost,
    is_dense,
    kernel_extent,
    of_a_row,
    tile_input,
    weight_words,
)

FIELD_MOST = 64
"""y, x, y' and x' have 6 bits, stored minus one."""
PERCENT = 1
"""Additional cycles that are accepted for fewer words."""


@frozen
class Tiling:
    """The chosen tile and the certificate that it is the best of the enumeration."""

    y: int
    x: int
    cycles: int
    candidates: int
    fewest_cycles: int
    """The fewest cycles of any candidate; the chosen one has at most 1 % more."""
    runner_up: tuple[int, int, int] | None
    """(y, x, cycles) of the next best candidate; None if there is no other."""
    compute_cycles: int
    """Cycles in which the PEs compute, bubbles included."""
    bus_words: int
    """Ifmap and ofmap words on the shared bus."""
    words: int
    """Words read from and written to DTCMs: those on the bus, and the weights, which every tile reads again."""


def costs(tilings: Sequence[Tiling], machine: Machine) -> dict[str, Any]:
    """A report's fields for the tilings of a layer's jobs; tile and certificate are those of the first."""
    first = tilings[0]
    compute, bus = sum(each.compute_cycles for each in tilings), sum(each.bus_words for each in tilings)
    return {
        "cycles": sum(each.cycles for each in tilings),
        "compute_cycles": compute,
        "bus_words": bus,
        "dtcm_words": sum(each.words for each in tilings),
        "bytes": bus * machine.word_bytes,
        "bound": "bus" if bus > compute else "compute",
        "jobs": len(tilings),
        "tile": [first.y, first.x],
        "tile_candidates": first.candidates,
        "tile_fewest_cycles": sum(each.fewest_cycles for each in tilings),
        "tile_runner_up": list(first.runner_up) if first.runner_up else None,
    }


def best_tile(
    parts: Sequence[Layer], machine: Machine, followers: Followers, where: str = "", *, undivided: bool = False
) -> tuple[tuple[int, int], Tiling]:
    """The best tile (y, x) of a layer and its certificate. parts: the layer's word, or its words that keep psums.

    undivided: the layer must be one tile. Raises DoesNotFit (E303) if no tile is legal for every part.
    """
    found = _best(tuple(parts), machine, followers, undivided=undivided)
    if isinstance(found, DoesNotFit):
        _rank_tiles(parts, machine, followers, where, undivided=undivided)  # the same error, with its node
        raise found
    return (found.y, found.x), found


@lru_cache(maxsize=4096)
def _best(
    parts: tuple[Layer, ...], machine: Machine, followers: Followers, *, undivided: bool
) -> Tiling | DoesNotFit:
    """The certificate of the best tile, cached because equal layers recur."""
    try:
        return _rank_tiles(parts, machine, followers, "", undivided=undivided)[1](0)
    except DoesNotFit as error:
        return error.with_traceback(None)


def certificate_of(
    parts: Sequence[Layer], tile: tuple[int, int], machine: Machine, followers: Followers, *, undivided: bool
) -> Tiling:
    """The certificate of a given tile; one larger than the ofmap counts as the whole ofmap.

    Raises DoesNotFit (E303) if the tile is not legal.
    """
    ranked, certificate = _rank_tiles(parts, machine, followers, "", undivided=undivided)
    chosen = min(tile[0], parts[-1].Ho), min(tile[1], parts[-1].Wo)
    at = np.flatnonzero((ranked == chosen).all(axis=1))
    if not len(at):
        raise _no_tile(parts[-1], machine, "")
    return certificate(int(at[0]))


def _rank_tiles(
    parts: Sequence[Layer], machine: Machine, followers: Followers, where: str, *, undivided: bool
) -> tuple[Array, Callable[[int], Tiling]]:
    """The legal tiles, (n, 2) of y and x, the best one first, and a function that gives the certificate of each.

    Tiles with at most 1 % more cycles than the fastest come first, ordered by DTCM words (which cost energy), then
    cycles, then width.
    """
    last = parts[-1]
    if is_dense(last) and last.Zs > machine.weight_pad_entries:
        raise _too_many_channels(last, "weight_pad_entries", machine.weight_pad_entries, where)
    y, x = (axis.ravel() for axis in np.mgrid[1 : min(last.Ho, FIELD_MOST) + 1, 1 : min(last.Wo, FIELD_MOST) + 1])
    legal = np.logical_and.reduce([legal_tiles(part, machine, y, x) for part in parts])
    if undivided:
        legal &= (y == last.Ho) & (x == last.Wo)
    if not legal.any():
        raise _no_tile(last, machine, where)
    y, x = y[legal], x[legal]
    cost = chain_cost(parts, y, x, machine, followers)
    cycles, fewest = cost.cycles, int(cost.cycles.min())
    words = cost.bus + sum(map(weight_words, parts)) * -(-last.Ho // y) * -(-last.Wo // x)
    slow = 100 * cycles > (100 + PERCENT) * fewest
    order = np.lexsort((-x, cycles, np.where(slow, 0, words), slow))

    def certificate(rank: int) -> Tiling:
        """The certificate of the tile at this rank."""
        chosen, *others = ((int(y[at]), int(x[at]), int(cycles[at])) for at in (order[rank], *order[:2]))
        runner_up = next((each for each in others if each != chosen), None)
        compute, bus, moved = (int(each[order[rank]]) for each in (cost.compute, cost.bus, words))
        return Tiling(*chosen, len(order), fewest, runner_up, compute, bus, moved)

    return np.stack([y[order], x[order]], axis=1), certificate


def is_single_tile(layer: Layer, machine: Machine) -> bool:
    """Whether all psums and the whole sub-ifmap of a word fit the pads at once (channel-wise: of 16 channels)."""
    y, x = np.array([layer.Ho]), np.array([layer.Wo])
    return bool(legal_tiles(layer, machine, y, x).all()) and (is_dense(layer) or layer.Zs == 1)


def legal_tiles(layer: Layer, machine: Machine, y: Array, x: Array) -> Array:
    """Which tiles (y, x) fit the psums, the ifmap pads and the fields."""
    rows, columns = tile_input(layer, y, x)
    per_pe = layer.Zs if is_dense(layer) else 1
    return (
        (of_a_row(y * x, machine) * per_pe <= machine.psum_entries)
        & (rows * columns <= machine.ifmap_pad_entries)
        & (rows <= FIELD_MOST)
        & (columns <= FIELD_MOST)
        & (y <= FIELD_MOST)
        & (x <= FIELD_MOST)
    )


def with_tile(layer: Layer, y: int, x: int) -> Layer:
    """The word with a tile and the sub-ifmap that it needs."""
    rows, columns = tile_input(layer, y, x)
    return replace(layer, y=y, x=x, yi=int(rows), xi=int(columns))


def _no_tile(layer: Layer, machine: Machine, where: str) -> DoesNotFit:
    height, width = kernel_extent(layer.Hk, layer.Dh), kernel_extent(layer.Wk, layer.Dw)
    if height * width > machine.ifmap_pad_entries:
        return DoesNotFit(
            "E303",
            f"the kernel spans {height} x {width} = {height * width} entries of an ifmap pad",
            node=where,
            limit=f"ifmap_pad_entries = {machine.ifmap_pad_entries}",
            remedy=f"a machine with ifmap_pad_entries = {height * width} (--machine FILE), or a smaller kernel",
        )
    if max(height, width) > FIELD_MOST:
        return DoesNotFit("E303", f"the kernel spans {height} x {width}", node=where, limit="64 rows and columns")
    return _too_many_channels(layer, "psum_entries", machine.psum_entries, where)


def _too_many_channels(layer: Layer, parameter: str, limit: int, where: str) -> DoesNotFit:
    return DoesNotFit(
        "E303",
        f"{layer.Zs} output channels per PE for one pixel",
        node=where,
        limit=f"{parameter} = {limit}",
        remedy=f"a machine with {parameter} = {layer.Zs} (--machine FILE)",
    )
