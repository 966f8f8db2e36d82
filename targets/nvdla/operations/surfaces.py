"""Memory layout of feature maps: buffers, and tensors as views of them.

Concat, Split, Slice and the Reshape of a 1x1 map move nothing: their tensors are windows of one buffer, defined by
surfaces and lines. The same holds for Interleave along H: its inputs are alternate lines of the buffer. The maps
of an Interleave along W have lines of equal length, so that the distance between pixels is constant, also from the
end of one line to the start of the next. Each channel has a lane: its position among the channels of the buffer.
Where the channels of a tensor do not fill whole atoms the lanes have gaps, which convolutions skip with zero
weights.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import AXES, AXIS, STARTS, STEPS
from npuc.targets.nvdla.arithmetic.integer import RESULT
from npuc.targets.nvdla.formats.alignment import align, alignment
from npuc.targets.nvdla.formats.pixels import FORMATS, Conversion
from npuc.targets.nvdla.formats.precision import precision_of
from npuc.targets.nvdla.formats.weights import TILE
from npuc.targets.nvdla.machine.parameters import BYTES, Machine

Lanes = tuple[int, ...]
"""The lane of every channel, ascending, counted from the first surface of the view."""


def converts(graph: Graph, node: Node) -> bool:
    """Whether a node converts its map to another number format: SDP then accesses 16 bits in pairs of atoms."""
    return bool(RESULT(node)) and RESULT(node) != graph.tensors[node.inputs[0]].dtype


def map_shape(shape: tuple[int, ...]) -> tuple[int, int, int]:
    """(C, H, W) of a tensor (1, C, H, W) or (1, C)."""
    channels, height, width = (*shape[1:], 1, 1)[:3]
    return channels, height, width


def tensor_precision(graph: Graph, name: str) -> str:
    """NVDLA's precision of a tensor."""
    return precision_of(graph.tensors[name].dtype)


@frozen
class SurfaceBuffer:
    """A packed feature cube of whole atoms in memory, or an image."""

    name: str
    width: int
    height: int
    surfaces: int
    atom_bytes: int
    precision: str = "int8"
    pixels: str = ""
    """The pixel format of an image (table 33); empty for a feature cube."""
    conversion: Conversion | None = None
    """Of a frame's pixels."""

    @property
    def atom_elements(self) -> int:
        """Lanes of a surface."""
        return self.atom_bytes // BYTES[self.precision]

    @property
    def line_stride(self) -> int:
        """Bytes of a line; both planes of an image have lines of equal length."""
        if not self.pixels:
            return self.width * self.atom_bytes
        line = self.width * max(plane.pixel_bytes for plane in FORMATS[self.pixels].planes)
        return align(line, alignment("pixel", "line", self.atom_bytes))

    @property
    def surface_stride(self) -> int:
        """Bytes of a surface."""
        return self.height * self.line_stride

    @property
    def bytes(self) -> int:
        """Total size."""
        return self.surfaces * self.surface_stride


@frozen
class BufferView:
    """A window of a buffer, `offset` bytes from its start; `lanes` count from the window's first surface."""

    buffer: SurfaceBuffer
    offset: int
    width: int
    height: int
    lanes: Lanes
    step: int = 1
    """Lines of the buffer from one line of the window to the next."""

    @property
    def line_stride(self) -> int:
        """Bytes from line to line."""
        return self.step * self.buffer.line_stride

    @property
    def extent(self) -> int:
        """Lanes up to that of the last channel: the number of channels of the cube that the hardware sees."""
        return self.lanes[-1] + 1

    @cached_property
    def lane_numbers(self) -> Array:
        """The lane of every channel."""
        return np.array(self.lanes)

    def channels_in(self, first: int, count: int) -> Array:
        """The channels whose lanes are in this range."""
        return np.flatnonzero((self.lane_numbers >= first) & (self.lane_numbers < first + count))

    def as_image(self, pixels: str, conversion: Conversion | None = None) -> BufferView:
        """The tensor, alone in its buffer, as an image in a format of table 33."""
        planes = len(FORMATS[pixels].planes)
        return replace(self, buffer=replace(self.buffer, surfaces=planes, pixels=pixels, conversion=conversion))

    def window(self, surface: int = 0, row: int = 0, column: int = 0) -> int:
        """The byte offset in the buffer of an atom of the window."""
        held = self.buffer
        return self.offset + surface * held.surface_stride + row * self.line_stride + column * held.atom_bytes


def is_view(graph: Graph, node: Node) -> bool:
    """Whether the node's tensors can be windows of one buffer, so that it moves nothing."""
    shapes = [graph.shape(name) for name in (*node.inputs[:1], *node.outputs)]
    if any(len(shape) not in (2, 4) or shape[0] != 1 for shape in shapes):
        return False
    match node.op:
        case "Identity" | "Concat" | "Split":
            return True
        case "Interleave":
            return AXIS(node) == 2
        case "Reshape":
            return map_shape(shapes[0]) == map_shape(shapes[1])
        case "Slice":
            return all(step == 1 for step in STEPS(node)) and all(AXES(node))
        case _:
            return False


def joins(graph: Graph, node: Node) -> bool:
    """Whether the inputs of a node are parts of its output, all in one buffer."""
    return node.op in ("Concat", "Interleave") and is_view(graph, node)


def parts(graph: Graph, node: Node) -> list[tuple[str, tuple[int, int, int]]]:
    """The tensors that are parts of another one, each with its first channel, row and column there.

    The other one is the output of a Concat or an Interleave, otherwise the first input.
    """
    if node.op == "Interleave":
        return [(name, (0, row, 0)) for row, name in enumerate(node.inputs)]
    if node.op == "Slice":
        start = [0, 0, 0, 0]
        for axis, first in zip(AXES(node), STARTS(node), strict=True):
            start[axis] = first
        return [(node.output, (start[1], start[2], start[3]))]
    names = node.inputs if node.op == "Concat" else node.outputs
    if node.op not in ("Concat", "Split"):
        return [(node.output, (0, 0, 0))]
    axis = AXIS(node)
    found: list[tuple[str, tuple[int, int, int]]] = []
    at = 0
    for name in names:
        start = [0, 0, 0]
        start[axis - 1] = at
        found.append((name, (start[0], start[1], start[2])))
        at += graph.shape(name)[axis]
    return found


def contiguous_lanes(channels: int) -> Lanes:
    """Lanes without gaps."""
    return tuple(range(channels))


def spaced_lanes(channels: int, together: int, atom: int) -> Lanes:
    """Lanes of which only the first `together` of each atom are used."""
    return tuple(channel // together * atom + channel % together for channel in range(channels))


def join_lanes(given: Sequence[Lanes], atom: int) -> Lanes:
    """The lanes of concatenated tensors, each starting with a new surface."""
    found: list[int] = []
    base = 0
    for lanes in given:
        found += [base + lane for lane in lanes]
        base += -(-(lanes[-1] + 1) // atom) * atom
    return tuple(found)


def slice_lanes(lanes: Lanes, first: int, count: int, atom: int) -> Lanes:
    """Lanes of a range of channels, counted from the surface of the first one."""
    base = lanes[first] // atom * atom
    return tuple(lane - base for lane in lanes[first : first + count])


@frozen
class Surfaces:
    """The view of every tensor in memory."""

    views: Mapping[str, BufferView]

    @property
    def buffers(self) -> list[SurfaceBuffer]:
        """Every buffer once, in order of appearance."""
        return list(dict.fromkeys(view.buffer for view in self.views.values()))

    def with_images(self, images: Mapping[str, str], converted: Mapping[str, Conversion]) -> Surfaces:
        """A copy with some tensors as images, in formats of table 33, some of them converted."""
        made = {name: self.views[name].as_image(each, converted.get(name)) for name, each in images.items()}
        return Surfaces({**self.views, **made})


ComputedLanes = Callable[[Node, Mapping[str, Lanes]], Lanes]
"""Computes the lanes of a computed node's result from those of the tensors before it."""


def place(
    graph: Graph,
    nodes: Sequence[Node],
    loaded: Sequence[str],
    machine: Machine,
    computed: ComputedLanes,
    tiled: Collection[str] = (),
) -> Surfaces:
    """Views of all tensors of the nodes that NVDLA computes or moves.

    loaded: tensors that the host loads; tiled: results that Winograd writes in whole tiles, in buffers of their
    own. Every input of a Concat is part of the Concat's buffer; with_copies ensures that this is possible.
    """
    lanes = lanes_of(graph, nodes, loaded, machine, computed)
    widths = _line_widths(graph, nodes)
    pairs = {name for node in nodes if converts(graph, node) for name in (node.inputs[0], node.output)}

    def view_whole_buffer(name: str, tile: int = 1) -> BufferView:
        """A view of a whole buffer for the tensor, in whole tiles."""
        _, height, width = map_shape(graph.shape(name))
        precision = tensor_precision(graph, name)
        surfaces = lanes[name][-1] // machine.atom_elements(precision) + 1
        surfaces += surfaces % 2 if name in pairs and precision != "int8" else 0
        extents = max(align(width, tile), widths.get(name, 0)), align(height, tile)
        return BufferView(
            SurfaceBuffer(name, *extents, surfaces, machine.atom_bytes, precision), 0, width, height, lanes[name]
        )

    views = _side_by_side(graph, nodes, view_whole_buffer)
    moves = [node for node in nodes if is_view(graph, node)]
    for node in reversed(moves):  # outer Concats first, so that inner ones become parts of them
        if joins(graph, node):
            whole = views.get(node.output) or view_whole_buffer(node.output)
            views[node.output] = whole
            step = len(node.inputs) if node.op == "Interleave" else 1
            views |= {name: _window(graph, name, whole, at, lanes, step) for name, at in parts(graph, node)}
    for name in (*loaded, *(name for node in nodes if not is_view(graph, node) for name in node.outputs)):
        views.setdefault(name, view_whole_buffer(name, TILE if name in tiled else 1))
    for node in moves:
        if not joins(graph, node):
            whole = views[node.inputs[0]]
            views |= {name: _window(graph, name, whole, at, lanes) for name, at in parts(graph, node)}
    return Surfaces(views)


def _side_by_side(graph: Graph, nodes: Sequence[Node], own: Callable[[str], BufferView]) -> dict[str, BufferView]:
    """Views of maps to interleave along W, one behind the other in a buffer of their own, as RUBIK needs.

    Only for maps with lines of equal length whose place is not determined by anything else.
    """
    made = {name: node for node in nodes for name in node.outputs}
    held = {name for node in nodes if is_view(graph, node) for name in (node.inputs if joins(graph, node) else ())}
    found: dict[str, BufferView] = {}
    for node in nodes:
        if node.op != "Interleave" or is_view(graph, node) or len(set(node.inputs)) < len(node.inputs):
            continue
        free = (
            name not in held and name not in found and _is_placed_freely(graph, made.get(name))
            for name in node.inputs
        )
        views = [own(name) for name in node.inputs] if all(free) else []
        if len({(each.width, each.lanes) for each in views}) == 1:
            buffer = views[0].buffer
            whole = replace(buffer, name=f"{node.output}/columns", surfaces=len(views) * buffer.surfaces)
            size = buffer.surfaces * buffer.surface_stride
            found |= {
                name: replace(each, buffer=whole, offset=number * size)
                for number, (name, each) in enumerate(zip(node.inputs, views, strict=True))
            }
    return found


def _is_placed_freely(graph: Graph, node: Node | None) -> bool:
    """Whether a node's result is placed by itself, not as part of the node's input."""
    return node is not None and (joins(graph, node) or not is_view(graph, node))


def _line_widths(graph: Graph, nodes: Sequence[Node]) -> dict[str, int]:
    """Columns of a line for tensors interleaved along W: as many as the first map has; for the result the sum.

    A result that the host reads is left out: it is packed, as NVDLA's own software expects it.
    """
    found: dict[str, int] = {}
    device = set(nodes)
    for node in nodes:
        if node.op == "Interleave" and not is_view(graph, node):
            width = graph.shape(node.inputs[0])[3]
            found |= dict.fromkeys(node.inputs, width)
            inside = all(reader in device for reader in graph.readers[node.output])
            if inside and node.output not in graph.outputs:
                found[node.output] = width * len(node.inputs)
    return found


def _window(
    graph: Graph, name: str, whole: BufferView, at: tuple[int, int, int], lanes: Mapping[str, Lanes], step: int = 1
) -> BufferView:
    """A view of a tensor that is part of another one, using every step-th of its lines."""
    channel, row, column = at
    _, height, width = map_shape(graph.shape(name))
    surface = whole.lanes[channel] // whole.buffer.atom_elements
    offset = whole.window(surface, row, column)
    return BufferView(whole.buffer, offset, width, height, lanes[name], whole.step * step)


def lanes_of(
    graph: Graph, nodes: Sequence[Node], loaded: Sequence[str], machine: Machine, computed: ComputedLanes
) -> dict[str, Lanes]:
    """The lanes of every tensor, in order of computation."""
    found = loaded_lanes(graph, loaded)
    for node in nodes:
        found |= lanes_of_results(graph, node, found, machine, computed)
    return found


def loaded_lanes(graph: Graph, loaded: Sequence[str]) -> dict[str, Lanes]:
    """The lanes of the tensors that the host loads."""
    return {name: contiguous_lanes(map_shape(graph.shape(name))[0]) for name in loaded}


def lanes_of_results(
    graph: Graph, node: Node, known: Mapping[str, Lanes], machine: Machine, computed: ComputedLanes
) -> dict[str, Lanes]:
    """The lanes of a node's results, given those of its inputs."""
    atom = machine.atom_elements(tensor_precision(graph, node.output))
    if not is_view(graph, node):
        return dict.fromkeys(node.outputs, computed(node, known))
    if node.op == "Concat" and AXIS(node) == 1:
        return {node.output: join_lanes([known[name] for name in node.inputs], atom)}
    moved = [(node.output, (0, 0, 0))] if joins(graph, node) else parts(graph, node)
    lanes = known[node.inputs[0]]
    return {
        name: slice_lanes(lanes, first, map_shape(graph.shape(name))[0], atom) for name, (first, _, _) in moved
    }


def with_copies(graph: Graph, nodes: Sequence[Node], loaded: Sequence[str]) -> list[tuple[Node, str]]:
    """The inputs of Concats and Interleaves that need a copy in the joint buffer: (node, tensor).

    A tensor is placed where it is computed; it can be part of one joining node, once, and not also of another
    tensor.
    """
    views = [node for node in nodes if is_view(graph, node)]
    moved = {name for node in views if not joins(graph, node) for name in node.outputs}
    claimed: set[str] = set(loaded) & set(graph.inputs)
    found: list[tuple[Node, str]] = []
    for node in nodes:
        if joins(graph, node):
            for name in node.inputs:
                if name in moved or name in claimed:
                    found.append((node, name))
                claimed.add(name)
    return found
