"""Grids of tiles for a range of layers: what each grid moves and computes.

The outputs of a range are divided into a uniform grid of tiles; each tile loads the windows it needs, runs the
whole range, and stores its part.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from itertools import pairwise, product

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.targets.easynpu.layers.jobs import Job
from npuc.targets.easynpu.layers.nodes import map_shape
from npuc.targets.easynpu.layers.views import surrounds
from npuc.targets.easynpu.layers.windows import MapWindow
from npuc.targets.easynpu.machine.isa import Layer
from npuc.targets.easynpu.machine.memory import LANES, MapPlace, groups
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.timing import is_dense
from npuc.targets.easynpu.plan.placement import WeightStreamBuilder
from npuc.targets.easynpu.plan.regions import outputs_of

Ranges = Mapping[str, tuple[Array, Array]]


@frozen
class Grid:
    """The number of tiles along channels, rows and columns."""

    channels: int = 1
    rows: int = 1
    columns: int = 1

    def windows(self, shape: tuple[int, int, int]) -> Iterator[MapWindow]:
        """The tiles of a map (C, H, W), channels outermost."""
        per_axis = (
            cuts(groups(shape[0]), self.channels),
            cuts(shape[1], self.rows),
            cuts(shape[2], self.columns),
        )
        for (first, end), rows, columns in product(*per_axis):
            yield MapWindow((first * LANES, min(end * LANES, shape[0])), rows, columns)


def cuts(extent: int, tiles: int) -> list[tuple[int, int]]:
    """Nearly equal ranges of an extent, at most one per element."""
    tiles = min(tiles, extent)
    bounds = [extent * tile // tiles for tile in range(tiles + 1)]
    return list(pairwise(bounds))


RARELY = 1e-6
"""The weight of cycles of computation where traffic is minimised: they break ties."""


def weights(machine: Machine) -> dict[str, float]:
    """Cycles that a word of traffic costs, by objective."""
    return {"time": machine.word_bytes / machine.host_bytes_per_cycle, "traffic": 1 / RARELY}


@frozen
class StayingMap:
    """A map whose first channels stay in the DTCMs from the first strip that uses it to the last one."""

    parts: tuple[tuple[int, int, MapPlace], ...]
    """Their groups, from the first up to the end, and the place of each part."""
    loaded: bool = False
    """The host loads it; otherwise these strips compute it, and nothing else reads it."""

    @property
    def end(self) -> int:
        """The groups that stay."""
        return self.parts[-1][1]


@frozen
class Strip:
    """A range of nodes, its grid, and the cost of both."""

    nodes: tuple[Node, ...]
    grid: Grid
    traffic_words: int
    """DTCM words of maps and weights moved between host and DTCMs."""
    compute_cycles: int
    """Cycles in which the PEs multiply; halo counts each time it is computed."""
    free: tuple[int, int] | None = None
    """Words of the Fmap and the skip DTCM from 0 on beside maps that stay there; None: all."""
    staying: Mapping[str, StayingMap] = field(default_factory=dict[str, "StayingMap"])
    """The maps that the strip reads or writes and that stay, in part."""
    turns: bool = False
    """Its tiles lie in the two halves of `free` in turns."""

    def cost(self, weight: float) -> float:
        """The cost in cycles. weight: cycles per word of traffic."""
        return self.compute_cycles + self.traffic_words * weight


@frozen
class JobShare:
    """A node's share of a run's jobs, which does not depend on the tiles."""

    weight_words: int = 0
    """Words of the weight stream."""
    table_words: int = 0
    """The part of these that every chunk of channels streams again: an activation table, taps of an average."""
    pixel_cycles: int = 0
    """Cycles per pixel (all channels) in which one row of PEs multiplies."""
    shared: bytes = b""
    """The words of the stream, if nodes of the same run that have the same words stream them too."""

    def row_cycles(self, machine: Machine) -> int:
        """Cycles per pixel with all rows of PEs, which divide the pixels of a tile."""
        return -(-self.pixel_cycles // machine.pe_rows)


def shares_of(jobs: Sequence[Job]) -> dict[str, JobShare]:
    """The share of every node, by its output tensor; ranges stream the same words anew."""
    found: dict[str, JobShare] = {}
    streams: dict[Node, WeightStreamBuilder] = {}
    for job in jobs:
        stream, known = streams.setdefault(job.stages[-1].node, WeightStreamBuilder()), set(found)
        for stage in stream.with_addresses(job).stages:
            word, before = stage.word, found.get(stage.node.output, JobShare())
            sweeps = word.Hk * word.Wk * (word.Ci if is_dense(word) else 1) if isinstance(word, Layer) else 1
            weights = before.weight_words + len(stage.loaded)
            again = len(stage.block) if stage.node.op == "IntTable" else 0
            if stage.shares:  # what a chunk of channels streams as the one before it does
                again = before.table_words or before.weight_words * (stage.held and stage.node.output in known)
            shared = before.shared + stage.loaded.tobytes() if stage.shares else b""
            if surrounds(stage.node) and not len(stage.block):  # a border: few pixels
                sweeps = 0
            cycles = before.pixel_cycles + sweeps * groups(word.Co)
            found[stage.node.output] = JobShare(weights, again, cycles, shared)
    return found


def together(shares: Iterable[JobShare]) -> tuple[int, int]:
    """The words of nodes' weight streams in one run, and those of tables among them; shared words count once."""
    shares = list(shares)
    once = {each.shared: each for each in shares if each.shared}.values()
    counted = [*once, *(each for each in shares if not each.shared)]
    return sum(each.weight_words for each in counted), sum(each.table_words for each in counted)


@frozen
class AxisRanges:
    """The ranges of every tensor along an axis, for all useful numbers of tiles, one after the other."""

    counts: tuple[int, ...]
    unit: int
    """Elements of a step: channels (axis 0) count in groups of 16."""
    ranges: Ranges
    """Low and high in elements, by tensor."""
    held: Ranges
    """The same of what is in a DTCM, in the order of tensors; it may begin earlier (anchoring)."""
    sizes: Mapping[str, Array]
    """(2, counts): the steps of the largest tile, and of all tiles."""

    @classmethod
    def of(
        cls, counts: tuple[int, ...], unit: int, ranges: Ranges, held: Ranges, known: AxisRanges | None = None
    ) -> AxisRanges:
        """An axis. known: one with the same counts, whose sizes are taken over for the same ranges."""
        starts = np.cumsum((0, *counts[:-1]))
        sizes: dict[str, Array] = {}
        for name, each in held.items():
            if known is not None and known.held.get(name) is each:
                sizes[name] = known.sizes[name]
                continue
            steps = -(-each[1] // unit) - each[0] // unit
            sizes[name] = np.stack([ufunc.reduceat(steps, starts) for ufunc in (np.maximum, np.add)])
        return cls(counts, unit, ranges, held, sizes)

    @cached_property
    def largest(self) -> Array:
        """The extent of the largest tile: (counts, tensors)."""
        return np.stack([each[0] for each in self.sizes.values()], axis=1)

    @cached_property
    def total(self) -> Array:
        """The sum of the extents of all tiles: (counts, tensors)."""
        return np.stack([each[1] for each in self.sizes.values()], axis=1)

    def kinds(self, count: int) -> list[Array]:
        """The ranges (tensors, 2) of one tile of every kind; tiles of a kind have equal extents."""
        low, high = self._tiles(count)
        kinds = {tuple(sizes): at for at, sizes in enumerate((high - low).T.tolist())}
        return [np.stack([low[:, at], high[:, at]], axis=1) for _, at in sorted(kinds.items(), reverse=True)]

    def placed_kinds(self, count: int) -> tuple[list[Array], list[int]]:
        """The same for tiles that also begin at the same borders of the map, and the kind of every tile."""
        low, high = self._tiles(count)
        keys = [tuple(each) for each in np.concatenate([high - low, low == 0]).T.tolist()]
        kinds = {key: at for at, key in enumerate(dict.fromkeys(keys))}
        first = [keys.index(key) for key in kinds]
        return [np.stack([low[:, at], high[:, at]], axis=1) for at in first], [kinds[key] for key in keys]

    def _tiles(self, count: int) -> tuple[Array, Array]:
        start = sum(self.counts[: self.counts.index(count)])
        low, high = (np.stack([e[at][start : start + count] for e in self.held.values()]) for at in (0, 1))
        return low // self.unit, -(-high // self.unit)


def tiles_of(graph: Graph, nodes: Sequence[Node], grid: Grid) -> list[dict[str, MapWindow]]:
    """The windows of a range's outputs, per tile; empty if the outputs have different numbers of tiles."""
    outputs = outputs_of(graph, nodes)
    windows = [list(grid.windows(map_shape(graph.shape(name)))) for name in outputs]
    if len({len(each) for each in windows}) > 1:
        return []
    return [dict(zip(outputs, tile, strict=True)) for tile in zip(*windows, strict=True)]
