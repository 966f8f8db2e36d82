"""SDP behind a convolution or on a map, with operands in registers, constants or maps; CDP, with such tables.

SDP treats a map of one pixel as packed, atom after atom, whatever its line and surface strides. A map that is not
packed goes through SDP as a column instead: each surface is a line of one atom. A convolution whose result is not
packed is computed one atom of kernels at a time, as a single surface needs no stride.

Source of the latter: Arithmetic, SDP: cubes of 1 x 1; seen on the RTL.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from npuc.errors import UnsupportedOperator
from npuc.ir import Array, Node
from npuc.ops.attributes import SIZE
from npuc.targets.nvdla.arithmetic.integer import (
    LE_ENTRIES,
    LO_ENTRIES,
    ZERO,
    SdpStage,
    TablePlacement,
    converter,
    operands,
    stages,
    tables,
)
from npuc.targets.nvdla.formats import operands as operand_format
from npuc.targets.nvdla.formats.operands import OperandCube
from npuc.targets.nvdla.machine.parameters import BYTES, Machine
from npuc.targets.nvdla.operations.operation import (
    Convolution,
    Elementwise,
    Fetch,
    Normalisation,
    OperationTables,
    Ramp,
    Sdp,
    Surface,
    Unit,
)
from npuc.targets.nvdla.operations.surfaces import BufferView
from npuc.targets.nvdla.operations.tiling import RowTile
from npuc.targets.nvdla.selection.context import Context, Placed


def select_sdp(
    context: Context, node: Node, y: Placed, first: int, count: int, tile: RowTile | None = None
) -> Sdp:
    """The SDP settings for some lanes and rows of the result."""
    known, key = context.constants.sdps, (node.output, first, count)
    if key not in known:
        found = _select(context, node, y, (first, count), tile)
        if any(each.fetch and (each.fetch.per_element or each.fetch.computed) for each in (found.x1, found.x2)):
            return found  # its operands are another part of a map for every tile
        known[key] = found
    return known[key]


def _select(context: Context, node: Node, y: Placed, part: tuple[int, int], tile: RowTile | None) -> Sdp:
    first_alu, first_mul, second_alu, second_mul, table = operands(node)
    x1, x2 = stages(node)
    return Sdp(
        _unit(context, x1, first_alu, first_mul, y, part, tile),
        _unit(context, x2, second_alu, second_mul, y, part, tile),
        converter(node),
        _tables(node, context.graph.constants[table]) if table else None,
    )


def _tables(node: Node, entries: Array) -> OperationTables:
    """A table with one entry for every int8 value; else LE and LO, placed as the node says."""
    placed = tables(node)
    if placed is None:
        values = np.concatenate([entries, np.repeat(entries[-1:], LO_ENTRIES - len(entries))])
        return OperationTables(Ramp(_bits(values), -128, -128 + LO_ENTRIES - 1, 0))
    le, lo = (ramp(*each) for each in zip(placed, np.split(entries, [LE_ENTRIES]), strict=True))
    return OperationTables(lo, le)


def ramp(table: TablePlacement, entries: Array) -> Ramp:
    """A table of int16 or float16 entries, as registers represent it."""
    real = entries.dtype.kind == "f"
    start, end = table.start, table.end(len(entries))
    edges = [int(np.float32(each).view(np.int32)) if real else round(each) for each in (start, end)]
    slope = int(np.float16(table.beyond).view(np.int16)) if real else round(table.beyond)
    return Ramp(_bits(entries), edges[0], edges[1], table.select, slope, table.shift)


def _bits(entries: Array) -> tuple[int, ...]:
    return tuple(entries.view(np.uint16).tolist())


def _unit(
    context: Context, stage: SdpStage, alu: str, mul: str, y: Placed, part: tuple[int, int], tile: RowTile | None
) -> Unit:
    """A stage with its operands in registers, as constants in memory, or as a map."""
    held = [name for name in (alu, mul) if name in context.placed]
    if held:
        use = "ALU" if held[0] == alu else "MUL"
        other = mul if use == "ALU" else alu
        fetch = _map_fetch(context, held[0], use, y, part, tile)
        return Unit(
            stage,
            _register(context, other if use == "MUL" else ""),
            _register(context, mul if use == "ALU" else ""),
            fetch,
        )
    registers = [_register(context, alu), _register(context, mul)]
    names = [name for name, number in zip((alu, mul), registers, strict=True) if name and number is None]
    if not names:
        return Unit(stage, registers[0], registers[1])
    use = "BOTH" if len(names) == 2 else "MUL" if registers[0] is not None or not alu else "ALU"
    return Unit(stage, registers[0], registers[1], _constant_fetch(context, names, use, y.view, part, tile))


def _register(context: Context, name: str) -> int | None:
    """The 16 bits of an operand kept in a register; None for any other operand."""
    value = context.graph.constant(name)
    if value is None or value.size != 1 or value.ndim != 3:
        return None
    return int(value.view(np.int16).reshape(()))


def _lane_values(context: Context, name: str, view: BufferView, part: tuple[int, int]) -> Array:
    """A constant operand (C, 1, 1) or (C, H, W), spread over the lanes of the pass."""
    value, (first, count) = context.graph.constants[name], part
    inside = view.channels_in(first, count)
    filled = np.zeros((count, *value.shape[1:]), value.dtype)
    filled[view.lane_numbers[inside] - first] = np.broadcast_to(value, (len(view.lanes), *value.shape[1:]))[inside]
    return filled


def _constant_fetch(
    context: Context, names: list[str], use: str, view: BufferView, part: tuple[int, int], tile: RowTile | None
) -> Fetch:
    shapes = [context.graph.shape(name)[1:] for name in names]
    per_element = shapes[0] != (1, 1)
    height, width = np.broadcast_shapes(*shapes)
    rows = slice(tile.row, tile.row + tile.rows) if tile is not None and per_element else slice(None)
    extents = (part[1], len(range(height)[rows]), width)
    operand = OperandCube.per_element(context.machine, extents, len(names), 2, view.buffer.precision)
    strides = (operand.line_stride, operand.surface_stride) if per_element else (0, 0)
    address = 0
    if not context.constants.counted:
        values = (_lane_values(context, name, view, part) for name in names)
        cut = [np.broadcast_to(each, (part[1], height, width))[:, rows] for each in values]
        form = "element-wise" if per_element else "batch normalization"
        address = context.constants.add(form, operand_format.pack(operand, *cut))
    return Fetch(use, 2, address, per_element, *strides)


def _map_fetch(
    context: Context, name: str, use: str, y: Placed, part: tuple[int, int], tile: RowTile | None
) -> Fetch:
    """A map in memory as an operand: per element, or per channel if it has one pixel."""
    other = context.placed[name]
    held = other.view.buffer
    if other.view.lanes != y.view.lanes:
        raise UnsupportedOperator(
            "E202",
            "its channels do not lie as those of the other operand: concatenation left gaps",
            tensor=name,
            limit=f"channels in multiples of {held.atom_elements} where maps are joined",
            remedy="put a convolution between the concatenation and this operator",
        )
    per_element = (other.view.height, other.view.width) == (y.view.height, y.view.width)
    row = tile.row if tile is not None and per_element else 0
    surface = other.surface(first_surface=part[0] // held.atom_elements, row=row)
    strides = (surface.line_stride, surface.surface_stride) if per_element else (0, 0)
    return Fetch(use, BYTES[held.precision], surface.address, per_element, *strides, computed=True)


def select_normalisation(context: Context, node: Node) -> Normalisation:
    """CDP on a map in memory whose channels are contiguous."""
    x, y = context.placed[node.inputs[0]], context.placed[node.output]
    placed = tables(node)
    assert placed is not None
    le, lo = (
        ramp(table, context.graph.constants[name]) for table, name in zip(placed, node.inputs[1:3], strict=True)
    )
    size, zero = SIZE(node), ZERO(node)
    return Normalisation(x.surface(), size, zero, OperationTables(lo, le), converter(node), y.surface())


COMPONENTS = {"ALU": 1, "MUL": 1, "BOTH": 2}


def is_misplaced(operation: Convolution | Elementwise, machine: Machine) -> bool:
    """Whether SDP would read or write a one-pixel map elsewhere than its strides say."""
    result = operation.destination
    batches = operation.batches if isinstance(operation, Convolution) else 1
    cube = result.share(batches)
    surfaces = cube.atoms(machine.atom_bytes)
    if (cube.width, cube.height) != (1, 1) or surfaces == 1:
        return False
    strides = [(each.surface_stride, _operand_atom(each, result, machine)) for each in _fetches(operation.sdp)]
    if isinstance(operation, Elementwise):
        strides.append((operation.source.surface_stride, machine.atom_bytes))
    if batches == 1 and operation.pooling is None:
        strides.append((result.surface_stride, machine.atom_bytes))
    return any(found != packed for found, packed in strides)


def as_column(operation: Elementwise, machine: Machine) -> Elementwise:
    """The same operation on a column with one pixel for each surface of the map."""
    surfaces = operation.destination.atoms(machine.atom_bytes)
    source, result = (_column(each, surfaces, machine) for each in (operation.source, operation.destination))
    units = [
        replace(each, fetch=each.fetch and _column_of(each.fetch, operation.destination, machine))
        for each in (operation.sdp.x1, operation.sdp.x2)
    ]
    return Elementwise(source, replace(operation.sdp, x1=units[0], x2=units[1]), result)


def _fetches(sdp: Sdp) -> Iterator[Fetch]:
    """The operands that have strides."""
    return (each.fetch for each in (sdp.x1, sdp.x2) if each.fetch is not None and each.fetch.per_element)


def _operand_atom(fetch: Fetch, result: Surface, machine: Machine) -> int:
    """Bytes of an operand for one atom of the map."""
    return machine.atom_elements(result.precision) * COMPONENTS[fetch.use] * fetch.component_bytes


def _column(surface: Surface, surfaces: int, machine: Machine) -> Surface:
    lanes, stride = machine.atom_elements(surface.precision), surface.surface_stride
    return replace(surface, height=surfaces, channels=lanes, line_stride=stride, surface_stride=surfaces * stride)


def _column_of(fetch: Fetch, result: Surface, machine: Machine) -> Fetch:
    """The operand as a column; one per channel then has an element for every lane of the column."""
    stride = fetch.surface_stride if fetch.per_element else _operand_atom(fetch, result, machine)
    surfaces = result.atoms(machine.atom_bytes)
    return replace(fetch, per_element=True, line_stride=stride, surface_stride=surfaces * stride)
