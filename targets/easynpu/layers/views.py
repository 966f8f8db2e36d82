"""Tensors as views of buffers: concatenation, splitting and broadcasting as address arithmetic.

A buffer is a feature map in a DTCM. A tensor is a whole buffer or a window of one: channel groups, rows and
columns from an offset, perhaps every n-th row or column, perhaps one repeated pixel. Addresses have word
granularity: channel offsets are multiples of 16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace

from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.ops.attributes import AXES, AXIS, BLOCKSIZE, PADDING, PADS, SELECTS, STARTS
from npuc.targets.easynpu.layers.nodes import Shape, concat_offsets, interleaved, is_part, split_offsets
from npuc.targets.easynpu.layers.windows import MapWindow
from npuc.targets.easynpu.machine.memory import LANES, MapPlace


@frozen
class MapView:
    """A map (channels, height, width) inside a buffer; offsets and steps in groups, rows and columns."""

    buffer: str
    channels: int
    height: int
    width: int
    group: int = 0
    row: int = 0
    column: int = 0
    row_step: int = 1
    column_step: int = 1
    """A step of 0 repeats the one row or column: a broadcast operand."""
    group_step: int = 1
    """0 repeats the first 16 channels."""

    def within(self, whole: MapPlace) -> MapPlace:
        """The place of the view, given the place of its buffer."""
        base = whole.base + self.row * whole.row + self.column * whole.pixel + self.group * whole.group
        row, pixel = whole.row * self.row_step, whole.pixel * self.column_step
        return replace(whole, base=base, row=row, pixel=pixel, group=whole.group * self.group_step)

    def channel_groups(self, first: int, channels: int) -> MapView:
        """The channel groups from `first` on that hold this many channels."""
        return self.window((first * LANES, 0, 0), (channels, self.height, self.width))

    def pixel_for(self, channels: int, height: int, width: int) -> MapView:
        """The first pixel and its first 16 channels, repeated over a map."""
        return MapView(self.buffer, channels, height, width, self.group, self.row, self.column, 0, 0, 0)

    def part(self, row: int, column: int) -> MapView:
        """The rows and columns from an offset on."""
        return self.window((0, row, column), (self.channels, self.height - row, self.width - column))

    def window(self, start: Shape, shape: Shape) -> MapView:
        """A map of this shape (C, H, W) that starts at a channel (a multiple of 16), row and column."""
        channel, row, column = start
        return MapView(  # without `replace`: a compile makes some 100,000 of them
            self.buffer,
            *shape,
            self.group + channel // LANES * self.group_step,
            self.row + row * self.row_step,
            self.column + column * self.column_step,
            self.row_step,
            self.column_step,
            self.group_step,
        )

    def interleaved(self, row: int, column: int, step: tuple[int, int], size: tuple[int, int]) -> MapView:
        """Every step-th row and column from an offset on, of a given size."""
        return replace(
            self.part(row, column),
            height=size[0],
            width=size[1],
            row_step=self.row_step * step[0],
            column_step=self.column_step * step[1],
        )

    def broadcast_to(self, height: int, width: int) -> MapView:
        """The view repeated over a map: a step of 0 where it has one row or column."""
        return replace(
            self,
            height=height,
            width=width,
            row_step=self.row_step if self.height == height else 0,
            column_step=self.column_step if self.width == width else 0,
        )


@frozen
class Views:
    """The view of every int8 tensor, and the shape (C, H, W) of every buffer."""

    tensors: Mapping[str, MapView]
    buffers: Mapping[str, Shape]
    copies: Mapping[str, tuple[tuple[str, MapView], ...]] = field(
        default_factory=dict[str, "tuple[tuple[str, MapView], ...]"]
    )
    """Per concatenation result: the operands that must be copied into it, and their windows."""

    def is_whole(self, view: MapView) -> bool:
        """Whether the view is its whole buffer, which needs no address arithmetic."""
        return view == MapView(view.buffer, *self.buffers[view.buffer])

    def leads(self, view: MapView) -> bool:
        """Whether the view is its buffer or the first rows of it, which lie at the same addresses."""
        channels, height, width = self.buffers[view.buffer]
        return view.height <= height and view == MapView(view.buffer, channels, view.height, width)


def views_of(graph: Graph, nodes: Sequence[Node], windows: Mapping[str, MapWindow]) -> Views:
    """The views of the tensors that a run of array nodes reads and writes.

    windows: the part of every tensor that is held: all of it, or the window of a tile.
    """
    return _Planner(graph, nodes, windows).result()


class _Planner:
    """Decides, from the last node to the first, which tensors are written straight into a concatenation."""

    def __init__(self, graph: Graph, nodes: Sequence[Node], windows: Mapping[str, MapWindow]) -> None:
        self.graph = graph
        self.nodes = nodes
        self.windows = windows
        self.shapes = {name: window.shape for name, window in windows.items()}
        self.views: dict[str, MapView] = {}
        self.buffers: dict[str, Shape] = {}
        self.copies: dict[str, tuple[tuple[str, MapView], ...]] = {}
        self.parts = {name for node in nodes if is_part(graph, node) for name in node.outputs}

    def result(self) -> Views:
        phases = {node.output: interleaved(self.graph, node) for node in self.nodes}
        never_stored = set(phases.values())
        for node in reversed(self.nodes):
            concat = phases[node.output]
            if concat is not None:
                self._interleave(node, concat)
            elif node.op == "Concat" and node not in never_stored:
                self._concat(node)
            elif surrounds(node):
                self._surround(node)
        for node in self.nodes:
            for name in node.inputs:
                if name not in self.graph.constants:
                    self._view(name)
            if is_part(self.graph, node):
                self._parts(node)
            else:
                for name in node.outputs:
                    self._view(name)
        return Views(self.views, self.buffers, self.copies)

    def _view(self, name: str) -> MapView:
        """The tensor's view; by default a buffer of its own."""
        if name not in self.views:
            shape = self.shapes[name]
            self.buffers[name] = shape
            self.views[name] = MapView(name, *shape)
        return self.views[name]

    def _concat(self, node: Node) -> None:
        """Gives each operand its window of the result, unless it already has a view or comes from outside."""
        whole, axis = self._view(node.output), AXIS(node)
        offsets = concat_offsets(self.graph, node) or []
        self._write_into(
            node.output,
            [
                (name, concat_window(whole, axis, offset, self._operand_shape(name, axis, whole)))
                for name, offset in zip(node.inputs, offsets, strict=False)
            ],
        )

    def _operand_shape(self, name: str, axis: int, whole: MapView) -> Shape:
        """What a result of this size takes of an operand: its channels (axis 1), or all of it (other axes)."""
        channels, height, width = self.shapes[name]
        return (channels, whole.height, whole.width) if axis == 1 else (channels, height, width)

    def _interleave(self, node: Node, concat: Node) -> None:
        """Gives each phase its rows and columns of the result; the concatenation itself is never stored."""
        whole, step = self._view(node.output), BLOCKSIZE(node)
        _, height, width = self.shapes[concat.output]
        phases = [
            (name, whole.interleaved(index // step, index % step, (step, step), (height, width)))
            for index, name in enumerate(concat.inputs)
        ]
        self._write_into(node.output, phases)
        self.views[concat.output] = whole

    def _surround(self, node: Node) -> None:
        """Gives a map its place inside a copy with padding, where the copy holds all of it, and nothing else."""
        name, pads = node.inputs[0], PADS(node) or (0,) * 4
        held, copy = self.windows[name], self.windows[node.output]
        row, column = held.rows[0] + pads[0] - copy.rows[0], held.columns[0] + pads[1] - copy.columns[0]
        (_, height, width), (_, high, wide) = held.shape, copy.shape
        inside = 0 <= row <= high - height and 0 <= column <= wide - width and held.channels == copy.channels
        if inside and name not in self.views and name not in self.parts:
            self.views[name] = self._view(node.output).window((0, row, column), held.shape)

    def _write_into(self, result: str, windows: Sequence[tuple[str, MapView]]) -> None:
        """Lets each operand be written to its window of a result, or notes that it must be copied there.

        An operand keeps a buffer of its own where a tile computes more of it than the result needs.
        """
        copied: list[tuple[str, MapView]] = []
        for name, window in windows:
            halo = self.shapes[name][1:] != (window.height, window.width)
            if name in self.views or name in self.parts or halo:
                copied.append((name, window))
            else:
                self.views[name] = window
        self.copies[result] = tuple(copied)

    def _parts(self, node: Node) -> None:
        """Gives each result of a Slice, Split or alias its part of the held source."""
        source, held = self._view(node.inputs[0]), self.windows[node.inputs[0]]
        if node.op == "Split":
            starts = [{AXIS(node): offset} for offset in split_offsets(self.graph, node)]
        elif node.op == "Slice":
            starts = [dict(zip(AXES(node), STARTS(node), strict=True))]
        else:
            starts = [dict[int, int]()]
        for name, start in zip(node.outputs, starts, strict=True):
            first = self.windows[name].start
            channel, row, column = (start.get(axis + 1, 0) + first[axis] - held.start[axis] for axis in range(3))
            self.views[name] = source.window((channel, row, column), self.shapes[name])


def surrounds(node: Node) -> bool:
    """Whether a node only copies its map into padding of another value (rewrites.with_borders)."""
    return node.op == "IntConv" and bool(SELECTS(node) and PADDING(node))


def concat_window(whole: MapView, axis: int, offset: int, shape: Shape) -> MapView:
    """The window of a concatenation's result that an operand of this shape fills."""
    channel, row, column = (offset if axis == each else 0 for each in (1, 2, 3))
    return whole.window((channel, row, column), shape)
