"""Maps that exceed the DTCMs: ranges of layers computed tile by tile, with halo, so that the host moves least.

The nodes of a region are cut into consecutive ranges; each range is computed as a uniform grid of tiles of its
outputs, and every tile loads the windows it needs, runs the whole range, and stores its part. Dynamic programming
over the cuts minimises the cycles of computation (halo is computed more than once) plus those of the transfers.
Class of plans: contiguous ranges of at most 24 nodes, uniform grids of up to 16 x 16 tiles, channel groups for
single layers. Rows and columns are independent, so all grids of a range are evaluated at once.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise, product
from math import ceil, prod

import numpy as np

from npuc.allocation import Buffer
from npuc.errors import DoesNotFit
from npuc.ir import Array, Graph, Node
from npuc.ops.windows import window_of
from npuc.targets.easynpu.machine import Machine
from npuc.targets.easynpu.memory import BS_WORDS, LANES, feature_words, groups
from npuc.targets.easynpu.placement import placeable
from npuc.targets.easynpu.regions import inputs_of, outputs_of
from npuc.targets.easynpu.selection import fused_behind
from npuc.targets.easynpu.views import Views, interleaved, map_shape, views_of
from npuc.targets.easynpu.windows import Window, is_channelwise, is_tileable, whole, windows_for

MOST_TILES = 16
MOST_NODES = 24
MOST_EXTENT = 256
"""Rows or columns of a map that the instruction word can say."""
MOST_TRIES = 32
"""Grids, cheapest first, of which the first that can really be placed is taken."""
OBJECTIVES = ("time", "traffic", "cycles")


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
    """A range of nodes, its grid, and what the plan expects of it."""

    nodes: tuple[Node, ...]
    grid: Grid
    traffic_words: int
    compute_cycles: float


def plan(graph: Graph, nodes: Sequence[Node], machine: Machine, objective: str = "time") -> list[Strip]:
    """The best cuts and grids of a region.

    objective: "time" (cycles of computation and transfer), "traffic" or "cycles" alone (the other breaks ties).
    Raises DoesNotFit (E302) where a single node fits in no tile.
    """
    weight = {"time": machine.word_bytes / machine.host_bytes_per_cycle, "traffic": 1e6, "cycles": 1e-6}[objective]
    best: list[tuple[float, list[Strip]] | None] = [(0.0, [])]
    for end in range(1, len(nodes) + 1):
        options: list[tuple[float, list[Strip]]] = []
        for start in range(end - 1, max(-1, end - 1 - MOST_NODES), -1):
            before = best[start]
            piece = nodes[start:end]
            if before is None or (strip := best_grid(graph, piece, machine, weight)) is None:
                continue
            cost = strip.compute_cycles + strip.traffic_words * weight
            options.append((before[0] + cost, [*before[1], strip]))
        best.append(min(options, key=lambda option: option[0], default=None))
    found = best[-1]
    if found is None:
        at = next(position for position, each in enumerate(best) if each is None)
        raise _nothing_fits(graph, nodes[at - 1], machine)
    return found[1]


def _nothing_fits(graph: Graph, node: Node, machine: Machine) -> DoesNotFit:
    needed = sum(whole(graph, name).words for name in (*inputs_of(graph, [node]), *node.outputs))
    return DoesNotFit(
        "E302",
        f"no tile of it fits: input and output take {needed} words as a whole",
        node=node.name,
        op=node.op.removeprefix("Int"),
        tensor=node.output,
        limit=f"fmap_words = {machine.fmap_words}, skip_words = {machine.skip_words}",
        remedy=f"a machine with fmap_words = {needed} (--machine FILE)",
    )


def best_grid(graph: Graph, nodes: Sequence[Node], machine: Machine, weight: float) -> Strip | None:
    """The cheapest grid with which a range fits the memories; None if there is none. weight: cycles a word."""
    if _divides_interleaving(graph, nodes):
        return None
    outputs = outputs_of(graph, nodes)
    shapes = {map_shape(graph.shape(name))[1:] for name in outputs}
    if not outputs or (len(shapes) > 1 and min(min(shape) for shape in shapes) < 2):
        return None
    traffic = sum(whole(graph, name).words for name in (*inputs_of(graph, nodes), *outputs))
    if whole_peak(graph, nodes, outputs, machine) <= machine.fmap_words + machine.skip_words and fits(
        graph, nodes, Grid(), machine
    ):
        cycles = sum(_node_work(graph, node) * prod(map_shape(graph.shape(node.output))[1:]) for node in nodes)
        return Strip(tuple(nodes), Grid(), traffic + weight_words(graph, nodes), cycles)
    strips = sorted(
        _grids(graph, nodes, outputs, machine),
        key=lambda strip: strip.compute_cycles + strip.traffic_words * weight,
    )
    return next((strip for strip in strips[:MOST_TRIES] if fits(graph, nodes, strip.grid, machine)), None)


def _divides_interleaving(graph: Graph, nodes: Sequence[Node]) -> bool:
    """Whether a DepthToSpace and the concatenation that it interleaves are not both in the range."""
    inside = {id(node) for node in nodes}
    pairs = ((node, interleaved(graph, node)) for node in graph.nodes)
    return any(concat is not None and (id(node) in inside) != (id(concat) in inside) for node, concat in pairs)


def tiles_of(graph: Graph, nodes: Sequence[Node], grid: Grid) -> list[dict[str, Window]]:
    """The windows of a range's outputs, tile by tile."""
    outputs = outputs_of(graph, nodes)
    windows = [list(grid.windows(map_shape(graph.shape(name)))) for name in outputs]
    if len({len(each) for each in windows}) > 1:
        return []
    return [dict(zip(outputs, tile, strict=True)) for tile in zip(*windows, strict=True)]


def fits(graph: Graph, nodes: Sequence[Node], grid: Grid, machine: Machine) -> bool:
    """Whether the tile that takes the most words can be placed: the buffers of its views, by lifetime."""
    tiles = tiles_of(graph, nodes, grid)
    if not tiles:
        return False
    windows = max(
        (windows_for(graph, nodes, tile) for tile in tiles), key=lambda w: sum(x.words for x in w.values())
    )
    if max(max(window.shape[1:]) for window in windows.values()) > MOST_EXTENT:
        return False
    views = views_of(graph, nodes, {name: window.shape for name, window in windows.items()})
    buffers, operands = _lifetimes(graph, nodes, views, machine)
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


def weight_words(graph: Graph, nodes: Sequence[Node]) -> int:
    """Words that the nodes stream from the weight DTCM."""
    total = 0
    for node in nodes:
        if node.op == "IntConv":
            shape = graph.shape(node.inputs[1])
            depth = 1 if is_channelwise(graph, node) else shape[1]
            total += groups(shape[0]) * (BS_WORDS + depth * shape[2] * shape[3])
        elif node.op in ("IntAdd", "IntMul"):
            total += groups(graph.shape(node.output)[1]) * BS_WORDS
    return total


@dataclass(frozen=True)
class _Axis:
    """For every number of tiles along an axis: per tensor the largest range and the sum of all ranges."""

    counts: tuple[int, ...]
    largest: Array
    """(counts, tensors)"""
    total: Array


def _grids(graph: Graph, nodes: Sequence[Node], outputs: Sequence[str], machine: Machine) -> Iterator[Strip]:
    """Every grid whose largest tile fits by its words, with what it costs."""
    tensors = tuple(dict.fromkeys((*inputs_of(graph, nodes), *(name for node in nodes for name in node.outputs))))
    tileable = is_tileable(nodes)
    rows = _axis(graph, nodes, outputs, tensors, 1, tileable)
    columns = _axis(graph, nodes, outputs, tensors, 2, tileable)
    alive = _alive(graph, nodes, tensors, outputs, machine)
    inputs = [tensors.index(name) for name in inputs_of(graph, nodes)]
    stored = [tensors.index(name) for name in outputs]
    depth = np.array([groups(graph.shape(name)[1]) for name in tensors])
    most_parts = groups(graph.shape(nodes[0].output)[1]) if len(nodes) == 1 and tileable else 1
    work = _work(graph, nodes, tensors)
    weights = weight_words(graph, nodes)
    sums = rows.total[:, None] * columns.total[None]
    largest = rows.largest[:, None] * columns.largest[None]
    for parts in range(1, most_parts + 1):
        chunk = _chunk_depth(graph, nodes, tensors, depth, parts)
        peaks = (largest * chunk) @ alive.T
        fitting = peaks.max(axis=-1) <= machine.fmap_words + machine.skip_words
        fitting &= (largest * chunk).max(axis=-1) <= max(machine.fmap_words, machine.skip_words)
        repeats = np.where(chunk == depth, parts, 1) if parts > 1 else np.ones_like(depth)
        loaded = (sums * depth * repeats)[..., inputs].sum(axis=-1)
        kept = np.array([prod(map_shape(graph.shape(tensors[at]))[1:]) * depth[at] for at in stored]).sum()
        resident = weights <= machine.weight_words * parts
        cycles = sums @ work
        extents = np.maximum(rows.largest.max(axis=1)[:, None], columns.largest.max(axis=1)[None])
        for r, c in np.argwhere(fitting & (extents <= MOST_EXTENT)):
            tiles = 1 if resident else rows.counts[r] * columns.counts[c]
            traffic = int(loaded[r, c] + kept + weights * tiles)
            grid = Grid(parts, rows.counts[r], columns.counts[c])
            yield Strip(tuple(nodes), grid, traffic, float(cycles[r, c]))


def whole_peak(graph: Graph, nodes: Sequence[Node], outputs: Sequence[str], machine: Machine) -> int:
    """The most words alive in one step if nothing is tiled."""
    tensors = tuple(dict.fromkeys((*inputs_of(graph, nodes), *(name for node in nodes for name in node.outputs))))
    words = np.array([whole(graph, name).words for name in tensors])
    return int((_alive(graph, nodes, tensors, outputs, machine) @ words).max())


def _chunk_depth(graph: Graph, nodes: Sequence[Node], tensors: Sequence[str], depth: Array, parts: int) -> Array:
    """Channel groups of each tensor's largest tile with this many channel parts."""
    if parts == 1:
        return depth
    node = nodes[0]
    split = {node.output, *(node.inputs if is_channelwise(graph, node) else ())}
    return np.array([ceil(d / parts) if name in split else d for name, d in zip(tensors, depth, strict=True)])


def _axis(
    graph: Graph, nodes: Sequence[Node], outputs: Sequence[str], tensors: Sequence[str], axis: int, tileable: bool
) -> _Axis:
    """Ranges of rows (axis 1) or columns (axis 2) of every tensor, for all useful numbers of tiles at once."""
    extents = {name: map_shape(graph.shape(name))[axis] for name in tensors}
    least = min(extents[name] for name in outputs)
    counts = tuple(
        n
        for n in range(1, (min(least, MOST_TILES) if tileable else 1) + 1)
        if n == 1 or -(-least // n) < -(-least // (n - 1))
    )
    ranges: dict[str, Array] = {
        name: np.array([cut for n in counts for cut in cuts(extents[name], n)]).T for name in outputs
    }

    def ask(name: str, low: Array, high: Array) -> None:
        if name in ranges:
            low, high = np.minimum(ranges[name][0], low), np.maximum(ranges[name][1], high)
        ranges[name] = np.stack([low, high])

    for node in reversed(nodes):
        for name in node.outputs:
            if name not in ranges:
                continue
            low, high = ranges[name]
            for x in (each for each in node.inputs if each in extents):
                ask(x, *_asked(graph, node, x, low, high, extents, axis))
    sizes = np.stack(
        [ranges[name][1] - ranges[name][0] if name in ranges else np.zeros(sum(counts), int) for name in tensors]
    )
    bounds = np.cumsum((0, *counts))
    pieces = [sizes[:, start:end] for start, end in pairwise(bounds)]
    return _Axis(counts, np.stack([p.max(axis=1) for p in pieces]), np.stack([p.sum(axis=1) for p in pieces]))


def _asked(
    graph: Graph, node: Node, x: str, low: Array, high: Array, extents: Mapping[str, int], axis: int
) -> tuple[Array, Array]:
    """The range of an input that a node needs for ranges of its output: windows.needed for many tiles."""
    extent = extents[x]
    if node.op in ("IntConv", "MaxPool"):
        kernel = graph.shape(node.inputs[1])[2:] if node.op == "IntConv" else node.integers("kernel_shape")
        window, at = window_of(node, (kernel[0], kernel[1])), axis - 1
        stride, padding, reach = window.strides[at], window.begins[at], window.reach[at]
        first = np.clip(low * stride - padding, 0, extent - 1)
        last = np.where(high == extents[node.output], extent, (high - 1) * stride - padding + max(reach, stride))
        return first, np.maximum(np.minimum(last, extent), first + 1)
    moves = node.op in ("Slice", "Split", "Reshape", "DepthToSpace", "IntReshape")
    if extent == 1 or moves or extent != extents[node.output]:
        return np.zeros_like(low), np.full_like(high, extent)
    return low, high


def _alive(
    graph: Graph, nodes: Sequence[Node], tensors: Sequence[str], outputs: Sequence[str], machine: Machine
) -> Array:
    """(steps, tensors): 1 where a tensor is held while a node runs; operands of a concatenation lie in it."""
    index = {name: at for at, name in enumerate(tensors)}
    first = [0] * len(tensors)
    last = [0] * len(tensors)
    merged: set[int] = set()
    for step, node in enumerate(nodes):
        for name in node.inputs:
            if name in index:
                last[index[name]] = step
        for name in node.outputs:
            first[index[name]] = last[index[name]] = step
        if node.op == "Concat":
            operands = [index[name] for name in node.inputs if any(name in each.outputs for each in nodes)]
            first[index[node.output]] = min([first[at] for at in operands], default=step)
            merged.update(operands)
    merged.update(index[node.output] for node in fused_behind(graph, nodes, machine).values())
    for name in outputs:
        last[index[name]] = len(nodes) - 1
    steps = np.arange(len(nodes))[:, None]
    alive = (np.array(first) <= steps) & (steps <= np.array(last))
    alive[:, sorted(merged)] = False
    return alive.astype(np.int64)


def _work(graph: Graph, nodes: Sequence[Node], tensors: Sequence[str]) -> Array:
    """Compute cycles per pixel of each tensor: groups times taps, and input channels where dense."""
    found = np.zeros(len(tensors))
    for node in nodes:
        found[tensors.index(node.output)] = _node_work(graph, node)
    return found


def _node_work(graph: Graph, node: Node) -> int:
    taps = 1
    if node.op == "IntConv":
        shape = graph.shape(node.inputs[1])
        taps = prod(shape[2:]) * (1 if is_channelwise(graph, node) else shape[1])
    elif node.op == "MaxPool":
        taps = prod(node.integers("kernel_shape"))
    return taps * groups(graph.shape(node.output)[1])
