"""Convolutions: passes over kernels, tiles of rows, weights, banks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from npuc.ir import Array, Node
from npuc.targets.nvdla import timing
from npuc.targets.nvdla.formats import weights as weight_format
from npuc.targets.nvdla.operations import (
    Banks,
    Convolution,
    Kernels,
)
from npuc.targets.nvdla.selection.context import Context, Placed
from npuc.targets.nvdla.selection.parts import Part, dense_weights, geometry, parts_of, tile_window
from npuc.targets.nvdla.selection.sdp import select_sdp
from npuc.targets.nvdla.tiling import (
    Geometry,
    RowTile,
    entries_per_slice,
    expect_kernels,
    kernels_together,
    most_rows,
    row_tiles,
)


def select_convolutions(context: Context, node: Node, tiles: int) -> Iterator[Convolution]:
    """The passes of a convolution; tiles: of rows, 0 for as few as the CBUF allows."""
    x, y = context.placed[node.inputs[0]], context.placed[node.output]
    dense = dense_weights(context.graph, node, x.view, y.view)
    for part in _parts(context, node, x, y):
        shape = replace(geometry(context.graph, node, part.lanes), kernels=part.count)
        lanes = slice(part.lane, part.lane + part.lanes)
        kernels = _kernels(context, shape, dense[part.first : part.first + part.count, lanes])
        for tile in _tiles(context, node, shape, tiles):
            result = part.result(y, tile)
            window, banks = tile_window(context.graph, node, shape, tile), _banks(context, shape, kernels, tile)
            sdp = select_sdp(context, node, y, part.first, part.count, tile)
            yield Convolution(part.source(x, tile), kernels, window, banks, sdp, result)


def _tiles(context: Context, node: Node, shape: Geometry, tiles: int) -> list[RowTile]:
    """As few tiles of rows as the CBUF allows, or more."""
    together = expect_kernels(context.machine, shape, node.name, node.op)
    least = -(-shape.out_height // most_rows(context.machine, shape, together))
    return list(row_tiles(shape, min(max(least, tiles), shape.out_height)))


def _parts(context: Context, node: Node, x: Placed, y: Placed) -> list[Part]:
    """The cheapest division of the result's lanes into passes."""
    atom, extent = y.view.buffer.atom_elements, y.view.extent
    if node.integer("group", 1) == 1:
        whole = geometry(context.graph, node, x.view.extent)
        together = expect_kernels(context.machine, whole, node.name, node.op)
        if together >= min(atom, extent):
            return [Part(0, extent, 0, x.view.extent)]
        lanes = ((first, min(together, extent - first)) for first in range(0, extent, atom))
        return [Part(first, count, 0, x.view.extent) for first, count in lanes]
    widths = [extent, *(width for power in range(extent.bit_length()) if (width := atom << power) < extent)]
    options = [parts_of(context.graph, node, (x.view, y.view), width, atom) for width in widths]
    fitting = [each for each in options if all(_fits(context, node, part) for part in each)] or options[1:2]
    return min(
        fitting or options, key=lambda parts: sum(_part_cycles(context, node, part, x, y) for part in parts)
    )


def _fits(context: Context, node: Node, part: Part) -> bool:
    machine = context.machine
    shape = replace(geometry(context.graph, node, part.lanes), kernels=part.count)
    return kernels_together(machine, shape) >= min(machine.atom_elements(shape.precision), part.count)


def _part_cycles(context: Context, node: Node, part: Part, x: Placed, y: Placed) -> float:
    """Clocks of a pass, in tiles where it must be."""
    shape = replace(geometry(context.graph, node, part.lanes), kernels=part.count)
    size = part.count * shape.kernel_bytes
    kernels = Kernels(0, size, part.count, shape.kernel_height, shape.kernel_width, part.lanes, shape.kernel_bytes)
    tiles = _tiles(context, node, shape, 0)
    computed = sum(timing.compute_cycles(kernels, part.result(y, tile), context.machine) for tile in tiles)
    return computed + sum(timing.fetch_cycles(part.source(x, tile), context.machine) for tile in tiles)


def _kernels(context: Context, shape: Geometry, dense: Array) -> Kernels:
    count, channels, height, width = dense.shape
    order = weight_format.direct(context.machine, (count, channels, height, width), shape.precision)
    data = weight_format.pack(context.machine, order, np.ascontiguousarray(dense))
    address = context.constants.add("weight", data)
    return Kernels(address, len(data), count, height, width, channels, shape.kernel_bytes)


def _banks(context: Context, shape: Geometry, kernels: Kernels, tile: RowTile) -> Banks:
    """Data gets what it needs, weights what is left and of use."""
    entries = entries_per_slice(context.machine, shape.width, shape.channels, shape.precision)
    data = -(-entries * tile.lines // context.machine.cbuf_entries)
    wanted = -(-kernels.bytes // context.machine.bank_bytes)
    return Banks(entries, data, min(context.machine.cbuf_banks - data, max(wanted, 1)))
