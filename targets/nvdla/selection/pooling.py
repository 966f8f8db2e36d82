"""PDP: on a map in memory, or behind SDP, whose result then never goes to memory.

PDP buffers lines of results, so a wide map in memory is pooled in parts, side by side, which read the columns that
they share.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

from npuc.frozen import frozen
from npuc.ir import Node
from npuc.ops.attributes import KERNEL_SHAPE, PADDING
from npuc.ops.windows import window_of
from npuc.targets.nvdla.arithmetic.integer import RECIPROCALS
from npuc.targets.nvdla.model.arithmetic import ONE
from npuc.targets.nvdla.operations.operation import Pooling, Surface
from npuc.targets.nvdla.operations.tiling import RowTile, equal_edges
from npuc.targets.nvdla.selection.context import Context, ConvolutionPart, hardware_window

ROWS, COLUMNS = 0, 1
"""Axes of a window."""


@frozen
class _Span:
    """The rows or columns of the map under some windows, and the padding before and behind them."""

    first: int
    end: int
    before: int
    after: int


def select_pooling(context: Context, node: Node) -> Iterator[Pooling]:
    """PDP on a map in memory, of which it reads what is under windows, in as few parts as its buffer allows."""
    x, y = context.placed[node.inputs[0]], context.placed[node.output]
    rows = _span(context, node, ROWS, 0, y.view.height)
    source, result = x.surface(row=rows.first, rows=rows.end - rows.first), y.surface()
    count = -(-y.view.width // _most_columns(context, node, y.view.height))
    for first, end in pairwise(equal_edges(y.view.width, count)):
        columns = _span(context, node, COLUMNS, first, end)
        read, written = (
            _columns(context, source, columns.first, columns.end),
            _columns(context, result, first, end),
        )
        yield _pooling(node, read, written, rows, columns)


def pooling_behind(context: Context, node: Node, part: ConvolutionPart, rows: tuple[int, int]) -> Pooling:
    """PDP behind a pass of SDP, for the rows (first, end) of its own result."""
    x, y = context.placed[node.inputs[0]], context.placed[node.output]
    span = _span(context, node, ROWS, *rows)
    source = part.result(x, RowTile(span.first, span.end - span.first, 0, 0))
    result = part.result(y, RowTile(rows[0], rows[1] - rows[0], 0, 0))
    return _pooling(node, source, result, span, _span(context, node, COLUMNS, 0, y.view.width))


def can_pool(context: Context, node: Node) -> bool:
    """Whether PDP can take a map from SDP: its windows must reach all columns, and its buffer hold the result."""
    x, view = context.placed[node.inputs[0]].view, context.placed[node.output].view
    reached = _span(context, node, COLUMNS, 0, view.width).end
    return reached == x.width and view.width <= _most_columns(context, node, view.height)


def pooled_rows(context: Context, node: Node, first: int, end: int) -> tuple[int, int]:
    """The rows of the map, as (first, end), that rows first to end (exclusive) of the result need."""
    span = _span(context, node, ROWS, first, end)
    return span.first, span.end


def most_pooled_rows(context: Context, node: Node, rows: int) -> int:
    """The most rows of the result that `rows` rows of the map suffice for, wherever they begin."""
    if rows >= context.placed[node.inputs[0]].view.height:
        return context.placed[node.output].view.height
    kernel = KERNEL_SHAPE(node)
    return max((rows - kernel[ROWS]) // window_of(node, kernel).strides[ROWS] + 1, 0)


def _span(context: Context, node: Node, axis: int, first: int, end: int) -> _Span:
    """What is under the windows of the rows or columns `first` to `end` (exclusive) of the result."""
    kernel, view = KERNEL_SHAPE(node), context.placed[node.inputs[0]].view
    window, extent = window_of(node, kernel), (view.height, view.width)[axis]
    begin = first * window.strides[axis] - window.begins[axis]
    stop = (end - 1) * window.strides[axis] - window.begins[axis] + kernel[axis]
    return _Span(max(begin, 0), min(stop, extent), max(-begin, 0), max(stop - extent, 0))


def _stride(node: Node, rows: int) -> int:
    """The vertical stride; for one row of results the windows' height, so that PDP buffers a single line."""
    kernel = KERNEL_SHAPE(node)
    return kernel[ROWS] if rows == 1 else window_of(node, kernel).strides[ROWS]


def _most_columns(context: Context, node: Node, rows: int) -> int:
    """The most columns of a result of so many rows that PDP computes at once."""
    return context.machine.pooled_columns(KERNEL_SHAPE(node)[ROWS], _stride(node, rows))


def _columns(context: Context, surface: Surface, first: int, end: int) -> Surface:
    """Some columns of a feature cube."""
    address = surface.address + first * context.machine.atom_bytes
    return replace(surface, address=address, width=end - first)


def _pooling(node: Node, source: Surface, result: Surface, rows: _Span, columns: _Span) -> Pooling:
    """PDP for a part of the result."""
    kernel = KERNEL_SHAPE(node)
    strides = _stride(node, result.height), window_of(node, kernel).strides[COLUMNS]
    pads = rows.before, columns.before, rows.after, columns.after
    average = node.op == "NvAveragePool"
    reciprocals = RECIPROCALS(node) if average else (ONE, ONE)
    return Pooling(
        source,
        "AVERAGE" if average else "MAX",
        (kernel[ROWS], kernel[COLUMNS]),
        hardware_window(strides, (1, 1), pads, PADDING(node)),
        (reciprocals[0], reciprocals[1]),
        result,
    )
