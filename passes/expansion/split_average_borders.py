"""Averages whose windows exceed the border, as averages over whole windows, region by region."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import groupby

from npuc.frozen import frozen
from npuc.ir import Attr, Graph, Node
from npuc.ops.attributes import COUNT_INCLUDE_PAD, KERNEL_SHAPE
from npuc.ops.windows import Window, window_of
from npuc.passes.rewriting.rules import Rewriter, rewrite

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
