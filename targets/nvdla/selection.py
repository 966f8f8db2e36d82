"""From nodes of the integer graph to hardware operations, given where tensors lie.

Grouped and depthwise convolutions are dense ones with zero weights. Lanes that hold no channel have zero weights
too, and operands of zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from npuc.errors import UnsupportedOperator
from npuc.ir import Array, Graph, Node
from npuc.ops.windows import window_of
from npuc.targets.nvdla import timing
from npuc.targets.nvdla.formats import operands as operand_format
from npuc.targets.nvdla.formats import weights as weight_format
from npuc.targets.nvdla.formats.alignment import aligned, alignment
from npuc.targets.nvdla.formats.operands import Operand
from npuc.targets.nvdla.integer import RECIPROCAL_BITS, Stage, converter, operands, stages
from npuc.targets.nvdla.machine import Machine
from npuc.targets.nvdla.operations import (
    Banks,
    Convolution,
    Elementwise,
    Fetch,
    Kernels,
    Operation,
    Pooling,
    Sdp,
    Surface,
    Unit,
    Window,
)
from npuc.targets.nvdla.surfaces import Lanes, View, contiguous, map_shape, spaced
from npuc.targets.nvdla.tiling import (
    Geometry,
    RowTile,
    entries_per_slice,
    expect_kernels,
    kernels_together,
    most_rows,
    row_tiles,
)

COMPUTED = ("NvConv", "NvElementwise", "NvAveragePool", "MaxPool")
"""Operators of the integer graph that NVDLA computes."""


@dataclass
class Constants:
    """The image of weights and operands; equal blobs are stored once."""

    machine: Machine
    base: int
    image: bytearray = field(default_factory=bytearray)
    known: dict[bytes, int] = field(default_factory=dict[bytes, int])

    def add(self, form: str, data: bytes) -> int:
        """The address of a blob, aligned as table 35 has its format."""
        if data not in self.known:
            start = aligned(len(self.image), alignment(form, "start", self.machine.atom_bytes))
            self.image += bytes(start - len(self.image)) + data
            self.known[data] = self.base + start
        return self.known[data]


@dataclass(frozen=True)
class Placed:
    """A tensor's view and the address of its buffer."""

    view: View
    base: int

    def surface(
        self, *, lanes: int | None = None, first_surface: int = 0, row: int = 0, rows: int | None = None
    ) -> Surface:
        """The tensor, or some of its surfaces and rows, as registers describe it."""
        view, held = self.view, self.view.buffer
        return Surface(
            self.base + view.window(first_surface, row),
            view.width,
            view.height if rows is None else rows,
            view.extent if lanes is None else lanes,
            held.line_stride,
            held.surface_stride,
        )


def geometry(graph: Graph, node: Node, lanes: int) -> Geometry:
    """A convolution of an input that fills so many lanes."""
    _, height, width = map_shape(graph.shape(node.inputs[0]))
    kernels, _, kernel_height, kernel_width = graph.shape(node.inputs[1])
    window = window_of(node, (kernel_height, kernel_width))
    out_height, out_width = graph.shape(node.output)[2:]
    return Geometry(
        width, height, lanes, out_height, out_width, kernels, kernel_height, kernel_width,
        window.strides[0], window.dilations[0], window.begins[0],
    )  # fmt: skip


def computed_lanes(graph: Graph, machine: Machine, node: Node, known: Mapping[str, Lanes]) -> Lanes:
    """The lanes of a computed node's result.

    Operations on elements keep those of their input; a convolution fills atoms, unless its kernels are so large
    that fewer share a group, or it adds a map whose lanes have gaps.
    """
    x = known[node.inputs[0]]
    if node.op != "NvConv":
        return x
    kernels = graph.shape(node.output)[1]
    for name in operands(node)[:4]:
        if name in known and graph.shape(name) == graph.shape(node.output):
            return known[name]
    if node.integer("group", 1) > 1:
        return contiguous(kernels)
    together = expect_kernels(machine, geometry(graph, node, x[-1] + 1), node.name, node.op)
    return contiguous(kernels) if together >= machine.atom_bytes else spaced(kernels, together, machine.atom_bytes)


@dataclass(frozen=True)
class Part:
    """A pass of a convolution: some lanes of the result, of the input lanes that they depend on."""

    first: int
    count: int
    lane: int
    """The first lane of the input, at the start of an atom."""
    lanes: int

    def source(self, x: Placed, tile: RowTile) -> Surface:
        """The input that the pass reads."""
        surface = self.lane // x.view.buffer.atom_bytes
        return x.surface(lanes=self.lanes, first_surface=surface, row=tile.line, rows=tile.lines)

    def result(self, y: Placed, tile: RowTile) -> Surface:
        """The part of the result that the pass writes."""
        surface = self.first // y.view.buffer.atom_bytes
        return y.surface(lanes=self.count, first_surface=surface, row=tile.row, rows=tile.rows)


def parts_of(graph: Graph, node: Node, views: tuple[View, View], width: int, atom: int) -> list[Part]:
    """Passes of so many lanes of the result each, of the atoms of the input that their groups need."""
    x, y = views
    groups, channels = node.integer("group", 1), len(x.lanes)
    kernels = graph.shape(node.output)[1] // groups
    group_of = {lane: number // kernels for number, lane in enumerate(y.lanes)}
    found: list[Part] = []
    for first in range(0, y.extent, width):
        count = min(width, y.extent - first)
        used = [group_of[lane] for lane in range(first, first + count) if lane in group_of]
        per_group = channels // groups
        low = x.lanes[min(used) * per_group] // atom * atom if used else 0
        high = x.lanes[(max(used) + 1) * per_group - 1] + 1 if used else 1
        found.append(Part(first, count, low, high - low))
    return found


def dense_weights(graph: Graph, node: Node, x: View, y: View) -> Array:
    """Weights (lanes of y, lanes of x, R, S): zeros outside groups and where lanes hold no channel."""
    w = graph.constants[node.inputs[1]]
    groups = node.integer("group", 1)
    dense = np.zeros((y.extent, x.extent, *w.shape[2:]), np.int8)
    per_group, kernels = w.shape[1], len(w) // groups
    lanes_in, lanes_out = np.array(x.lanes), np.array(y.lanes)
    for group in range(groups):
        rows = lanes_out[group * kernels : (group + 1) * kernels]
        columns = lanes_in[group * per_group : (group + 1) * per_group]
        dense[np.ix_(rows, columns)] = w[group * kernels : (group + 1) * kernels]
    return dense


def _tile_window(graph: Graph, node: Node, shape: Geometry, tile: RowTile) -> Window:
    """How the kernel moves over a tile: padding at the borders of the map only."""
    window = window_of(node, graph.shape(node.inputs[1])[2:])
    start = tile.row * shape.stride_y - shape.top
    end = start + (tile.rows - 1) * shape.stride_y + shape.reach
    right = (shape.out_width - 1) * window.strides[1] + window.reach[1] - shape.width - window.begins[1]
    pads = max(-start, 0), window.begins[1], max(end - shape.height, 0), max(right, 0)
    return _window(window.strides, window.dilations, pads)


class Selector:
    """Makes the operations of nodes; weights and operands are added to the constants."""

    def __init__(self, graph: Graph, machine: Machine, placed: Mapping[str, Placed], constants: Constants) -> None:
        self.graph = graph
        self.machine = machine
        self.placed = placed
        self.constants = constants

    def operations(self, node: Node, tiles: int = 0) -> list[Operation]:
        """The operations that compute a node; tiles: of rows, 0 for as few as the CBUF allows."""
        match node.op:
            case "NvConv":
                return list(self._convolutions(node, tiles))
            case "NvElementwise":
                x, y = self.placed[node.inputs[0]], self.placed[node.output]
                return [Elementwise(x.surface(), self._sdp(node, y, 0, y.view.extent), y.surface())]
            case _:
                return [self._pooling(node)]

    def _convolutions(self, node: Node, tiles: int) -> Iterator[Operation]:
        x, y = self.placed[node.inputs[0]], self.placed[node.output]
        dense = dense_weights(self.graph, node, x.view, y.view)
        for part in self._parts(node, x, y):
            shape = replace(geometry(self.graph, node, part.lanes), kernels=part.count)
            lanes = slice(part.lane, part.lane + part.lanes)
            kernels = self._kernels(dense[part.first : part.first + part.count, lanes])
            for tile in self._tiles(node, shape, tiles):
                result = part.result(y, tile)
                window, banks = _tile_window(self.graph, node, shape, tile), self._banks(shape, kernels, tile)
                sdp = self._sdp(node, y, part.first, part.count, tile)
                yield Convolution(part.source(x, tile), kernels, window, banks, sdp, result)

    def _tiles(self, node: Node, shape: Geometry, tiles: int) -> list[RowTile]:
        """As few tiles of rows as the CBUF allows, or more."""
        together = expect_kernels(self.machine, shape, node.name, node.op)
        least = -(-shape.out_height // most_rows(self.machine, shape, together))
        return list(row_tiles(shape, min(max(least, tiles), shape.out_height)))

    def _parts(self, node: Node, x: Placed, y: Placed) -> list[Part]:
        """The cheapest division of the result's lanes into passes."""
        atom, extent = self.machine.atom_bytes, y.view.extent
        if node.integer("group", 1) == 1:
            whole = geometry(self.graph, node, x.view.extent)
            together = expect_kernels(self.machine, whole, node.name, node.op)
            if together >= min(atom, extent):
                return [Part(0, extent, 0, x.view.extent)]
            lanes = ((first, min(together, extent - first)) for first in range(0, extent, atom))
            return [Part(first, count, 0, x.view.extent) for first, count in lanes]
        widths = [extent, *(width for power in range(extent.bit_length()) if (width := atom << power) < extent)]
        options = [parts_of(self.graph, node, (x.view, y.view), width, atom) for width in widths]
        fitting = [each for each in options if all(self._fits(node, part) for part in each)] or options[1:2]
        return min(
            fitting or options, key=lambda parts: sum(self._part_cycles(node, part, x, y) for part in parts)
        )

    def _fits(self, node: Node, part: Part) -> bool:
        shape = replace(geometry(self.graph, node, part.lanes), kernels=part.count)
        return kernels_together(self.machine, shape) >= min(self.machine.atom_bytes, part.count)

    def _part_cycles(self, node: Node, part: Part, x: Placed, y: Placed) -> float:
        """Clocks of a pass, in tiles where it must be."""
        shape = replace(geometry(self.graph, node, part.lanes), kernels=part.count)
        size = part.count * shape.kernel_bytes
        kernels = Kernels(
            0, size, part.count, shape.kernel_height, shape.kernel_width, part.lanes, shape.kernel_bytes
        )
        tiles = self._tiles(node, shape, 0)
        computed = sum(timing.compute_cycles(kernels, part.result(y, tile), self.machine) for tile in tiles)
        return computed + sum(timing.fetch_cycles(part.source(x, tile), self.machine) for tile in tiles)

    def _kernels(self, dense: Array) -> Kernels:
        count, channels, height, width = dense.shape
        order = weight_format.direct(self.machine, (count, channels, height, width))
        data = weight_format.pack(self.machine, order, np.ascontiguousarray(dense))
        address = self.constants.add("weight", data)
        return Kernels(address, len(data), count, height, width, channels, channels * height * width)

    def _banks(self, shape: Geometry, kernels: Kernels, tile: RowTile) -> Banks:
        """Data gets what it needs, weights what is left and of use."""
        entries = entries_per_slice(self.machine, shape.width, shape.channels)
        data = -(-entries * tile.lines // self.machine.cbuf_entries)
        wanted = -(-kernels.bytes // self.machine.bank_bytes)
        return Banks(entries, data, min(self.machine.cbuf_banks - data, max(wanted, 1)))

    # SDP

    def _sdp(self, node: Node, y: Placed, first: int, count: int, tile: RowTile | None = None) -> Sdp:
        """SDP of some lanes of the result and rows of it."""
        first_alu, first_mul, second_alu, second_mul, table = operands(node)
        x1, x2 = stages(node)
        values = tuple(int(each) for each in self.graph.constants[table]) if table else ()
        return Sdp(
            self._unit(x1, first_alu, first_mul, y, (first, count), tile),
            self._unit(x2, second_alu, second_mul, y, (first, count), tile),
            converter(node),
            values,
        )

    def _unit(
        self, stage: Stage, alu: str, mul: str, y: Placed, part: tuple[int, int], tile: RowTile | None
    ) -> Unit:
        """A stage with its operands in registers, in memory as constants, or as a map."""
        held = [name for name in (alu, mul) if name in self.placed]
        if held:
            use = "ALU" if held[0] == alu else "MUL"
            other = mul if use == "ALU" else alu
            fetch = self._map_fetch(held[0], use, y, part, tile)
            return Unit(
                stage,
                self._register(other if use == "MUL" else ""),
                self._register(mul if use == "ALU" else ""),
                fetch,
            )
        registers = [self._register(alu), self._register(mul)]
        values = [
            self._lane_values(name, y.view, part)
            for name, number in zip((alu, mul), registers, strict=True)
            if name and number is None
        ]
        if not values:
            return Unit(stage, registers[0], registers[1])
        use = "BOTH" if len(values) == 2 else "MUL" if registers[0] is not None or not alu else "ALU"
        return Unit(stage, registers[0], registers[1], self._constant_fetch(values, use, tile))

    def _register(self, name: str) -> int | None:
        """An operand that stands in a register."""
        value = self.graph.constant(name)
        return int(value.reshape(())) if value is not None and value.size == 1 and value.ndim == 3 else None

    def _lane_values(self, name: str, view: View, part: tuple[int, int]) -> Array:
        """A constant operand (C, 1, 1) or (C, H, W) in lanes of the pass."""
        value = self.graph.constants[name]
        channels = len(view.lanes)
        shape = (channels, *value.shape[1:])
        filled = np.zeros((view.extent, *value.shape[1:]), np.int16)
        filled[list(view.lanes)] = np.broadcast_to(value, shape)
        return filled[part[0] : part[0] + part[1]]

    def _constant_fetch(self, values: list[Array], use: str, tile: RowTile | None) -> Fetch:
        per_element = values[0].shape[1:] != (1, 1)
        whole = np.broadcast_shapes(*(each.shape for each in values))
        rows = slice(tile.row, tile.row + tile.rows) if tile is not None and per_element else slice(None)
        cut = [np.broadcast_to(each, whole)[:, rows] for each in values]
        lanes, height, width = cut[0].shape
        operand = Operand.per_element(self.machine, (lanes, height, width), len(values), 2)
        form = "element-wise" if per_element else "batch normalization"
        address = self.constants.add(form, operand_format.pack(operand, *cut))
        strides = (operand.line_stride, operand.surface_stride) if per_element else (0, 0)
        return Fetch(use, 2, address, per_element, *strides)

    def _map_fetch(self, name: str, use: str, y: Placed, part: tuple[int, int], tile: RowTile | None) -> Fetch:
        """A map in memory as operand: one byte an element, or one an channel where it has one pixel."""
        other = self.placed[name]
        if other.view.lanes != y.view.lanes:
            raise UnsupportedOperator(
                "E202",
                "its channels do not lie as those of the other operand: concatenation left gaps",
                tensor=name,
                limit=f"channels in multiples of {self.machine.atom_bytes} where maps are joined",
                remedy="put a convolution between the concatenation and this operator",
            )
        per_element = (other.view.height, other.view.width) == (y.view.height, y.view.width)
        row = tile.row if tile is not None and per_element else 0
        surface = other.surface(first_surface=part[0] // self.machine.atom_bytes, row=row)
        strides = (surface.line_stride, surface.surface_stride) if per_element else (0, 0)
        return Fetch(use, 1, surface.address, per_element, *strides)

    # PDP

    def _pooling(self, node: Node) -> Operation:
        x, y = self.placed[node.inputs[0]], self.placed[node.output]
        kernel = node.integers("kernel_shape")
        window = window_of(node, kernel)
        spatial, extents = (x.view.height, x.view.width), (y.view.height, y.view.width)
        reach = [(n - 1) * s + k for n, s, k in zip(extents, window.strides, kernel, strict=True)]
        ends = [r - extent - begin for r, extent, begin in zip(reach, spatial, window.begins, strict=True)]
        pads = (window.begins[0], window.begins[1], max(ends[0], 0), max(ends[1], 0))
        used = [extent + min(end, 0) for extent, end in zip(spatial, ends, strict=True)]
        source = replace(x.surface(rows=used[0]), width=used[1])
        average = node.op == "NvAveragePool"
        reciprocals = node.integers("reciprocals") if average else (1 << RECIPROCAL_BITS,) * 2
        return Pooling(
            source,
            "AVERAGE" if average else "MAX",
            (kernel[0], kernel[1]),
            _window(window.strides, (1, 1), pads),
            (reciprocals[0], reciprocals[1]),
            y.surface(),
        )


def _window(strides: tuple[int, ...], dilations: tuple[int, ...], pads: tuple[int, int, int, int]) -> Window:
    """pads: top, left, bottom, right."""
    return Window(strides[0], strides[1], dilations[0], dilations[1], *pads)
