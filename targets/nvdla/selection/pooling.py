"""PDP: on a map in memory, or behind SDP, whose result then never goes to memory."""

from __future__ import annotations

from dataclasses import replace

from npuc.ir import Node
from npuc.ops.attributes import KERNEL_SHAPE, PADDING
from npuc.ops.windows import window_of
from npuc.targets.nvdla.arithmetic.attributes import RECIPROCALS
from npuc.targets.nvdla.model.averages import ONE
from npuc.targets.nvdla.operations.operation import Pooling, Surface
from npuc.targets.nvdla.operations.tiling import RowTile
from npuc.targets.nvdla.selection.context import Context
from npuc.targets.nvdla.selection.parts import Part, hardware_window


def select_pooling(context: Context, node: Node) -> Pooling:
    """PDP on a map in memory, of which only the part under windows is read."""
    x, y = context.placed[node.inputs[0]], context.placed[node.output]
    begin, stop = pooled_rows(context, node, 0, y.view.height)
    source = replace(x.surface(rows=stop - begin), width=min(x.view.width, x.view.width + _behind(context, node)))
    return _pooling(context, node, source, y.surface(), 0)


def pooling_behind(context: Context, node: Node, part: Part, rows: tuple[int, int]) -> Pooling:
    """PDP behind a pass of SDP, for the rows (first, end) of its own result."""
    x, y = context.placed[node.inputs[0]], context.placed[node.output]
    begin, stop = pooled_rows(context, node, *rows)
    source = part.result(x, RowTile(begin, stop - begin, 0, 0))
    return _pooling(context, node, source, part.result(y, RowTile(rows[0], rows[1] - rows[0], 0, 0)), rows[0])


def flies(context: Context, node: Node) -> bool:
    """Whether PDP can take a map from SDP: its windows must reach all columns, and overlapping lines must fit it.

    Source: PDP keeps a line of results for every open window; together these have a limited number of columns.
    """
    kernel = KERNEL_SHAPE(node)
    stride = window_of(node, kernel).strides[0]
    columns = context.placed[node.output].view.width * -(-kernel[0] // stride)
    return _behind(context, node) >= 0 and columns <= context.machine.pdp_columns


def pooled_rows(context: Context, node: Node, first: int, end: int) -> tuple[int, int]:
    """The rows of the map, as (first, end), that rows first to end (exclusive) of the result need."""
    (kernel, _), (stride, top, height) = KERNEL_SHAPE(node), _vertical(context, node)
    return max(first * stride - top, 0), min((end - 1) * stride - top + kernel, height)


def most_pooled(context: Context, node: Node, rows: int) -> int:
    """The most rows of the result that `rows` rows of the map suffice for, wherever they begin."""
    (kernel, _), (stride, _, height) = KERNEL_SHAPE(node), _vertical(context, node)
    if rows >= height:
        return context.placed[node.output].view.height
    return max((rows - kernel) // stride + 1, 0)


def _vertical(context: Context, node: Node) -> tuple[int, int, int]:
    """Vertical stride, padding at the top, and rows of the map."""
    window = window_of(node, KERNEL_SHAPE(node))
    return window.strides[0], window.begins[0], context.placed[node.inputs[0]].view.height


def _behind(context: Context, node: Node) -> int:
    """How many columns windows reach past the last one; negative if they reach fewer."""
    x, y = context.placed[node.inputs[0]], context.placed[node.output]
    kernel = KERNEL_SHAPE(node)
    window = window_of(node, kernel)
    return (y.view.width - 1) * window.strides[1] + kernel[1] - window.begins[1] - x.view.width


def _pooling(context: Context, node: Node, source: Surface, result: Surface, first: int) -> Pooling:
    """PDP for rows of the result from `first` on."""
    (kernel, across), (stride, top, height) = KERNEL_SHAPE(node), _vertical(context, node)
    window = window_of(node, (kernel, across))
    bottom = (first + result.height - 1) * stride - top + kernel - height
    pads = max(top - first * stride, 0), window.begins[1], max(bottom, 0), max(_behind(context, node), 0)
    average = node.op == "NvAveragePool"
    reciprocals = RECIPROCALS(node) if average else (ONE, ONE)
    return Pooling(
        source,
        "AVERAGE" if average else "MAX",
        (kernel, across),
        hardware_window(window.strides, (1, 1), pads, PADDING(node)),
        (reciprocals[0], reciprocals[1]),
        result,
    )
