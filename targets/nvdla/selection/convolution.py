"""Convolutions: passes over kernels, tiles of rows, weights, banks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from npuc.ir import Node
from npuc.targets.nvdla import timing
from npuc.targets.nvdla.formats.alignment import aligned
from npuc.targets.nvdla.formats.pixels import FORMATS
from npuc.targets.nvdla.formats.winograd import TILE
from npuc.targets.nvdla.operations import (
    Banks,
    Convolution,
    Kernels,
    Surface,
)
from npuc.targets.nvdla.selection.context import Context, Placed
from npuc.targets.nvdla.selection.kernels import select_kernels
from npuc.targets.nvdla.selection.parts import Part, dense_weights, geometry, parts_of, tile_window
from npuc.targets.nvdla.selection.sdp import select_sdp
from npuc.targets.nvdla.tiling import (
    Geometry,
    RowTile,
    entries_per_slice,
    expect_kernels,
    kernels_together,
    mask_banks,
    most_rows,
    row_tiles,
)
from npuc.targets.nvdla.weight_form import DIRECT, WeightForm


def select_convolutions(context: Context, node: Node, tiles: int, form: WeightForm) -> Iterator[Convolution]:
    """The passes of a convolution; tiles: of rows, 0 for as few as the CBUF allows."""
    x, y = context.placed[node.inputs[0]], context.placed[node.output]
    dense = dense_weights(context.graph, node, x.view, y.view)
    for part in _parts(context, node, x, y):
        shape = _shape(context, node, part, x, form)
        lanes = slice(part.lane, part.lane + part.lanes)
        kernels = select_kernels(context, shape, dense[part.first : part.first + part.count, lanes])
        for tile in _tiles(context, node, shape, tiles):
            window, banks = tile_window(context.graph, node, shape, tile), _banks(context, shape, kernels, tile)
            sdp = select_sdp(context, node, y, part.first, part.count, tile)
            source = replace(part.source(x, tile), channels=shape.channels)
            result = _in_tiles(part.result(y, tile)) if form.kind == "winograd" else part.result(y, tile)
            yield Convolution(source, kernels, window, banks, sdp, result, node.integer("truncate"))


def _in_tiles(result: Surface) -> Surface:
    """What Winograd writes: whole tiles."""
    return replace(result, width=aligned(result.width, TILE), height=aligned(result.height, TILE))


def fits(context: Context, node: Node, form: WeightForm) -> bool:
    """Whether every pass of a convolution has room for whole kernel groups in a form."""
    x, y = context.placed[node.inputs[0]], context.placed[node.output]
    return all(_fits(context, _shape(context, node, part, x, form)) for part in _parts(context, node, x, y))


def _shape(context: Context, node: Node, part: Part, x: Placed, form: WeightForm) -> Geometry:
    """A pass as the hardware sees it."""
    held = x.view.buffer
    lanes = FORMATS[held.pixels].channels if held.pixels else part.lanes
    if form.kind == "winograd":
        lanes = aligned(lanes, held.atom_elements)
    return replace(geometry(context.graph, node, lanes), kernels=part.count, form=form)


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
    fitting = [
        each for each in options if all(_fits(context, _shape(context, node, part, x, DIRECT)) for part in each)
    ] or options[1:2]
    return min(
        fitting or options, key=lambda parts: sum(_part_cycles(context, node, part, x, y) for part in parts)
    )


def _fits(context: Context, shape: Geometry) -> bool:
    machine = context.machine
    return kernels_together(machine, shape) >= min(machine.kernel_group(shape.precision), shape.kernels)


def _part_cycles(context: Context, node: Node, part: Part, x: Placed, y: Placed) -> float:
    """Clocks of a pass, in tiles where it must be."""
    shape = _shape(context, node, part, x, DIRECT)
    size = part.count * shape.kernel_bytes
    kernels = Kernels(0, size, part.count, shape.kernel_height, shape.kernel_width, part.lanes, shape.kernel_bytes)
    tiles = _tiles(context, node, shape, 0)
    computed = sum(timing.compute_cycles(kernels, part.result(y, tile), context.machine) for tile in tiles)
    return computed + sum(timing.fetch_cycles(part.source(x, tile), context.machine) for tile in tiles)


def _banks(context: Context, shape: Geometry, kernels: Kernels, tile: RowTile) -> Banks:
    """Data gets what it needs, weights what is left and of use."""
    machine, mask = context.machine, mask_banks(shape)
    entries = entries_per_slice(machine, shape)
    data = -(-entries * shape.slices(tile.rows, tile.lines) // machine.cbuf_entries)
    wanted = -(-kernels.bytes // machine.bank_bytes)
    return Banks(entries, data, min(machine.cbuf_banks - data - mask, max(wanted, 1)), mask)
