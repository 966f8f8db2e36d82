"""Grids of tiles for a range of layers: what each moves and computes, and whether its tiles fit the machine.

A range of layers is computed as a uniform grid of tiles of its outputs; every tile loads the windows it needs,
runs the whole range, and stores its part. Rows and columns are independent, so all grids of a range are evaluated
at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import ceil

import numpy as np

from npuc.allocation import Buffer
from npuc.ir import Array, Graph, Node
from npuc.targets.easynpu.addressing import interleaved, is_part, map_shape
from npuc.targets.easynpu.fusion import fused_behind
from npuc.targets.easynpu.isa import Layer
from npuc.targets.easynpu.jobs import Job
from npuc.targets.easynpu.machine import Machine
from npuc.targets.easynpu.memory import LANES, feature_words, groups
from npuc.targets.easynpu.placement import placeable
from npuc.targets.easynpu.regions import inputs_of, outputs_of
from npuc.targets.easynpu.timing import is_dense
from npuc.targets.easynpu.views import Views, views_of
from npuc.targets.easynpu.windows import Window, is_channelwise, is_tileable, ranges_for, whole, windows_for

MOST_TILES = 16
"""Along rows, and along columns."""
MOST_EXTENT = 256
"""Rows or columns of a map that the instruction word can say."""


@dataclass(frozen=True)
class Grid:
    """Tiles along channels, rows and columns."""

    channels: int = 1
    rows: int = 1
    columns: int = 1

    def windows(self, shape: tuple[int, int, int]) -> Iterator[Window]:
        """The tiles of a map (C, H, W), channels outermost."""
        per_axis = (
            cuts(groups(shape[0]), self.channels),
            cuts(shape[1], self.rows),
            cuts(shape[2], self.columns),
        )
        for (first, end), rows, columns in product(*per_axis):
            yield Window((first * LANES, min(end * LANES, shape[0])), rows, columns)


def cuts(extent: int, tiles: int) -> list[tuple[int, int]]:
    """Nearly equal ranges; never more than there are elements."""
    tiles = min(tiles, extent)
    bounds = [extent * tile // tiles for tile in range(tiles + 1)]
    return list(pairwise(bounds))


@dataclass(frozen=True)
class Strip:
    """A range of nodes, its grid, and what that takes."""

    nodes: tuple[Node, ...]
    grid: Grid
    traffic_words: int
    """Maps and weights between host and DTCMs."""
    compute_cycles: int
    """Cycles in which the PEs multiply; halo counts as often as it is computed."""


@dataclass(frozen=True)
class Share:
    """A node's share of a run's jobs, whatever its tiles: words of the weight stream, compute cycles a pixel."""

    weight_words: int = 0
    pixel_cycles: int = 0


def shares_of(jobs: Sequence[Job]) -> dict[str, Share]:
    """The share of every node, by the tensor that it produces."""
    found: dict[str, Share] = {}
    for job in jobs:
        for stage in job.stages:
            word, before = stage.word, found.get(stage.node.output, Share())
            sweeps = word.Hk * word.Wk * (word.Ci if is_dense(word) else 1) if isinstance(word, Layer) else 1
            cycles = before.pixel_cycles + sweeps * groups(word.Co)
            found[stage.node.output] = Share(before.weight_words + len(stage.block), cycles)
    return found


class Range:
    """Consecutive nodes with every grid that may fit them; which ones do is found when it is asked."""

    def __init__(self, graph: Graph, nodes: Sequence[Node], machine: Machine, shares: Mapping[str, Share]) -> None:
        self.graph = graph
        self.nodes = tuple(nodes)
        self.machine = machine
        self.outputs = outputs_of(graph, nodes)
        self.strips = list(_strips(graph, self.nodes, self.outputs, machine, shares))
        self.fitting: dict[Grid, bool] = {}

    def best(self, weight: float) -> Strip | None:
        """The cheapest strip that fits, if one does. weight: cycles that a word of traffic counts for."""
        ordered = sorted(self.strips, key=lambda strip: strip.compute_cycles + strip.traffic_words * weight)
        return next((strip for strip in ordered if self._fits(strip.grid)), None)

    def _fits(self, grid: Grid) -> bool:
        if grid not in self.fitting:
            self.fitting[grid] = fits(self.graph, self.nodes, grid, self.machine)
        return self.fitting[grid]


def tiles_of(graph: Graph, nodes: Sequence[Node], grid: Grid) -> list[dict[str, Window]]:
    """The windows of a range's outputs, tile by tile; none if the outputs have different numbers of tiles."""
    outputs = outputs_of(graph, nodes)
    windows = [list(grid.windows(map_shape(graph.shape(name)))) for name in outputs]
    if len({len(each) for each in windows}) > 1:
        return []
    return [dict(zip(outputs, tile, strict=True)) for tile in zip(*windows, strict=True)]


def fits(graph: Graph, nodes: Sequence[Node], grid: Grid, machine: Machine) -> bool:
    """Whether every tile can be placed: the buffers of its views, by lifetime. Of each shape one is tried."""
    tiles = {
        tuple(window.shape for window in windows.values()): windows
        for windows in (windows_for(graph, nodes, tile) for tile in tiles_of(graph, nodes, grid))
    }
    largest = sorted(tiles.values(), key=lambda windows: -sum(window.words for window in windows.values()))
    return bool(largest) and all(_placeable(graph, nodes, windows, machine) for windows in largest)


def _placeable(graph: Graph, nodes: Sequence[Node], windows: Mapping[str, Window], machine: Machine) -> bool:
    if max(max(window.shape[1:]) for window in windows.values()) > MOST_EXTENT:
        return False
    buffers, operands = _lifetimes(graph, nodes, views_of(graph, nodes, windows), machine)
    return placeable(buffers, operands, machine)


def _lifetimes(
    graph: Graph, nodes: Sequence[Node], views: Views, machine: Machine
) -> tuple[list[Buffer], set[str]]:
    """The buffers that the jobs of these nodes will hold, from first to last step, and those read as operands."""
    before = fused_behind(graph, nodes, machine)
    inner = {node.output for node in before.values()}
    last = dict.fromkeys((views.tensors[name].buffer for name in inputs_of(graph, nodes)), 0)
    first = dict(last)
    operands: set[str] = set()
    for step, node in enumerate(nodes):
        if node.output in inner:
            continue
        reads: list[str] = []
        chain: Node | None = node
        while chain is not None:
            names = [name for name in chain.inputs if name not in graph.constants and name not in inner]
            reads += names
            if chain.op in ("IntAdd", "IntMul"):
                operands.update(views.tensors[name].buffer for name in names[-1:])
            chain = before.get(id(chain))
        for name in (*reads, *node.outputs):
            buffer = views.tensors[name].buffer
            first.setdefault(buffer, step)
            last[buffer] = step
    last.update({views.tensors[name].buffer: len(nodes) for name in outputs_of(graph, nodes)})
    found = [Buffer(name, feature_words(*views.buffers[name]), first[name], last[name]) for name in first]
    return found, operands


@dataclass(frozen=True)
class _Axis:
    """For every number of tiles along an axis: per tensor the largest range and the sum of all ranges."""

    counts: tuple[int, ...]
    largest: Array
    """(counts, tensors)"""
    total: Array


def _strips(
    graph: Graph, nodes: Sequence[Node], outputs: Sequence[str], machine: Machine, shares: Mapping[str, Share]
) -> Iterator[Strip]:
    """Every grid whose largest tile has no more words than the machine, with what it moves and computes."""
    shapes = {map_shape(graph.shape(name))[1:] for name in outputs}
    if not outputs or _divides_interleaving(graph, nodes) or (len(shapes) > 1 and min(map(min, shapes)) < 2):
        return
    tensors = _tensors(graph, nodes)
    rows, columns = (_axis(graph, nodes, outputs, tensors, axis) for axis in (1, 2))
    alive = _alive(graph, nodes, tensors, outputs, machine)
    inputs = [tensors.index(name) for name in inputs_of(graph, nodes)]
    depth = np.array([groups(map_shape(graph.shape(name))[0]) for name in tensors])
    work = np.array([shares.get(name, Share()).pixel_cycles for name in tensors]) // machine.pe_rows
    weights = sum(shares.get(node.output, Share()).weight_words for node in nodes)
    stored = sum(whole(graph, name).words for name in outputs)
    sums = rows.total[:, None] * columns.total[None]
    largest = rows.largest[:, None] * columns.largest[None]
    extents = np.maximum(rows.largest.max(axis=1)[:, None], columns.largest.max(axis=1)[None])
    counts = np.multiply.outer(rows.counts, columns.counts)
    cycles = sums @ work
    for parts in range(1, _most_parts(graph, nodes) + 1):
        split = _split(graph, nodes, tensors, parts)
        chunk = np.where(split, -(-depth // parts), depth)
        fitting = (largest * chunk @ alive.T).max(axis=-1) <= machine.fmap_words + machine.skip_words
        fitting &= (largest * chunk).max(axis=-1) <= max(machine.fmap_words, machine.skip_words)
        loaded = (sums * depth * np.where(split, 1, parts))[..., inputs].sum(axis=-1)
        resident = ceil(weights / parts) <= machine.weight_words
        traffic = loaded + stored + weights * (1 if resident else counts)
        for r, c in np.argwhere(fitting & (extents <= MOST_EXTENT)):
            grid = Grid(parts, rows.counts[r], columns.counts[c])
            yield Strip(tuple(nodes), grid, int(traffic[r, c]), int(cycles[r, c]))


def _divides_interleaving(graph: Graph, nodes: Sequence[Node]) -> bool:
    """Whether a DepthToSpace and the concatenation that it interleaves are not both in the range."""
    inside = {id(node) for node in nodes}
    pairs = ((node, interleaved(graph, node)) for node in graph.nodes if node.op == "DepthToSpace")
    return any(concat is not None and (id(node) in inside) != (id(concat) in inside) for node, concat in pairs)


def _most_parts(graph: Graph, nodes: Sequence[Node]) -> int:
    """Channel parts that may be computed one after the other: those of a single layer."""
    single = len(nodes) == 1 and all(is_tileable(graph, nodes, axis) for axis in (1, 2))
    return groups(graph.shape(nodes[0].output)[1]) if single else 1


def _split(graph: Graph, nodes: Sequence[Node], tensors: Sequence[str], parts: int) -> Array:
    """Which tensors a tile holds a part of the channels of."""
    node = nodes[0]
    names = {node.output, *(node.inputs if is_channelwise(graph, node) else ())} if parts > 1 else set[str]()
    return np.array([name in names for name in tensors])


def _tensors(graph: Graph, nodes: Sequence[Node]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*inputs_of(graph, nodes), *(name for node in nodes for name in node.outputs))))


def whole_peak(graph: Graph, nodes: Sequence[Node], outputs: Sequence[str], machine: Machine) -> int:
    """The most words alive in one step if nothing is tiled."""
    tensors = _tensors(graph, nodes)
    words = np.array([whole(graph, name).words for name in tensors])
    return int((_alive(graph, nodes, tensors, outputs, machine) @ words).max())


def _axis(graph: Graph, nodes: Sequence[Node], outputs: Sequence[str], tensors: Sequence[str], axis: int) -> _Axis:
    """Ranges of rows (axis 1) or columns (axis 2) of every tensor, for all useful numbers of tiles at once."""
    extents = {name: map_shape(graph.shape(name))[axis] for name in outputs}
    least = min(extents.values())
    most = min(least, MOST_TILES) if is_tileable(graph, nodes, axis) else 1
    counts = tuple(n for n in range(1, most + 1) if n == 1 or -(-least // n) < -(-least // (n - 1)))
    wanted: dict[str, tuple[Array, Array]] = {}
    for name, extent in extents.items():
        bounds = np.array([cut for n in counts for cut in cuts(extent, n)])
        wanted[name] = bounds[:, 0], bounds[:, 1]
    ranges = ranges_for(graph, nodes, wanted, axis)
    nothing = np.zeros(sum(counts), np.int64)
    sizes = np.stack([high - low for low, high in (ranges.get(name, (nothing, nothing)) for name in tensors)])
    starts = np.cumsum((0, *counts[:-1]))
    return _Axis(counts, np.maximum.reduceat(sizes, starts, axis=1).T, np.add.reduceat(sizes, starts, axis=1).T)


def _alive(
    graph: Graph, nodes: Sequence[Node], tensors: Sequence[str], outputs: Sequence[str], machine: Machine
) -> Array:
    """(steps, tensors): 1 where a tensor is held while a node runs; parts of a map lie in it, and take nothing."""
    index = {name: at for at, name in enumerate(tensors)}
    holder = {name: name for name in tensors}
    for node in nodes:
        if is_part(graph, node):
            holder.update(dict.fromkeys(node.outputs, holder[node.inputs[0]]))
    first, last = [0] * len(tensors), [0] * len(tensors)
    merged = {index[name] for name, held in holder.items() if held != name}
    for step, node in enumerate(nodes):
        for name in node.inputs:
            if name in index:
                last[index[holder[name]]] = step
        for name in node.outputs:
            if holder[name] == name:
                first[index[name]] = last[index[name]] = step
        if node.op == "Concat":
            operands = [index[name] for name in node.inputs if any(name in each.outputs for each in nodes)]
            first[index[node.output]] = min([first[at] for at in operands], default=step)
            merged.update(operands)
    merged.update(index[node.output] for node in fused_behind(graph, nodes, machine).values())
    for name in outputs:
        last[index[holder[name]]] = len(nodes) - 1
    steps = np.arange(len(nodes))[:, None]
    alive = (np.array(first) <= steps) & (steps <= np.array(last))
    alive[:, sorted(merged)] = False
    return alive.astype(np.int64)
