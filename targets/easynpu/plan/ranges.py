"""Ranges of layers with all their grids: the cost of each, and whether its tiles fit the machine.

Rows and columns are independent, so all grids of a range are evaluated at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from math import ceil, inf

import numpy as np

from npuc.errors import DoesNotFit
from npuc.host.allocation import Buffer
from npuc.ir import Array, Graph, Node
from npuc.targets.easynpu.layers.convolutions import parts_in_turn
from npuc.targets.easynpu.layers.jobs import FIELD_CHANNELS
from npuc.targets.easynpu.layers.kernels import MOST_EXTENT, MOST_STEP
from npuc.targets.easynpu.layers.nodes import (
    POINTWISE,
    WORD_OP,
    fused_behind,
    interleaved,
    is_batch_norm,
    is_part,
    map_shape,
)
from npuc.targets.easynpu.layers.tiling import legal_tiles
from npuc.targets.easynpu.layers.views import Views, surrounds, views_of
from npuc.targets.easynpu.layers.windows import (
    MapWindow,
    Sliding,
    anchored,
    is_channelwise,
    is_tileable,
    operand_of,
    ranges_for,
    whole,
)
from npuc.targets.easynpu.machine.isa import Layer
from npuc.targets.easynpu.machine.memory import LANES, feature_words, groups
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.plan.documented import Chains, Readings, TileRun, readings_of
from npuc.targets.easynpu.plan.grids import AxisRanges, Grid, JobShare, Strip, cuts, together
from npuc.targets.easynpu.plan.placement import Streams, around, placeable, shared
from npuc.targets.easynpu.plan.regions import MOST_TILES, inputs_of, outputs_of
from npuc.targets.easynpu.plan.sections import in_sections

FINEST_TILES = 8192
"""The most tiles along rows and columns together, where no grid of MOST_TILES by MOST_TILES fits."""
FINER = (24, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024)
"""Numbers of tiles along an axis beyond MOST_TILES."""


InTurn = Callable[[Node, tuple[Node, ...]], tuple[Layer, ...]]


def parts_of(graph: Graph, machine: Machine) -> InTurn:
    """`parts_in_turn` by node and the nodes fused behind it, cached."""

    @cache
    def found(node: Node, chain: tuple[Node, ...]) -> tuple[Layer, ...]:
        return parts_in_turn(graph, node, machine, chain)

    return found


class Range:
    """Consecutive nodes with every grid that may fit them; whether one does is determined on demand.

    tail: a range with the same end and a later start, whose tile ranges are reused for the nodes in both.
    in_turn, readings: `parts_of` and `readings_of`, shared by several ranges. fine: also grids of more than
    MOST_TILES along an axis. staying: groups of tensors that are in the DTCMs, beside what the machine has.
    """

    def __init__(
        self,
        graph: Graph,
        nodes: Sequence[Node],
        machine: Machine,
        shares: Mapping[str, JobShare],
        tail: Range | None = None,
        in_turn: InTurn | None = None,
        readings: Readings | None = None,
        *,
        documented: bool = False,
        fine: bool = False,
        staying: Mapping[str, int] | None = None,
    ) -> None:
        self.graph, self.fine = graph, fine
        self.staying = staying or {}
        self._in_turn = in_turn or parts_of(graph, machine)
        self.nodes = tuple(nodes)
        self.machine = machine
        self.tensors = _tensors(graph, nodes)
        self.inputs, self.outputs = inputs_of(graph, nodes), outputs_of(graph, nodes)
        new = self.nodes if tail is None else self.nodes[: -len(tail.nodes)]
        self.deep = (*(node for node in new if _is_deep(graph, node)), *(tail.deep if tail else ()))
        self.before = fused_behind(graph, nodes, machine)
        readings = readings or readings_of(graph, machine)
        self.chains = Chains(graph, nodes, machine, self.before, shares, readings) if documented else None
        alike = tail is not None and self._shapes(self.outputs) == self._shapes(tail.outputs)
        if alike and tail is not None and not len(tail.grids):  # the tail's tiles need no more
            self.axes = ()
        else:
            self.axes = self._axes(tail if tail is not None and tail.outputs == self.outputs else None)
        self.roomy: set[Grid] = set()
        """Grids whose tiles fit only in sections, if at all."""
        self.too_large: list[Grid] = []
        """Those that were tried and did not fit."""
        self.stored = sum(self._outside(name) for name in self.outputs)
        self.grids = self._grids(shares)
        self.fitting: dict[Grid, bool] = {}
        self.moved: dict[Grid, int | None] = {}
        """What the segments of documented words load, by grid; None if a tile cannot be computed."""

    def _outside(self, name: str) -> int:
        """Words of a tensor that do not stay in the DTCMs."""
        window = whole(self.graph, name)
        return window.words - window.words // groups(window.shape[0]) * self.staying.get(name, 0)

    def least(self, weight: float) -> float:
        """The cost of the cheapest strip, whether it fits or not. weight: cycles per word of traffic."""
        return float(self._costs(weight).min(initial=inf))

    def best(self, weight: float, limit: float = inf) -> Strip | None:
        """The cheapest strip that fits at a cost below the limit, if any."""
        found: Strip | None = None
        costs = self._costs(weight)
        for at in np.argsort(costs, kind="stable"):
            if costs[at] >= limit:
                break
            strip = self._at_document_s_addresses(self.strip(at)) if self.chains else self.strip(at)
            if strip is not None and strip.cost(weight) < limit and (self.chains or self.fits(strip.grid)):
                found, limit = strip, strip.cost(weight)
        return found

    def _costs(self, weight: float) -> Array:
        """The cost of the strip with each of the grids (Strip.cost)."""
        return self.grids[:, 4] + self.grids[:, 3] * weight

    def strip(self, at: int) -> Strip:
        """The strip with one of the grids."""
        *grid, traffic, cycles = self.grids[at].tolist()
        return Strip(self.nodes, Grid(*grid), traffic, cycles)

    def _at_document_s_addresses(self, strip: Strip) -> Strip | None:
        """The strip with what its segments move, if documented words can compute all its tiles."""
        if strip.grid not in self.moved:
            self.moved[strip.grid] = self._loaded(strip.grid)
        loaded = self.moved[strip.grid]
        return None if loaded is None else replace(strip, traffic_words=loaded + self.stored)

    def _loaded(self, grid: Grid) -> int | None:
        """The words of maps and weights that the segments of all tiles load; None if a tile cannot be computed."""
        counts = grid.channels, grid.rows, grid.columns
        axes = [axis.placed_kinds(count) for axis, count in zip(self.axes, counts, strict=True)]
        runs: dict[tuple[int, ...], TileRun] = {}
        for kind in product(*(range(len(kinds)) for kinds, _ in axes)):
            windows = self._windows(*(kinds[at] for (kinds, _), at in zip(axes, kind, strict=True)))
            views = views_of(self.graph, self.nodes, windows)
            assert self.chains is not None
            run = self.chains.of_tile(views, windows, self.inputs, self.outputs)
            if run is None:
                return None
            runs[kind] = run
        words, streams = 0, Streams()
        chunks, rows, columns = (tiles for _, tiles in axes)
        for (chunk, channel), row, column in product(enumerate(chunks), rows, columns):
            run = runs[channel, row, column]
            words += run.loaded_words + sum(streams.load((chunk, steps), size) for steps, size in run.streams)
        return words

    def fits(self, grid: Grid) -> bool:
        """Whether every tile can be placed, by the lifetimes of its buffers; one tile of every kind is tried."""
        if grid not in self.fitting:
            counts = grid.channels, grid.rows, grid.columns
            kinds = [axis.kinds(count) for axis, count in zip(self.axes, counts, strict=True)]
            windows = (self._windows(*each) for each in product(*kinds))
            if grid in self.roomy:
                self.fitting[grid] = self._fits_in_sections(grid, windows)
            else:
                self.fitting[grid] = all(map(self._placeable, windows))
        return self.fitting[grid]

    def _fits_in_sections(self, grid: Grid, tiles: Iterable[Mapping[str, MapWindow]]) -> bool:
        """Whether every tile can be placed in sections, by placing it; False if a smaller tile has failed."""
        larger = (each for each in self.too_large if each.channels == grid.channels)
        if any(grid.rows <= each.rows and grid.columns <= each.columns for each in larger):
            return False
        try:
            for windows in tiles:
                wanted = {name: windows[name] for name in self.outputs}
                in_sections(self.graph, self.nodes, self.machine, wanted)
        except DoesNotFit:
            self.too_large.append(grid)
            return False
        return True

    def _windows(self, channels: Array, rows: Array, columns: Array) -> dict[str, MapWindow]:
        found: dict[str, MapWindow] = {}
        for at, name in enumerate(self.tensors):
            first, end = (int(bound) * LANES for bound in channels[at])
            depth = map_shape(self.graph.shape(name))[0]
            (top, bottom), (left, right) = rows[at].tolist(), columns[at].tolist()
            found[name] = MapWindow((first, min(end, depth)), (top, bottom), (left, right))
        return found

    def _placeable(self, windows: Mapping[str, MapWindow]) -> bool:
        return placeable(*self._lifetimes(views_of(self.graph, self.nodes, windows)), self.machine)

    def _lifetimes(self, views: Views) -> tuple[list[Buffer], set[str]]:
        """The buffers of the jobs, with first and last step, and the names of those read as operands."""
        inner = {node.output for node in self.before.values()}
        buffer = {name: view.buffer for name, view in views.tensors.items()}
        first = dict.fromkeys((buffer[name] for name in self.inputs), 0)
        last = dict(first)
        operands: set[str] = set()
        replaced: dict[str, tuple[int, Node, list[str]]] = {}
        for step, node in enumerate(self.nodes):
            if node.output in inner:
                continue
            reads: list[str] = []
            chain: Node | None = node
            while chain is not None:
                names = [name for name in chain.inputs if name in buffer and name not in inner]
                reads += names
                if chain.op in ("IntAdd", "IntMul"):
                    operands.update(buffer[name] for name in names[-1:])
                chain = self.before.get(chain)
            for name in (*reads, *node.outputs):
                first.setdefault(buffer[name], step)
                last[buffer[name]] = step
            if first[buffer[node.output]] == step:
                replaced[buffer[node.output]] = step, node, replaceable_by(self.graph, node, self.before)
        last.update({buffer[name]: len(self.nodes) for name in self.outputs})
        holders: dict[str, str] = {}
        for result, (step, node, names) in replaced.items():
            for name in names:
                view, place = views.tensors[name], buffer[name]
                y = views.tensors[node.output]
                alike = (view.channels, view.height, view.width) == (y.channels, y.height, y.width)
                last_read = (
                    last[place] == step and sum(buffer.get(each) == place for each in self._read_at(step)) == 1
                )
                if alike and last_read and result not in holders and around(views, view, y) is not None:
                    holders[result] = holders.get(place, place)
        found = [Buffer(name, feature_words(*views.buffers[name]), first[name], last[name]) for name in first]
        return shared(found, holders), {holders.get(name, name) for name in operands}

    def _read_at(self, step: int) -> Iterator[str]:
        """The tensors that a chain reads, which ends with a node."""
        chain: Node | None = self.nodes[step]
        while chain is not None:
            yield from chain.inputs
            chain = self.before.get(chain)

    def _axes(self, tail: Range | None) -> tuple[AxisRanges, ...]:
        """The ranges along channels, rows and columns; empty where the range cannot be computed by itself."""
        if not self.outputs or _divides_interleaving(self.graph, self.nodes):
            return ()
        return tuple(self._axis(axis, tail) for axis in range(3))

    def _shapes(self, names: Sequence[str]) -> set[tuple[int, ...]]:
        return {map_shape(self.graph.shape(name))[1:] for name in names}

    def _axis(self, axis: int, tail: Range | None) -> AxisRanges:
        """The ranges of every tensor along an axis, for all useful numbers of tiles at once."""
        unit = 1 if axis else LANES
        extents = {name: map_shape(self.graph.shape(name))[axis] for name in self.outputs}
        counts = self._counts(axis, min(-(-extent // unit) for extent in extents.values()))
        known = tail.axes[axis] if tail is not None and tail.axes else None
        if known is not None and known.counts == counts:
            before = self.nodes[: -len(tail.nodes)] if tail is not None else ()
            ranges = ranges_for(self.graph, before, known.ranges, axis)
        else:
            ranges = ranges_for(self.graph, self.nodes, _tiled(extents, counts, unit), axis)
        nothing = np.zeros(sum(counts), np.int64)
        held = anchored(self.graph, self.chains.chains, ranges) if self.chains and axis == 1 else ranges
        held = {name: held.get(name, (nothing, nothing)) for name in self.tensors}
        for name in self.staying if axis == 0 else ():
            low, high = (np.maximum(each, LANES * self.staying[name]) for each in held[name])
            held[name] = low, high
        return AxisRanges.of(
            counts, unit, ranges, held, known if known is not None and known.counts == counts else None
        )

    def _counts(self, axis: int, least: int) -> tuple[int, ...]:
        """Useful numbers of tiles for an axis with this many units."""
        if not _divides(self.graph, self.nodes, axis):
            return (1,)
        most = min(least, MOST_TILES if axis else least)
        finer = (n for n in FINER if self.fine and axis and n <= least)
        return (*(n for n in range(1, most + 1) if n == 1 or -(-least // n) < -(-least // (n - 1))), *finer)

    def _stated(self, at: int) -> Array:
        """The numbers of tiles along an axis whose extents and padding fit the fields of a word.

        A tile of windows that lie wholly in the padding behind the map states it as padding before.
        """
        axis = self.axes[at]
        fitting = axis.largest.max(axis=1) <= MOST_EXTENT
        for node in self.deep:
            slide, (low, high) = Sliding.of(self.graph, node, at), axis.ranges[node.output]
            behind = low * slide.stride - slide.padding >= slide.extent
            behind &= (high - 1 - low) * slide.stride + slide.reach > MOST_STEP
            fitting &= ~np.logical_or.reduceat(behind, np.cumsum((0, *axis.counts[:-1])))
        return fitting

    def _undivided(self, rows: Array, columns: Array) -> Array:
        """The grids in which layers that are loaded part by part have windows of one tile each.

        rows, columns: (counts, tensors), the largest extents for every number of tiles.
        """
        fitting = np.ones((len(rows), len(columns)), np.bool_)
        for node in self.nodes:
            at = self.tensors.index(node.output)
            for part in self._in_turn(node, self._behind(node)):
                fitting &= legal_tiles(part, self.machine, rows[:, None, at], columns[None, :, at])
        return fitting

    def _behind(self, node: Node) -> tuple[Node, ...]:
        """The nodes fused behind a node, in order."""
        followers = {producer: reader for reader, producer in self._fused()}
        chain = [node]
        while chain[-1] in followers:
            chain.append(followers[chain[-1]])
        return tuple(chain[1:])

    def _share(self, node: Node) -> Array:
        """The part of every tensor that is held at once: two sections of what a layer alone reads part by part."""
        channels = {name: self.graph.shape(name)[1] for name in self.inputs if self.graph.readers[name] == (node,)}
        return np.array([min(2 * FIELD_CHANNELS / channels.get(name, 1), 1) for name in self.tensors])

    def _fused(self) -> Iterator[tuple[Node, Node]]:
        """Pairs of a fused node and the node that it continues on."""
        known = {node: node for node in self.nodes}
        return ((known[reader], producer) for reader, producer in self.before.items())

    def _grids(self, shares: Mapping[str, JobShare]) -> Array:
        """Every grid whose largest tile takes no more words than the machine has, with the numbers of its strip.

        (grids, 5) int64: tiles along channels, rows and columns; words moved; cycles.
        """
        found = [np.zeros((0, 5), np.int64)]
        if not self.axes:
            return found[0]
        channels, rows, columns = self.axes
        capacities = self.machine.fmap_words, self.machine.skip_words
        alive = _alive(self.nodes, self.tensors, self.outputs, self.before, self.graph)
        inputs = [self.tensors.index(name) for name in self.inputs]
        mine = [shares.get(name, JobShare()) if name not in self.inputs else JobShare() for name in self.tensors]
        weights, tables = together(mine)
        cycles = np.array([each.row_cycles(self.machine) for each in mine])
        sums = rows.total[:, None] * columns.total[None]
        largest = rows.largest[:, None] * columns.largest[None]
        tall, wide = (self._stated(axis) for axis in (1, 2))
        tiles = np.multiply.outer(rows.counts, columns.counts)
        few = tiles <= max(FINEST_TILES, MOST_TILES**2)
        legal = tall[:, None] & wide & few & self._undivided(rows.largest, columns.largest)
        sums_up = [node for node in self.nodes if node.op == "IntConv" and not is_channelwise(self.graph, node)]
        sections = self.chains is None and len(sums_up) == 1 and not self.staying
        apart = sections and bool(self._in_turn(sums_up[0], self._behind(sums_up[0])))
        chunks = groups(map_shape(self.graph.shape(self.outputs[0]))[0])
        for parts, deepest, depth in zip(channels.counts, channels.largest, channels.total, strict=True):
            fitting = legal & _may_fit(largest * deepest, alive, capacities)
            resident = tables + (weights - tables) * ceil(chunks / parts) / chunks <= self.machine.weight_words
            stream = weights + tables * (parts - 1) * (not resident or self.chains is not None)
            again = stream * (not resident)
            if self.chains is not None:  # at least; segments are known once a tile has been arranged
                again = max(stream - parts * self.machine.weight_words, 0)
            traffic = (sums * depth)[..., inputs].sum(axis=-1) + self.stored + stream + again * (tiles - 1)
            if sections and not resident and (parts == 1 or (apart and parts == chunks)):
                share = self._share(sums_up[0]) if apart and parts == chunks else 1
                short = legal & ~fitting & self._in_sections(largest * deepest * share, alive)
                fitting = fitting | short
                self.roomy |= {Grid(parts, rows.counts[r], columns.counts[c]) for r, c in np.argwhere(short)}
            row, column = np.nonzero(fitting)
            grids = np.full(len(row), parts), np.take(rows.counts, row), np.take(columns.counts, column)
            found.append(np.stack([*grids, traffic[fitting], sums[fitting] @ cycles], axis=1))
        return np.concatenate(found)

    def _in_sections(self, words: Array, alive: Array) -> Array:
        """The grids for which a placement in sections is not ruled out; words: (..., tensors).

        Only what a layer sums over is there with all its channels: results that nothing reads leave the memory,
        and what layers read channel by channel is computed or loaded so.
        """
        held = alive.copy()
        for at, name in enumerate(self.tensors):
            readers = (node for node in self.nodes if name in node.inputs)
            held[:, at] &= any(not is_channelwise(self.graph, node) for node in readers)
        return (words @ held.T).max(axis=-1) <= self.machine.fmap_words + self.machine.skip_words


def replaceable_by(graph: Graph, node: Node, before: Mapping[Node, Node]) -> list[str]:
    """The maps that the result of a chain, which ends with a node, may replace (placement.replaceable_by)."""
    chain = [node]
    while chain[0] in before:
        chain.insert(0, before[chain[0]])
    if node.op in ("Concat", "DepthToSpace") or any(each.op == WORD_OP for each in graph.readers[node.output]):
        return []
    operand, head = operand_of(chain), chain[0]
    alone = head.op in (*POINTWISE, "IntAdd", "IntSum", "IntMul") or is_batch_norm(graph, head)
    mapped = [name for name in head.inputs[:2] if name not in graph.constants] if alone else []
    return list(dict.fromkeys([*([operand] if operand else []), *mapped]))


def _may_fit(words: Array, alive: Array, capacities: Sequence[int]) -> Array:
    """The grids for which a placement is not ruled out; words: (..., tensors), alive: (steps, tensors).

    Two memories hold the live maps. Each has room for one map larger than half of the larger memory, and for two
    larger than a third.
    """
    most = max(capacities)
    possible = (words.max(axis=-1) <= most) & ((words @ alive.T).max(axis=-1) <= sum(capacities))
    for parts in (2, 3):
        possible &= ((words * parts > most) @ alive.T).max(axis=-1) <= 2 * (parts - 1)
    return possible


def _is_deep(graph: Graph, node: Node) -> bool:
    """Whether windows reach further behind a map than a word can state of padding before it."""
    if node.op not in ("IntConv", "MaxPool"):
        return False
    slides = [Sliding.of(graph, node, axis) for axis in (1, 2)]
    return any((s.outputs - 1) * s.stride - s.padding + s.reach - s.extent > MOST_STEP for s in slides)


def _divides_interleaving(graph: Graph, nodes: Sequence[Node]) -> bool:
    """Whether the range contains only one of a DepthToSpace and the concatenation that it interleaves."""
    inside = set(nodes)
    pairs = ((node, interleaved(graph, node)) for node in graph.nodes if node.op == "DepthToSpace")
    return any(concat is not None and (node in inside) != (concat in inside) for node, concat in pairs)


def _tensors(graph: Graph, nodes: Sequence[Node]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*inputs_of(graph, nodes), *(name for node in nodes for name in node.outputs))))


def whole_peak(graph: Graph, nodes: Sequence[Node], outputs: Sequence[str], machine: Machine) -> int:
    """The most words alive in one step if nothing is tiled."""
    tensors = _tensors(graph, nodes)
    words = np.array([whole(graph, name).words for name in tensors])
    return int((_alive(nodes, tensors, outputs, fused_behind(graph, nodes, machine), graph) @ words).max())


def _tiled(extents: Mapping[str, int], counts: Sequence[int], unit: int) -> dict[str, tuple[Array, Array]]:
    """The tiles of outputs with these extents, for every number of tiles, one after the other."""
    found: dict[str, tuple[Array, Array]] = {}
    for name, extent in extents.items():
        bounds = unit * np.array([cut for n in counts for cut in cuts(-(-extent // unit), n)])
        found[name] = bounds[:, 0], np.minimum(bounds[:, 1], extent)
    return found


def _divides(graph: Graph, nodes: Sequence[Node], axis: int) -> bool:
    """Whether a range can be tiled along an axis; along channels, only its first layer may sum over them."""
    if axis:
        return is_tileable(graph, nodes, axis)
    whole_maps = all(is_tileable(graph, nodes, each) for each in range(3))
    return whole_maps and all(is_channelwise(graph, node) for node in nodes[1:])


def _alive(
    nodes: Sequence[Node],
    tensors: Sequence[str],
    outputs: Sequence[str],
    before: Mapping[Node, Node],
    graph: Graph,
) -> Array:
    """(steps, tensors): 1 where a tensor is alive while a node runs; parts of another map take no words."""
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
            operands = [index[name] for name in node.inputs]
            first[index[node.output]] = min(first[at] for at in operands)
            merged.update(operands)
        if (concat := interleaved(graph, node)) is not None and concat.output in index:
            first[index[node.output]] = first[index[concat.output]]
            merged.add(index[concat.output])
    merged.update(index[node.output] for node in before.values())
    for name in outputs:
        last[index[holder[name]]] = len(nodes) - 1
    steps = np.arange(len(nodes))[:, None]
    alive = (np.array(first) <= steps) & (steps <= np.array(last))
    for node in nodes:
        if surrounds(node) and node.inputs[0] in index:  # which may lie inside
            alive[:, index[node.inputs[0]]] &= ~alive[:, index[node.output]]
    for step, node in enumerate(nodes):
        for name in replaceable_by(graph, node, before):
            alike = name in index and graph.shape(name) == graph.shape(node.output)
            if alike and last[index[name]] == step and name not in outputs:
                alive[step, index[name]] = False
                break
    alive[:, sorted(merged)] = False
    return alive.astype(np.int64)
