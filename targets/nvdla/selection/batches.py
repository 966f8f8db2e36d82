"""Multi-batch mode: a fully connected layer on cubes stored one below another, each convolved by itself.

Where every window covers one cube, each line of the result belongs to one cube. A convolution whose stride is the
height of a cube computes the same, but strides end at 8; the mode has no such limit. Where both are possible the
mode is used, as NVDLA's own documentation advises for such layers; the cycle model rates both equally.

Source: Table 35 (stride of cubes); NVDLA's documentation (up to 32 batches of direct convolution); its assertions
(SDP writes batches from even atoms on).
"""

from __future__ import annotations

from collections.abc import Iterator

from npuc.ir import Node
from npuc.ops.attributes import STRIDES
from npuc.targets.nvdla.machine.parameters import MOST_STRIDE, Machine
from npuc.targets.nvdla.operations.operation import Surface
from npuc.targets.nvdla.operations.tiling import Geometry, RowTile


def in_batches(machine: Machine, shape: Geometry, tile: RowTile, result: Surface) -> Iterator[tuple[RowTile, int]]:
    """The tiles that operations compute of a tile, each with its number of batches (1: the cubes are one map).

    result: where the tile's result is placed; multi-batch operations must write from an even atom on.
    """
    even = 2 * machine.atom_bytes
    if not covers(shape) or machine.max_batches == 1:
        yield tile, 1
    elif shape.stride_y <= MOST_STRIDE:
        fits = tile.rows <= machine.max_batches and result.address % even == 0
        yield tile, tile.rows if fits else 1
    else:
        row, end, address = tile.row, tile.row + tile.rows, result.address
        while row < end:
            rows = 1 if address % even else min(end - row, machine.max_batches)
            yield RowTile(row, rows, *shape.lines(row, rows)), rows
            row, address = row + rows, address + rows * result.line_stride


def needs_batches(node: Node) -> bool:
    """Whether only multi-batch mode can compute a convolution: its stride exceeds the hardware's largest."""
    return max(STRIDES(node) or (1,)) > MOST_STRIDE


def covers(shape: Geometry) -> bool:
    """Whether every window covers the columns and lines of one cube, none left out, and gives one pixel."""
    below = shape.reach == shape.stride_y and shape.height == shape.out_height * shape.stride_y
    return (
        shape.form.kind == "direct" and shape.line_step == 1 and not shape.top and below and shape.out_width == 1
    )
