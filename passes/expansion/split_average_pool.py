"""Averages over large windows in several stages, for machines that cannot keep partial sums."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise, product

from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import KERNEL_SHAPE
from npuc.ops.windows import window_of
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
