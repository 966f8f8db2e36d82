"""What selection works on: placed tensors, the image of constants, convolutions as the hardware sees them.

A convolution has lanes of input and result, passes over lanes, and windows of tiles. Multi-batch mode is for a
fully connected layer on cubes stored one below another, each convolved by itself. Where every window covers one
cube, each line of the result belongs to one cube. A convolution whose stride is the height of a cube computes the
same, but strides end at 8; the mode has no such limit. Where both are possible the mode is used, as NVDLA's own
documentation advises for such layers; the cycle model rates both equally.

Source: Table 35 (stride of cubes); NVDLA's documentation (up to 32 batches of direct convolution); its assertions
(SDP writes batches from even atoms on).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import GROUP, PADDING, STRIDES
from npuc.ops.windows import window_of
from npuc.targets.nvdla.arithmetic.integer import SHARING, WINOGRAD, kernel_extents, operands
from npuc.targets.nvdla.formats.alignment import align, alignment
from npuc.targets.nvdla.formats.pixels import FORMATS
from npuc.targets.nvdla.formats.weights import DIRECT, WeightForm
from npuc.targets.nvdla.machine.parameters import MOST_STRIDE, Machine
from npuc.targets.nvdla.operations.operation import Kernels, KernelWindow, Sdp, Surface
from npuc.targets.nvdla.operations.surfaces import (
    BufferView,
    Lanes,
    contiguous_lanes,
    map_shape,
    spaced_lanes,
    tensor_precision,
)
from npuc.targets.nvdla.operations.tiling import Geometry, RowTile, expect_kernels, kernels_together

KernelKey = tuple[str, int, int, WeightForm]
"""The key of a pass's weights: name of the result, first lane, number of lanes, weight form."""


@dataclass
class Constants:
    """The image of weights and operands; equal blobs are stored once."""

    machine: Machine
    base: int
    image: bytearray = field(default_factory=bytearray)
    known: dict[bytes, int] = field(default_factory=dict[bytes, int])
    """The address of each blob by its digest."""
    kernels: dict[KernelKey, Kernels] = field(default_factory=dict[KernelKey, Kernels])
    """Weights that are stored already."""
    sdps: dict[tuple[str, int, int], Sdp] = field(default_factory=dict[tuple[str, int, int], Sdp])
    """SDP settings that are the same for every tile, by result, first lane and number of lanes."""
    counted: bool = False
    """Only count sizes, for costing: the image stays empty and every address is 0."""

    def add(self, form: str, data: bytes) -> int:
        """The address of a blob, stored once and aligned as table 35 demands for its format."""
        if self.counted:
            return 0
        digest = blake2b(data).digest()
        if digest not in self.known:
            start = align(len(self.image), alignment(form, "start", self.machine.atom_bytes))
            self.image += bytes(start - len(self.image))
            self.image += data
            self.known[digest] = self.base + start
        return self.known[digest]


@frozen
class Placed:
    """A tensor's view and the address of its buffer."""

    view: BufferView
    base: int

    def surface(
        self,
        *,
        lanes: int | None = None,
        first_surface: int = 0,
        row: int = 0,
        rows: int | None = None,
        step: int = 1,
    ) -> Surface:
        """The tensor, or some of its surfaces and rows, every step-th, as registers describe it."""
        view, held = self.view, self.view.buffer
        return Surface(
            self.base + view.window(first_surface, row * step),
            view.width,
            view.height if rows is None else rows,
            FORMATS[held.pixels].channels if held.pixels else view.extent if lanes is None else lanes,
            held.atom_bytes if (view.width, rows or view.height) == (1, 1) else view.line_stride * step,
            0 if held.pixels and held.surfaces == 1 else held.surface_stride,
            held.precision,
            held.pixels,
            held.conversion,
        )


def geometry(
    graph: Graph, node: Node, lanes: int, kernels: int | None = None, form: WeightForm = DIRECT
) -> Geometry:
    """The geometry of a convolution, or of some of its kernels, whose input fills `lanes` lanes.

    A kernel one line high reads only every stride-th line, so its geometry leaves out the others (`line_step`).
    """
    _, height, width = map_shape(graph.shape(node.inputs[0]))
    weights = graph.shape(node.inputs[1])
    kernel_height, kernel_width = kernel_extents(node, weights)
    window = window_of(node, (kernel_height, kernel_width))
    out_height, out_width = graph.shape(node.output)[2:]
    stride, step = window.strides[0], 1
    skips = kernel_height == 1 and not WINOGRAD(node)  # transformed weights include the stride already
    if skips and not window.begins[0] and (out_height - 1) * stride < height:
        height, stride, step = out_height, 1, stride
    return Geometry(
        width, height, lanes, out_height, out_width, kernels or weights[0], kernel_height, kernel_width,
        stride, window.dilations[0], window.begins[0], tensor_precision(graph, node.inputs[0]),
        window.strides[1], window.begins[1], window.reach[1], form, step,
    )  # fmt: skip


def computed_lanes(graph: Graph, machine: Machine, node: Node, known: Mapping[str, Lanes]) -> Lanes:
    """The lanes of a computed node's result.

    Element-wise operations keep those of their input. A convolution fills atoms, unless its kernels are so large
    that fewer share one, or it adds a map whose lanes have gaps.
    """
    x = known[node.inputs[0]]
    if node.op != "NvConv":
        return x
    kernels, atom = graph.shape(node.output)[1], machine.atom_elements(tensor_precision(graph, node.output))
    together = kernels_per_atom(graph, machine, node, x)
    if together < atom:
        return spaced_lanes(kernels, together, atom)
    for name in operands(node)[:4]:
        if name in known and graph.shape(name) == graph.shape(node.output):
            return known[name]
    return contiguous_lanes(kernels)


def kernels_per_atom(graph: Graph, machine: Machine, node: Node, x: Lanes) -> int:
    """The number of a convolution's kernels that share an atom of its result: the atom's lanes, or fewer that fit.

    Raises DoesNotFit (E302) if not even one fits.
    """
    shape = geometry(graph, node, x[-1] + 1)
    atom = machine.atom_elements(shape.precision)
    group = min(machine.kernel_group(shape.precision), atom)
    most = SHARING(node) or atom
    if kernels_together(machine, shape) >= group:
        return most
    if GROUP(node) == 1:
        together = expect_kernels(machine, shape, node.name, node.op)
        return min(most, together)
    kernels = graph.shape(node.output)[1]
    while True:
        parts = parts_of(graph, node, (x, spaced_lanes(kernels, most, atom)), (atom, most), atom)
        shapes = {geometry(graph, node, size.lanes, size.count) for size in {part.size for part in parts}}
        if all(kernels_together(machine, each) >= min(group, each.kernels) for each in shapes):
            return most
        if most == 1:
            return expect_kernels(machine, max(shapes, key=lambda each: each.channels), node.name, node.op)
        most //= 2


@frozen
class ConvolutionPart:
    """A pass of a convolution: some lanes of the result, and the input lanes that they depend on."""

    first: int
    count: int
    lane: int
    """The first lane of the input, at the start of an atom."""
    lanes: int

    @property
    def size(self) -> ConvolutionPart:
        """A pass as large as this one."""
        return ConvolutionPart(0, self.count, 0, self.lanes)

    def source(self, x: Placed, tile: RowTile, shape: Geometry) -> Surface:
        """The input that the pass reads, every line_step-th line."""
        first, step = self.lane // x.view.buffer.atom_elements, shape.line_step
        return x.surface(lanes=shape.channels, first_surface=first, row=tile.line, rows=tile.lines, step=step)

    def result(self, y: Placed, tile: RowTile) -> Surface:
        """The part of the result that the pass writes."""
        surface = self.first // y.view.buffer.atom_elements
        return y.surface(lanes=self.count, first_surface=surface, row=tile.row, rows=tile.rows)


def parts_of(
    graph: Graph, node: Node, lanes: tuple[Lanes, Lanes], width: tuple[int, int], atom: int
) -> list[ConvolutionPart]:
    """Passes over the lanes of the result, each with the input atoms that its groups need.

    lanes: of input and result. width: lanes from one pass to the next, and how many of them a pass computes.
    """
    x, y = lanes
    groups, channels = GROUP(node), len(x)
    kernels, extent = graph.shape(node.output)[1] // groups, y[-1] + 1
    group_of = {lane: number // kernels for number, lane in enumerate(y)}
    found: list[ConvolutionPart] = []
    for first in range(0, extent, width[0]):
        count = min(width[1], extent - first)
        used = [group_of[lane] for lane in range(first, first + count) if lane in group_of]
        per_group = channels // groups
        low = x[min(used) * per_group] // atom * atom if used else 0
        high = x[(max(used) + 1) * per_group - 1] + 1 if used else 1
        found.append(ConvolutionPart(first, count, low, high - low))
    return found


def dense_weights(graph: Graph, node: Node, part: ConvolutionPart, views: tuple[BufferView, BufferView]) -> Array:
    """The dense weights (lanes of the result, lanes of the input, R, S) of a pass.

    Zero outside groups and in lanes without a channel. views: of the input and of the result.
    """
    w = graph.constants[node.inputs[1]]
    per_group, kernels = w.shape[1], len(w) // GROUP(node)
    lanes_in, lanes_out = (view.lane_numbers for view in views)
    dense = np.zeros((part.count, part.lanes, *w.shape[2:]), w.dtype)
    inside = views[1].channels_in(part.first, part.count)
    for group in dict.fromkeys((inside // kernels).tolist()):
        rows = inside[inside // kernels == group]
        columns = lanes_in[group * per_group : (group + 1) * per_group] - part.lane
        dense[np.ix_(lanes_out[rows] - part.first, columns)] = w[rows]
    return dense


def tile_window(graph: Graph, node: Node, shape: Geometry, tile: RowTile) -> KernelWindow:
    """The window of a kernel on a tile: padding only at the borders of the map."""
    window = window_of(node, kernel_extents(node, graph.shape(node.inputs[1])))
    start = tile.row * shape.stride_y - shape.top
    end = start + shape.lines_under(tile.rows)
    pads = max(-start, 0), shape.left, max(end - tile.line - tile.lines, 0), shape.pad_right
    return hardware_window((shape.stride_y, shape.stride_x), window.dilations, pads, PADDING(node))


def hardware_window(
    strides: tuple[int, ...], dilations: tuple[int, ...], pads: tuple[int, int, int, int], value: int
) -> KernelWindow:
    """A window as registers describe it; pads: top, left, bottom, right; value: the integer used for padding."""
    return KernelWindow(strides[0], strides[1], dilations[0], dilations[1], *pads, value)


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


@frozen
class Context:
    """The integer graph, the machine, the placement of tensors, and the constants so far."""

    graph: Graph
    machine: Machine
    placed: Mapping[str, Placed]
    constants: Constants
    data_banks: int = 0
    """CBUF banks preferred for data; 0 for half of them."""
    passes: dict[str, list[ConvolutionPart]] = field(default_factory=dict[str, list[ConvolutionPart]])
    """Passes of the convolutions seen so far, by result."""
    shapes: dict[tuple[str, ConvolutionPart, WeightForm], Geometry] = field(
        default_factory=dict[tuple[str, ConvolutionPart, WeightForm], Geometry]
    )
    """The geometry of each pass, by result, pass and weight form."""
    copied: Mapping[KernelKey, int] = field(default_factory=dict[KernelKey, int])
    """Addresses in the second memory to which BDMA copies weights."""
    pieces: Mapping[str, Sequence[Piece]] = field(default_factory=dict[str, "Sequence[Piece]"])
    """The weight copies scheduled behind each layer, by layer name."""

    @property
    def preferred_banks(self) -> int:
        """CBUF banks preferred for data, the default resolved."""
        return self.data_banks or self.machine.cbuf_banks // 2


@frozen
class PlannedLayer:
    """A computed node, its weight form, and the pooling node fused behind SDP, if any."""

    node: Node
    form: WeightForm = DIRECT
    pool: Node | None = None

    @property
    def name(self) -> str:
        """The tensor that the layer writes to memory."""
        return (self.pool or self.node).output

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes that it computes."""
        return (self.node, self.pool) if self.pool else (self.node,)


@frozen
class Piece:
    """A piece of the weights of a layer's pass that one BDMA transfer copies: first byte and size."""

    layer: PlannedLayer
    part: ConvolutionPart
    first: int
    bytes: int
