"""Averages over windows that are too large or exceed the border, as averages over whole windows, or in stages.

Stages are for machines that cannot keep partial sums. An axis that cannot be divided into equal pieces,
such as one of 61 columns, is padded.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import groupby, pairwise, product

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Attr, Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import COUNT_INCLUDE_PAD, KERNEL_SHAPE
from npuc.ops.windows import Window, window_of
from npuc.passes.rewriting.rules import Rewriter, rewrite
from npuc.text.escaping import Names


@frozen
class AverageLimits:
    """The largest average that one node may compute."""

    positions: int = 64
    """Of the whole window."""
    extent: int = 64
    """Of the window along one axis."""
    stride: int = 15
    last_positions: int | None = None
    """For the window that averages blocks, if it may be larger than others; None: it may not."""


@frozen
class SplitAveragePool:
    """An average over too many positions, or with too large a stride, becomes averages of columns, then of rows.

    If an axis has too many positions, averages of non-overlapping blocks come first, then the average of those; or
    several such stages for each axis. Exact in real numbers: the mean of means over equal windows. In int8 each
    intermediate map is rounded once more, which changes a result by at most 1 LSB if there are two stages.
    Averages that would take more stages, or exclude padding from the count, are left unchanged.

    rounded: the limits for a map that a quantised model rounds, whose average it rounds once.
    """

    most_stages: int | None = 2
    """None: as many as necessary."""
    limits: AverageLimits = AverageLimits()
    rounded: AverageLimits | None = None
    __name__ = "split_average_pool"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with large averages in stages."""
        nodes, names = list[Node](), graph.names()
        for node in graph.nodes:
            source = graph.producers.get(node.inputs[0]) if node.inputs else None
            once = source is not None and source.op in ("FakeQuantize", "DequantizeLinear")
            stages = list(_stages(graph, node, self.rounded if once and self.rounded else self.limits, names))
            few = self.most_stages is None or len(stages) <= self.most_stages
            nodes += stages if stages and few else [node]
        return rebuild(graph, nodes) if len(nodes) > len(graph.nodes) else graph


Stage = tuple[int, int, int]
"""(kernel, stride, dilation) along an axis."""
WHOLE: Stage = (1, 1, 1)


@frozen
class PooledAxis:
    """A window along an axis of the map, and the number of windows."""

    kernel: int
    stride: int
    dilation: int
    outputs: int
    limits: AverageLimits

    @property
    def wide_stride(self) -> bool:
        """Whether the stride is too large; with a single window it does not matter."""
        return self.outputs > 1 and self.stride > self.limits.stride

    @property
    def pieces(self) -> list[int]:
        """Possible sizes of equal pieces, up to the whole window, that do not overlap between windows."""
        if self.dilation > 1:
            return []
        fitting = (
            piece for piece in range(min(self.kernel, self.limits.stride), 0, -1) if self.kernel % piece == 0
        )
        return [piece for piece in fitting if self.outputs == 1 or self.stride % piece == 0]

    def behind(self, piece: int) -> PooledAxis:
        """The window over pieces of this size; the stride of a single window is rounded up to whole pieces."""
        return PooledAxis(self.kernel // piece, -(-self.stride // piece), 1, self.outputs, self.limits)

    def stages(self) -> list[Stage]:
        """Stages of permitted extent; the axis unchanged if that is not needed, or if no division fits."""
        large = (self.kernel - 1) * self.dilation + 1 > self.limits.extent or self.wide_stride
        if large and self.pieces and self.pieces[0] > 1:
            piece = self.pieces[0]
            return [(piece, piece, 1), *self.behind(piece).stages()]
        return [(self.kernel, self.stride, self.dilation)]


def _blocks(row: PooledAxis, column: PooledAxis) -> list[tuple[Stage, Stage]]:
    """Two stages: averages of equal blocks of both axes, then the average of those; empty if impossible."""
    most = row.limits.positions
    divisions = [
        (high, wide)
        for high, wide in product(row.pieces, column.pieces)
        if high * wide <= most
        and (row.kernel // high) * (column.kernel // wide) <= (row.limits.last_positions or most)
        and max(row.kernel // high, column.kernel // wide) <= row.limits.extent
    ]
    if not divisions:
        return []
    high, wide = max(divisions, key=lambda block: block[0] * block[1])
    rest = row.behind(high), column.behind(wide)
    first, second = (high, high, 1), (wide, wide, 1)
    return [(first, second), ((rest[0].kernel, rest[0].stride, 1), (rest[1].kernel, rest[1].stride, 1))]


def _stages(graph: Graph, node: Node, limits: AverageLimits, fresh: Names) -> Iterator[Node]:
    """The stages along columns and along rows; none if the node is no large average."""
    if node.op not in ("AveragePool", "GlobalAveragePool") or len(graph.shape(node.output)) != 4:
        return
    if node.op == "GlobalAveragePool":
        node = replace(node, op="AveragePool", attrs={"kernel_shape": graph.shape(node.inputs[0])[2:]})
    height, width = KERNEL_SHAPE(node)
    window = window_of(node, (height, width))
    padded = any((*window.begins, *window.ends)) or window.ceil_mode
    extents = graph.shape(node.output)[2:]
    row, column = (
        PooledAxis(*axis, limits)
        for axis in zip((height, width), window.strides, window.dilations, extents, strict=True)
    )
    small = window.reach[0] * window.reach[1] <= limits.positions and max(window.reach) <= limits.extent
    if padded or (small and not (row.wide_stride or column.wide_stride)):
        return
    rows, columns = row.stages(), column.stages()
    steps = [(stage, WHOLE) for stage in rows] + [(WHOLE, stage) for stage in columns]
    steps = [pair for pair in steps if pair != (WHOLE, WHOLE)]
    names = _names(len(rows), len(steps))
    if len(steps) > 2 and (blocks := _blocks(row, column)):
        steps, names = blocks, ["blocks"]
    if len(steps) < 2:
        return
    between = [fresh.new(f"{node.output}/{name}") for name in names]
    for number, (pair, (x, y)) in enumerate(
        zip(steps, pairwise((node.inputs[0], *between, node.output)), strict=True)
    ):
        kernel, strides, dilations = zip(*pair, strict=True)
        attrs = {"kernel_shape": kernel, "strides": strides, "dilations": dilations}
        name = node.name if number == len(steps) - 1 else f"{node.name}/{y.rpartition('/')[2]}"
        yield Node("AveragePool", (x,), (y,), attrs, name, node.sources)


def _names(rows: int, stages: int) -> list[str]:
    """Names of intermediate maps: the one with the columns' averages, and partial ones before and after it."""
    return ["columns" if number == rows - 1 else f"part_{number}" for number in range(stages - 1)]


MOST_REGIONS = 7
"""The most regions along one axis; with more the node stays."""


@frozen
class BorderRange:
    """Outputs along one axis that average the same taps: the input they read, and its padding."""

    start: int
    end: int
    taps: int
    pads: tuple[int, int]


def split_average_borders(graph: Graph) -> Graph:
    """A 2-D AveragePool whose divisor varies becomes one AveragePool per region.

    If padding does not count, or ceil_mode lets a window exceed it, windows at the border average fewer elements.
    Outputs with the same taps form a region: Slice -> AveragePool with a smaller kernel; the regions are joined
    along W, then along H. Every window of the result is divided by its number of taps: padding is left only where
    it counts. Pools with more than 7 regions along an axis are left unchanged, and so are those with a region that
    would have as much padding as taps.
    """
    return rewrite(graph, _split)


def _split(rewriter: Rewriter, node: Node) -> bool:
    shape, extents = rewriter.shape(node.output), rewriter.shape(node.inputs[0])[2:]
    if node.op != "AveragePool" or len(shape) != 4:
        return False
    window = window_of(node, KERNEL_SHAPE(node))
    counts = bool(COUNT_INCLUDE_PAD(node))
    rows, columns = (_regions(window, axis, extents[axis], shape[2 + axis], counts) for axis in (0, 1))
    uniform = len(rows) == len(columns) == 1 and (rows[0].taps, columns[0].taps) == window.kernel
    whole = all(max(region.pads) < region.taps for region in (*rows, *columns))
    if uniform or not whole or max(len(rows), len(columns)) > MOST_REGIONS:
        return False
    rewriter.replace(node, *_pools(rewriter, node, window, rows, columns))
    return True


def _regions(window: Window, axis: int, extent: int, outputs: int, counts: bool) -> list[BorderRange]:
    """The outputs along an axis in runs of the same taps. counts: whether padding is averaged too."""
    stride, dilation, kernel = window.strides[axis], window.dilations[axis], window.kernel[axis]
    low = -window.begins[axis] if counts else 0
    high = extent + (window.ends[axis] if counts else 0)

    def taps(output: int) -> tuple[int, int]:
        """The first counted tap of an output, and the number of counted taps."""
        first = output * stride - window.begins[axis]
        found = [tap for tap in range(kernel) if low <= first + tap * dilation < high]
        return (found[0], len(found)) if found else (0, 0)

    runs = [(key, list(run)) for key, run in groupby(range(outputs), taps)]
    return [_region(run, tap, count, window, axis, extent) for (tap, count), run in runs]


def _region(run: list[int], tap: int, count: int, window: Window, axis: int, extent: int) -> BorderRange:
    first = run[0] * window.strides[axis] - window.begins[axis] + tap * window.dilations[axis]
    reach = (len(run) - 1) * window.strides[axis] + (count - 1) * window.dilations[axis] + 1
    start, end = max(first, 0), min(first + reach, extent)
    return BorderRange(start, end, count, (start - first, first + reach - end))


def _pools(
    rewriter: Rewriter, node: Node, window: Window, rows: list[BorderRange], columns: list[BorderRange]
) -> Iterator[Node]:
    """For each pair of regions Slice -> AveragePool, then the Concats."""
    bands: list[str] = []
    for i, row in enumerate(rows):
        band = rewriter.fresh(f"{node.output}/rows_{i}") if len(rows) > 1 else node.output
        parts: list[str] = []
        for j, column in enumerate(columns):
            part = rewriter.fresh(f"{node.output}/region_{i}_{j}") if len(columns) > 1 else band
            yield from _pool(rewriter, node, window, row, column, part)
            parts.append(part)
        if len(columns) > 1:
            yield Node("Concat", tuple(parts), (band,), {"axis": 3}, band, node.sources)
        bands.append(band)
    if len(rows) > 1:
        yield Node("Concat", tuple(bands), node.outputs, {"axis": 2}, node.name, node.sources)


def _pool(
    rewriter: Rewriter, node: Node, window: Window, row: BorderRange, column: BorderRange, output: str
) -> Iterator[Node]:
    """One region; it has a Slice unless it reads the whole map."""
    x = node.inputs[0]
    if ((row.start, column.start), (row.end, column.end)) != ((0, 0), rewriter.shape(x)[2:]):
        cut: dict[str, Attr] = {
            "axes": (2, 3), "starts": (row.start, column.start), "ends": (row.end, column.end), "steps": (1, 1),
        }  # fmt: skip
        x = rewriter.fresh(f"{output}/window")
        yield Node("Slice", node.inputs, (x,), cut, x, node.sources)
    attrs: dict[str, Attr] = {
        "kernel_shape": (row.taps, column.taps),
        "strides": window.strides,
        "pads": (row.pads[0], column.pads[0], row.pads[1], column.pads[1]),
        "dilations": window.dilations,
        "count_include_pad": 1,
    }
    name = node.name if output == node.output else output
    yield replace(node, inputs=(x,), outputs=(output,), attrs=attrs, name=name)


MOST_STAGES = 2
"""The most stages for one axis."""


@frozen
class PadLongAverages:
    """An average over a single window is padded with zeros if SplitAveragePool cannot divide an axis into stages.

    Averages of pieces come first, the last of them padded; a depthwise Conv then sums them with weights that give
    the mean of the real elements only. Exact in real numbers.
    """

    limits: AverageLimits
    __name__ = "pad_long_averages"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with such averages in stages."""
        return rewrite(graph, partial(_divide, self.limits))


def _divide(limits: AverageLimits, rewriter: Rewriter, node: Node) -> bool:
    shape = rewriter.shape(node.inputs[0]) if node.op in ("AveragePool", "GlobalAveragePool") else ()
    if len(shape) != 4 or rewriter.shape(node.output)[2:] != (1, 1):
        return False
    kernel = KERNEL_SHAPE(node) or shape[2:]
    window = window_of(node, kernel)
    if any((*window.begins, *window.ends)) or window.ceil_mode:
        return False
    along = [axis for axis in (0, 1) if _is_indivisible(kernel[axis], limits)]
    if not along or kernel != shape[2:]:
        return False
    axis = along[-1]
    rest = tuple(1 if at == axis else extent for at, extent in enumerate(kernel))
    inner = node.output if max(rest) == 1 else rewriter.fresh(f"{node.output}/axis_{axis}")
    nodes = _padded_stages(rewriter, replace(node, outputs=(inner,)), axis, kernel[axis], limits)
    if max(rest) > 1:
        nodes.append(Node("AveragePool", (inner,), node.outputs, {"kernel_shape": rest}, node.name, node.sources))
    rewriter.replace(node, *nodes)
    return True


def _is_indivisible(kernel: int, limits: AverageLimits) -> bool:
    """Whether equal pieces of an axis stay too long, or would take more stages than padded ones."""
    stages = PooledAxis(kernel, 1, 1, 1, limits).stages()
    return len(stages) > MOST_STAGES or max(stage[0] for stage in stages) > limits.extent


def _padded_stages(rewriter: Rewriter, node: Node, axis: int, kernel: int, limits: AverageLimits) -> list[Node]:
    """Averages of pieces until few enough are left, and their sum."""
    nodes: list[Node] = []
    x, left, piece, weight = node.inputs[0], kernel, limits.stride, 1.0 / kernel
    while left > limits.extent:
        y = rewriter.fresh(f"{node.output}/pieces")
        along = tuple(piece if at == axis else 1 for at in (0, 1))
        pads = [0, 0, 0, 0]
        pads[2 + axis] = -left % piece
        attrs = {"kernel_shape": along, "strides": along, "pads": tuple(pads), "count_include_pad": 1}
        nodes.append(Node("AveragePool", (x,), (y,), attrs, y, node.sources))
        x, left, weight = y, -(-left // piece), weight * piece
    channels = rewriter.shape(node.inputs[0])[1]
    taps = np.full((channels, 1, *(left if at == axis else 1 for at in (0, 1))), weight, np.float32)
    w = rewriter.constant(taps, f"{node.output}/sum")
    return [*nodes, Node("Conv", (x, w), node.outputs, {"group": channels}, node.name, node.sources)]
