"""Convolutions: passes over kernels, tiles of rows, weights, banks.

Weights in their form, as surfaces in the image of constants.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cache, partial
from itertools import pairwise

import numpy as np

from npuc.ir import Array, Node
from npuc.ops.attributes import GROUP
from npuc.targets.nvdla.arithmetic.integer import PRA_TRUNCATE, TRUNCATE, split_phases, transform_weights
from npuc.targets.nvdla.formats import weights as formats
from npuc.targets.nvdla.formats.alignment import align
from npuc.targets.nvdla.formats.pixels import FORMATS
from npuc.targets.nvdla.formats.precision import DTYPES
from npuc.targets.nvdla.formats.weights import DIRECT, TILE, WeightForm
from npuc.targets.nvdla.machine.parameters import BYTES, MOST_STRIDE, Machine
from npuc.targets.nvdla.operations import timing
from npuc.targets.nvdla.operations.operation import Banks, Convolution, Kernels, Mask, Surface, Transfer
from npuc.targets.nvdla.operations.tiling import (
    Geometry,
    RowTile,
    divided_banks,
    entries_per_slice,
    equal_edges,
    expect_kernels,
    kernels_together,
    mask_banks,
    most_rows,
    row_tiles,
    weight_banks,
)
from npuc.targets.nvdla.selection.context import (
    Constants,
    Context,
    ConvolutionPart,
    Placed,
    PlannedLayer,
    dense_weights,
    geometry,
    in_batches,
    kernels_per_atom,
    parts_of,
    tile_window,
)
from npuc.targets.nvdla.selection.pooling import most_pooled_rows, pooled_rows, pooling_behind
from npuc.targets.nvdla.selection.sdp import is_misplaced, select_sdp


def select_kernels(context: Context, shape: Geometry, dense: Callable[[], Array]) -> Kernels:
    """The weights (K, C, R, S) of a pass, stored where the hardware fetches them."""
    order, mask = _order(context.machine, shape), None
    channels, height, width = shape.kernel_shape
    if shape.form.compressed:
        address, size, mask = _store_compressed(context, order, np.ascontiguousarray(_in_form(shape, dense())))
    elif context.constants.counted:
        address, size = 0, formats.surface_bytes(context.machine, order, BYTES[shape.precision])
    else:
        data = formats.pack(context.machine, order, np.ascontiguousarray(_in_form(shape, dense())))
        address, size = context.constants.add("weight", data), len(data)
    return Kernels(address, size, shape.kernels, height, width, channels, shape.kernel_bytes, shape.form, mask)


def _order(machine: Machine, shape: Geometry) -> formats.Order:
    extents = (shape.kernels, *shape.kernel_shape)
    match shape.form.kind:
        case "image":
            return formats.image_order(machine, extents, shape.precision, shape.form.lines)
        case "winograd":
            return formats.winograd_order(machine, extents, shape.precision)
        case _:
            return formats.direct_order(machine, extents, shape.precision)


def _in_form(shape: Geometry, dense: Array) -> Array:
    """Weights (K, C, R, S), plain or already transformed, in their form: (K, *kernel_shape)."""
    strides = shape.stride_y, shape.stride_x
    match shape.form.kind:
        case "image":
            return formats.pre_extend(np.pad(dense, [*[(0, 0)] * 3, (0, shape.form.zeros)]), shape.channels)
        case "winograd":
            filled = formats.fill_channels(dense, shape.precision)
            done = filled.shape[2:] == tuple(TILE * stride for stride in strides)
            found = filled if done else transform_weights(filled, *strides)
            if not done:  # for costing only: what matters is which weights are zero
                found = np.sign(found)
            return split_phases(found, *strides).astype(DTYPES[shape.precision])
        case _:
            return dense[:, :, : shape.kernel_height, : shape.kernel_width]


def _store_compressed(context: Context, order: formats.Order, weights: Array) -> tuple[int, int, Mask]:
    """Address and size of the nonzero weights, and the surfaces that give their positions."""
    found = formats.compress(order, weights)
    address, mask, sizes = (
        context.constants.add(form, each)
        for form, each in (("weight", found.weights), ("WMB", found.mask), ("WGS", found.sizes))
    )
    return address, len(found.weights), Mask(mask, len(found.mask), sizes, len(found.sizes))


PHASE = 256
"""Addresses that differ by a multiple of this many bytes are aligned alike."""


def select_convolutions(context: Context, layer: PlannedLayer, edges: Sequence[int] = ()) -> Iterator[Convolution]:
    """The operations of a convolution, pass by pass, tile by tile.

    edges: the first row of each tile in the layer's result, then its height; empty for as few tiles as fit the
    CBUF.
    """
    node, y = layer.node, context.placed[layer.node.output]
    edges = edges or _fewest_tiles(context, layer)
    parts = passes(context, node)
    if y.view.width == 1 and y.view.extent > y.view.buffer.atom_elements:
        edges = _without_single_rows(edges, largest_tile(context, layer), layer.form)
        trial = replace(context, constants=Constants(context.machine, 0, counted=True))
        if any(is_misplaced(each, context.machine) for each in _select_pass(trial, layer, edges, parts)):
            parts = _by_atom(context, node)
    return _select_pass(context, layer, edges, parts)


def _without_single_rows(edges: Sequence[int], most: int, form: WeightForm) -> Sequence[int]:
    """The edges; if a tile has a single row, those of the fewest tiles instead, which avoids it where possible."""
    rows = [end - first for first, end in pairwise(edges)]
    return equal_edges(edges[-1], -(-edges[-1] // max(most, 1)), form) if min(rows) == 1 else edges


def _by_atom(context: Context, node: Node) -> list[ConvolutionPart]:
    """Passes that write one surface each."""
    x, y = context.placed[node.inputs[0]], context.placed[node.output]
    atom = y.view.buffer.atom_elements
    together = kernels_per_atom(context.graph, context.machine, node, x.view.lanes)
    return parts_of(context.graph, node, (x.view.lanes, y.view.lanes), (atom, together), atom)


def _select_pass(
    context: Context, layer: PlannedLayer, edges: Sequence[int], parts: Sequence[ConvolutionPart]
) -> Iterator[Convolution]:
    node = layer.node
    x, y = context.placed[node.inputs[0]], context.placed[node.output]
    for part in parts:
        shape = _shape(context, node, part, x, layer.form)
        kernels = _kernels(context, node, part, shape)
        begins = [first for first in edges[:-1] if shape.may_begin(_rows(context, layer, first, first + 1)[0])]
        for first, end in pairwise((*begins, edges[-1])):
            begin, stop = _rows(context, layer, first, end)
            whole = RowTile(begin, stop - begin, *shape.lines(begin, stop - begin))
            if layer.pool:
                pooling = pooling_behind(context, layer.pool, part, (first, end))
                yield replace(_convolution(context, layer, part, kernels, shape, whole), pooling=pooling)
                continue
            for tile, batches in in_batches(context.machine, shape, whole, part.result(y, whole)):
                yield _in_batches(_convolution(context, layer, part, kernels, shape, tile), batches)


def _rows(context: Context, layer: PlannedLayer, first: int, end: int) -> tuple[int, int]:
    """The convolution's rows, as (first, end), that rows first to end (exclusive) of the layer's result need."""
    return pooled_rows(context, layer.pool, first, end) if layer.pool else (first, end)


def _convolution(
    context: Context, layer: PlannedLayer, part: ConvolutionPart, kernels: Kernels, shape: Geometry, tile: RowTile
) -> Convolution:
    """One pass on one tile."""
    node, winograd = layer.node, layer.form.kind == "winograd"
    x, y = context.placed[node.inputs[0]], context.placed[node.output]
    window, banks = tile_window(context.graph, node, shape, tile), _banks(context, shape, tile)
    sdp = select_sdp(context, node, y, part.first, part.count, tile)
    source = part.source(x, tile, shape)
    result = _in_tiles(part.result(y, tile)) if winograd else part.result(y, tile)
    truncated = TRUNCATE(node), PRA_TRUNCATE(node)
    return Convolution(source, kernels, window, banks, sdp, result, None, *truncated)


def _in_batches(convolution: Convolution, batches: int) -> Convolution:
    """The convolution with its number of batches; if its cubes give one line each, the vertical stride is 1."""
    if batches == 1 and convolution.window.stride_y <= MOST_STRIDE:
        return convolution
    return replace(convolution, window=replace(convolution.window, stride_y=1), batches=batches)


def _fewest_tiles(context: Context, layer: PlannedLayer) -> tuple[int, ...]:
    """The edges of as few tiles as fit the CBUF."""
    height = context.placed[layer.name].view.height
    return equal_edges(height, -(-height // max(largest_tile(context, layer), 1)), layer.form)


def largest_tile(context: Context, layer: PlannedLayer) -> int:
    """The most rows of the result for which every pass fits the CBUF; 0 if not even one row fits."""
    x = context.placed[layer.node.inputs[0]]
    shapes = [_shape(context, layer.node, part, x, layer.form) for part in passes(context, layer.node)]
    rows = min(_most_rows(context, layer.node, shape) for shape in shapes)
    return most_pooled_rows(context, layer.pool, rows) if layer.pool else rows


def _most_rows(context: Context, node: Node, shape: Geometry) -> int:
    return most_rows(context.machine, shape, expect_kernels(context.machine, shape, node.name, node.op))


def likeness(context: Context, layer: PlannedLayer) -> tuple[object, int, int]:
    """A key that layers of equal cost share, and the addresses of the layer's input and result.

    The key holds all that decides costs and which parts of its maps a layer reads and writes; layers with equal
    keys differ only in values and addresses. It is None where maps are operands, for pooling behind SDP, for
    weights that BDMA copies, and for compressed weights, whose sizes depend on their values.
    """
    node = layer.node
    copies = layer.name in context.pieces or any(key[0] == node.output for key in context.copied)
    if node.op != "NvConv" or layer.pool or layer.form.compressed or copies:
        return None, 0, 0
    x, y = context.placed[node.inputs[0]], context.placed[node.output]
    parts = tuple(passes(context, node))
    sdp = select_sdp(context, node, y, parts[0].first, parts[0].count)
    if any(unit.fetch and (unit.fetch.computed or unit.fetch.per_element) for unit in (sdp.x1, sdp.x2)):
        return None, 0, 0
    shapes = tuple(_shape(context, node, part, x, layer.form) for part in parts)
    whole = x.surface(), y.surface()
    cubes = tuple(replace(each, address=each.address % PHASE) for each in whole)
    windows = tile_window(
        context.graph, node, shapes[0], RowTile(0, y.view.height, *shapes[0].lines(0, y.view.height))
    )
    memories = tuple(context.machine.in_sram(each.address) for each in whole)
    alike = (layer.form, parts, shapes, cubes, windows, bool(sdp.table), memories)
    return alike, whole[0].address, whole[1].address


def needed_lines(context: Context, layer: PlannedLayer, rows: int) -> int:
    """The lines of the input needed for the first rows of the result."""
    x = context.placed[layer.node.inputs[0]]
    shape = _shape(context, layer.node, passes(context, layer.node)[0], x, layer.form)
    begin, lines = shape.lines(*_rows(context, layer, 0, rows))
    return (begin + lines - 1) * shape.line_step + 1


def passes(context: Context, node: Node) -> list[ConvolutionPart]:
    """The cheapest division of the result's lanes into passes, computed once."""
    if node.output not in context.passes:
        x, y = context.placed[node.inputs[0]], context.placed[node.output]
        context.passes[node.output] = _parts(context, node, x, y)
    return context.passes[node.output]


def _kernels(context: Context, node: Node, part: ConvolutionPart, shape: Geometry) -> Kernels:
    """The weights of a pass, at the address from which the hardware reads them."""
    kernels = _store_kernels(context, node, part, shape)
    address = context.copied.get((node.output, part.first, part.count, shape.form))
    return kernels if address is None else replace(kernels, address=address, copied=True)


def _store_kernels(context: Context, node: Node, part: ConvolutionPart, shape: Geometry) -> Kernels:
    """The weights of a pass, stored among the constants once."""
    known, key = context.constants.kernels, (node.output, part.first, part.count, shape.form)
    if key not in known:
        views = context.placed[node.inputs[0]].view, context.placed[node.output].view
        known[key] = select_kernels(context, shape, partial(dense_weights, context.graph, node, part, views))
    return known[key]


def transfers(context: Context, layer: PlannedLayer) -> Iterator[Transfer]:
    """The copies of other layers' weights that follow a layer's operations."""
    atom = context.machine.atom_bytes
    for each in context.pieces.get(layer.name, ()):
        node, part = each.layer.node, each.part
        shape = _shape(context, node, part, context.placed[node.inputs[0]], each.layer.form)
        start = _store_kernels(context, node, part, shape).address
        places = start, context.copied[node.output, part.first, part.count, shape.form]
        source, result = (
            Surface(place + each.first, each.bytes // atom, 1, atom, each.bytes, each.bytes) for place in places
        )
        yield Transfer(source, result)


def _in_tiles(result: Surface) -> Surface:
    """The surface as Winograd writes it, in whole tiles."""
    return replace(result, width=align(result.width, TILE), height=align(result.height, TILE))


def fits(context: Context, node: Node, form: WeightForm) -> bool:
    """Whether whole kernel groups of every pass of a convolution fit the CBUF in a form."""
    x = context.placed[node.inputs[0]]
    return all(_fits(context, _shape(context, node, part, x, form)) for part in passes(context, node))


def may_compress(context: Context, node: Node) -> bool:
    """Whether the weights may be compressed: after a pass of zeros alone, nv_full takes the next for zeros too."""
    y, weights = context.placed[node.output].view, context.graph.constants[node.inputs[1]]
    return context.machine.compression and all(
        weights[y.channels_in(part.first, part.count)].any() for part in passes(context, node)
    )


def _shape(context: Context, node: Node, part: ConvolutionPart, x: Placed, form: WeightForm) -> Geometry:
    """The geometry of a pass, computed once."""
    key = node.output, part.size, form
    if key not in context.shapes:
        held = x.view.buffer
        lanes = FORMATS[held.pixels].channels if held.pixels else part.lanes
        if form.kind == "winograd":
            lanes = align(lanes, held.atom_elements)
        context.shapes[key] = geometry(context.graph, node, lanes, part.count, form)
    return context.shapes[key]


def _parts(context: Context, node: Node, x: Placed, y: Placed) -> list[ConvolutionPart]:
    """The cheapest division of the result's lanes into passes that fit."""
    atom, extent, lanes = y.view.buffer.atom_elements, y.view.extent, (x.view.lanes, y.view.lanes)
    together = kernels_per_atom(context.graph, context.machine, node, x.view.lanes)
    widths = [(atom, together)]
    if together == atom:
        wider = (width for power in range(extent.bit_length()) if (width := atom << power) < extent)
        widths = [(width, width) for width in (extent, *wider)]
    options = (parts_of(context.graph, node, lanes, width, atom) for width in widths)

    @cache
    def fits(size: ConvolutionPart) -> bool:
        return _fits(context, _shape(context, node, size, x, DIRECT))

    @cache
    def cycles(size: ConvolutionPart) -> float:
        return _part_cycles(context, node, size, x, y)

    fitting = (each for each in options if all(fits(part.size) for part in each))
    if GROUP(node) == 1:
        return next(fitting)
    return min(fitting, key=lambda parts: sum(cycles(part.size) for part in parts))


def _fits(context: Context, shape: Geometry) -> bool:
    machine = context.machine
    return kernels_together(machine, shape) >= min(machine.kernel_group(shape.precision), shape.kernels)


def _part_cycles(context: Context, node: Node, part: ConvolutionPart, x: Placed, y: Placed) -> float:
    """Clocks of a pass, in the fewest tiles that fit."""
    shape = _shape(context, node, part, x, DIRECT)
    size = part.count * shape.kernel_bytes
    kernels = Kernels(0, size, part.count, shape.kernel_height, shape.kernel_width, part.lanes, shape.kernel_bytes)
    count = -(-shape.out_height // _most_rows(context, node, shape))
    tiles = list(row_tiles(shape, equal_edges(shape.out_height, count)))
    return sum(
        timing.compute_cycles(kernels, part.result(y, tile), context.machine)[0]
        + timing.fetch_cycles(part.source(x, tile, shape), kernels, context.machine)
        for tile in tiles
    )


def _banks(context: Context, shape: Geometry, tile: RowTile) -> Banks:
    """The CBUF banks of a tile: for data, and for weights, which need at least one kernel group."""
    machine, mask = context.machine, mask_banks(shape)
    entries = entries_per_slice(machine, shape)
    data = -(-entries * shape.slices(tile.rows, tile.lines) // machine.cbuf_entries)
    together = min(kernels_together(machine, shape), shape.kernels)
    weights = weight_banks(machine, shape, together)
    given, left = divided_banks(machine, data, weights, context.preferred_banks)
    return Banks(entries, given, left - mask, mask, (data, weights))
