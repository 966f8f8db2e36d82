"""Dilated convolutions whose taps lie so far apart that a tile would load the rows and columns between them.

Each block of the result has the same taps inside the map: a convolution of its own, which reads one window of the
map per tap (row or column of taps), as further channels. The host loads the windows from the map and stores the
blocks into the result: neither is copied. Taps in padding are not computed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby, permutations, product
from math import inf, prod

import numpy as np

from npuc.errors import NpucError
from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import AVERAGE, AXIS, BLOCKS, DILATIONS, GROUP, PADDING, PADS, RELU, STARTS
from npuc.ops.windows import window_of
from npuc.targets.easynpu.layers.nodes import concat_offsets, fused_behind
from npuc.targets.easynpu.layers.views import surrounds
from npuc.targets.easynpu.layers.windows import Sliding, is_channelwise, whole
from npuc.targets.easynpu.machine.memory import BS_WORDS, LANES, groups
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.plan.grids import cuts, shares_of
from npuc.targets.easynpu.plan.ranges import Range
from npuc.targets.easynpu.plan.regions import run_of

MOST_BLOCKS = 64
GAIN = 0.95
"""Blocks are taken where they cost at most this part of what the convolution costs as it is."""


@frozen
class TensorWindow:
    """What a tensor is of another one: the first channel, row and column."""

    tensor: str
    start: tuple[int, int, int] = (0, 0, 0)

    def shifted(self, start: tuple[int, int, int]) -> tuple[int, int, int]:
        """A position in the window as one in the tensor."""
        (channel, row, column), (c, r, k) = self.start, start
        return channel + c, row + r, column + k


@frozen
class Span:
    """Rows (or columns) of a result, and the taps that meet the map there; None where taps stay together."""

    first: int
    end: int
    taps: tuple[int, ...] | None


@frozen
class ResultBlock:
    """A part of a result: rows and columns; of each window of the map the first row and column, and the taps."""

    rows: Span
    columns: Span
    size: tuple[int, int]
    """Rows and columns of a window."""
    windows: tuple[tuple[tuple[int, int], tuple[slice, slice]], ...]


def with_taps_apart(graph: Graph, machine: Machine) -> tuple[Graph, frozenset[str]]:
    """The integer graph with such convolutions in blocks, and its tensors that are windows of others.

    What is a window of another tensor is moved from and to that one (`places`).
    """
    nodes: list[Node] = []
    constants, names, apart = dict[str, Array](), graph.names(), set[str]()
    continued = set(fused_behind(graph, graph.nodes, machine).values())
    for node in graph.nodes:
        given, before = _without_padding(graph, node)
        if not _is_wide(graph, given, machine) or not (
            blocks := _choose_blocks(graph, given, before, machine, continued)
        ):
            nodes.append(node)
            continue
        nodes = [each for each in nodes if each not in before]
        node = given
        w = graph.constants[node.inputs[1]]
        lines: dict[Span, list[str]] = {}
        for number, block in enumerate(blocks):
            stem = f"{node.output}/block{number}"
            read: list[str] = []
            for (row, column), _ in block.windows:
                read.append(names.new(f"{stem}/window"))
                ends = row + block.size[0], column + block.size[1]
                cut = {"axes": (2, 3), "starts": (row, column), "ends": ends, "steps": (1, 1)}
                nodes.append(Node("Slice", (node.inputs[0],), (read[-1],), cut, read[-1], node.sources))
            apart.update(read)
            joined = read[0] if len(read) == 1 else names.new(f"{stem}/windows")
            if len(read) > 1:
                nodes.append(Node("Concat", tuple(read), (joined,), {"axis": 1}, joined, node.sources))
            weights, result = names.new(f"{stem}/weights"), names.new(stem)
            constants[weights] = np.concatenate([w[:, :, taps[0], taps[1]] for _, taps in block.windows], axis=1)
            inputs = (joined, weights, *node.inputs[2:])
            made = replace(node, inputs=inputs, outputs=(result,), name=result)
            nodes.append(made.with_attrs(**_window(node, block, constants[weights].shape[2:])))
            lines.setdefault(block.rows, []).append(result)
        parts = [_join(nodes, node, names.new(f"{node.output}/line"), each, 3) for each in lines.values()]
        apart.add(_join(nodes, node, node.output, parts, 2))
        apart.update(parts)
    return (rebuild(graph, nodes, constants), frozenset(apart)) if apart else (graph, frozenset())


def places(graph: Graph, apart: frozenset[str]) -> dict[str, TensorWindow]:
    """For every tensor that is a window of another, which one."""
    found: dict[str, TensorWindow] = {}
    for node in reversed(graph.nodes):
        if node.output not in apart:
            continue
        if node.op == "Slice":
            row, column = STARTS(node)
            found[node.output] = TensorWindow(node.inputs[0], (0, row, column))
            continue
        joined, along = found.get(node.output, TensorWindow(node.output)), AXIS(node) == 3
        for each, offset in zip(node.inputs, concat_offsets(graph, node) or (), strict=True):
            found[each] = replace(joined, start=joined.shifted((0, 0, offset) if along else (0, offset, 0)))
    return found


def with_sums_in_bands(graph: Graph, machine: Machine) -> tuple[Graph, dict[str, TensorWindow]]:
    """The integer graph in which sums follow the convolutions that they read band by band, where they must.

    The map before the convolution, its result and the other operand do not fit together, but few rows of the
    result do: a band of rows is computed and added before the next one. Also: of which tensor each band is a part.
    """
    sums = {node: found for node in graph.nodes if (found := _find_band(graph, node, machine)) is not None}
    inside = {conv for conv, _ in sums.values()}
    nodes, names, windows = list[Node](), graph.names(), dict[str, TensorWindow]()

    def part(node: Node, name: str, rows: tuple[int, int]) -> str:
        made = names.new(f"{name}/rows{rows[0]}")
        cut = {"axes": (2,), "starts": rows[:1], "ends": rows[1:], "steps": (1,)}
        nodes.append(Node("Slice", (name,), (made,), cut, made, node.sources))
        return made

    for node in graph.nodes:
        if node not in sums:
            nodes += [] if node in inside else [node]
            continue
        conv, most = sums[node]
        slide, pads = Sliding.of(graph, conv, 1), PADS(conv) or (0,) * 4
        height, parts = slide.outputs, list[str]()
        for low, high in cuts(height, -(-height // most)):
            first = low * slide.stride - slide.padding
            end = first + (high - low - 1) * slide.stride + slide.reach
            x = part(conv, conv.inputs[0], (max(first, 0), min(end, slide.extent)))
            y, total = (names.new(f"{each}/rows{low}") for each in (conv.output, node.output))
            around = max(-first, 0), pads[1], max(end - slide.extent, 0), pads[3]
            band = replace(conv, inputs=(x, *conv.inputs[1:]), outputs=(y,)).with_attrs(pads=around)
            operands = [y if each == conv.output else part(node, each, (low, high)) for each in node.inputs[:2]]
            nodes += [band, replace(node, inputs=(*operands, *node.inputs[2:]), outputs=(total,))]
            windows |= {y: TensorWindow(conv.output, (0, low, 0)), total: TensorWindow(node.output, (0, low, 0))}
            parts.append(total)
        _join(nodes, node, node.output, parts, 2)
    if not sums:
        return graph, {}
    made = rebuild(graph, nodes)
    return replace(made, tensors={**graph.tensors, **made.tensors}), windows


def _find_band(graph: Graph, node: Node, machine: Machine) -> tuple[Node, int] | None:
    """The convolution that a sum reads beside another map, and the rows of a band; none where all fit together."""
    memories = machine.fmap_words, machine.skip_words
    for name, second in permutations(node.inputs[:2]) if node.op == "IntSum" else ():
        conv = graph.producers.get(name)
        if conv is None or conv.op != "IntConv" or graph.only_reader(name) is not node:
            continue
        before, other, result = (_map_words(graph, each) for each in (conv.inputs[0], second, name))
        rooms = [(one - before, two - other) for one, two in (memories, memories[::-1])]
        free = max((max(room) for room in rooms if min(room) >= 0), default=0)
        rows = (free - 1) // (result // graph.shape(name)[2])  # beside the pixel of a padding value
        if rows > 0 and before + other + result > sum(memories):
            return conv, rows
    return None


def _map_words(graph: Graph, name: str) -> int:
    """Words of a map, or of the copy with padding inside which it lies."""
    copies = [each.output for each in graph.readers[name] if surrounds(each)]
    return max(whole(graph, each).words for each in (name, *copies))


def _without_padding(graph: Graph, node: Node) -> tuple[Node, tuple[Node, ...]]:
    """A convolution with the padding that copies put before its map, and these copies."""
    copies: tuple[Node, ...] = ()
    while node.op == "IntConv" and (copy := graph.producers.get(node.inputs[0])) is not None:
        if not _is_copy(graph, copy) or graph.only_reader(copy.output) is None:
            break
        pads = tuple(
            one + other for one, other in zip(PADS(node) or (0,) * 4, PADS(copy) or (0,) * 4, strict=True)
        )
        node = replace(node, inputs=(copy.inputs[0], *node.inputs[1:])).with_attrs(pads=pads)
        copies = (copy, *copies)
    return node, copies


def _is_copy(graph: Graph, node: Node) -> bool:
    """Whether a node only surrounds its map with zeros."""
    if not is_channelwise(graph, node) or node.op != "IntConv" or PADDING(node) or RELU(node):
        return False
    w, bias, shift = (graph.constants[name] for name in node.inputs[1:4])
    window = window_of(node, w.shape[2:])
    alone = w.shape[2:] == (1, 1) == window.strides and not bias.any()
    return bool(alone and (w[:, 0, 0, 0].astype(np.int64) == 2 ** shift.astype(np.int64)).all())


def _join(nodes: list[Node], node: Node, name: str, parts: Sequence[str], axis: int) -> str:
    nodes.append(Node("Concat", tuple(parts), (name,), {"axis": axis}, name, node.sources))
    return name


def _window(node: Node, block: ResultBlock, kernel: Sequence[int]) -> Mapping[str, tuple[int, ...]]:
    """The attributes of a block's convolution: along axes whose taps are channels, none of the node's."""
    window = window_of(node, (1, 1))
    together = [span.taps is None for span in (block.rows, block.columns)]
    pads = [
        each if kept else 0
        for side in (window.begins, window.ends)
        for each, kept in zip(side, together, strict=True)
    ]
    dilations = tuple(each if kept else 1 for each, kept in zip(window.dilations, together, strict=True))
    return {"kernel_shape": tuple(kernel), "pads": tuple(pads), "dilations": dilations}


def _is_wide(graph: Graph, node: Node, machine: Machine) -> bool:
    """Whether a node is a dense dilated convolution of stride 1 whose maps exceed the DTCMs, in whole words."""
    if node.op != "IntConv" or GROUP(node) > 1 or BLOCKS(node) > 1 or PADDING(node) or AVERAGE(node):
        return False
    if max(DILATIONS(node) or (1,)) == 1 or graph.shape(node.inputs[0])[1] % LANES:
        return False
    words = sum(whole(graph, name).words for name in (node.inputs[0], node.output))
    return max(window_of(node, (1, 1)).strides) == 1 and words > machine.fmap_words + machine.skip_words


def _choose_blocks(
    graph: Graph, node: Node, before: Sequence[Node], machine: Machine, continued: set[Node]
) -> tuple[ResultBlock, ...]:
    """The blocks that cost least; none if the convolution costs no more as it is.

    before: copies that pad its map. continued: nodes with others fused behind them, which would load and
    store the result again.
    """
    weight = machine.word_bytes / machine.host_bytes_per_cycle
    kinds = [tuple(_blocks(graph, node, *folded)) for folded in ((True, False), (False, True), (True, True))]
    priced = [(_cost(graph, node, blocks, weight), blocks) for blocks in kinds if blocks]
    if not priced:
        return ()
    cost, blocks = min(priced, key=lambda each: each[0])
    if graph.producers[node.output] in continued:
        cost += 2 * whole(graph, node.output).words * weight
    return (
        blocks if cost <= GAIN * _as_it_is(graph, (*before, graph.producers[node.output]), machine, weight) else ()
    )


def _as_it_is(graph: Graph, nodes: Sequence[Node], machine: Machine, weight: float) -> float:
    result = nodes[-1].output
    try:
        run = run_of(graph, nodes, machine, {result: whole(graph, result)}, documented=False)
        found = Range(graph, nodes, machine, shares_of(run.jobs), fine=True).best(weight)
    except NpucError:
        return inf
    return inf if found is None else found.cost(weight)


def _cost(graph: Graph, node: Node, blocks: Sequence[ResultBlock], weight: float) -> float:
    """Cycles of products and of transfers."""
    (outputs, channels, *kernel), cycles, words = graph.shape(node.inputs[1]), 0, whole(graph, node.output).words
    for block in blocks:
        taps = sum(
            prod(len(range(*each.indices(extent))) for each, extent in zip(taps, kernel, strict=True))
            for _, taps in block.windows
        )
        rows, columns = block.rows.end - block.rows.first, block.columns.end - block.columns.first
        cycles += rows * columns * taps * channels * groups(outputs)
        words += len(block.windows) * prod(block.size) * groups(channels)
        words += groups(outputs) * (BS_WORDS + taps * channels)
    return cycles + words * weight


def _blocks(graph: Graph, node: Node, by_rows: bool, by_columns: bool) -> Iterator[ResultBlock]:
    """The blocks for taps apart along these axes; none where a block would have no taps, or there are too many."""
    kernel = graph.shape(node.inputs[1])[2:]
    axes = [
        (Sliding.of(graph, node, axis), kernel[axis - 1], window_of(node, kernel).dilations[axis - 1])
        for axis in (1, 2)
    ]
    spans = [list(_spans(*each, apart=apart)) for each, apart in zip(axes, (by_rows, by_columns), strict=True)]
    empty = any(span.taps == () for each in spans for span in each)
    if empty or prod(map(len, spans)) > MOST_BLOCKS:
        return
    for pair in product(*spans):
        size: list[int] = []
        reads: list[list[tuple[int, slice]]] = []
        for span, (slide, _, dilation) in zip(pair, axes, strict=True):
            size.append(slide.extent if span.taps is None else span.end - span.first)
            if span.taps is None:
                reads.append([(0, slice(None))])
            else:
                start = span.first - slide.padding
                reads.append([(start + tap * dilation, slice(tap, tap + 1)) for tap in span.taps])
        windows = tuple(((row[0], column[0]), (row[1], column[1])) for row, column in product(*reads))
        yield ResultBlock(pair[0], pair[1], (size[0], size[1]), windows)


def _spans(slide: Sliding, kernel: int, dilation: int, *, apart: bool) -> Iterator[Span]:
    """The outputs along an axis, in ranges with the same taps inside the map."""
    if not apart:
        yield Span(0, slide.outputs, None)
        return

    def met(output: int) -> tuple[int, ...]:
        first = output - slide.padding
        return tuple(tap for tap in range(kernel) if 0 <= first + tap * dilation < slide.extent)

    for taps, outputs in groupby(range(slide.outputs), met):
        found = list(outputs)
        yield Span(found[0], found[-1] + 1, taps)
