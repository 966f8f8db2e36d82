"""Which part of which buffer a tensor is: concatenation, splitting and broadcasting as address arithmetic.

A buffer is a feature map in a DTCM. A tensor is a whole buffer, or a window of one: channel groups, rows and
columns from an offset, perhaps every n-th row or column, perhaps one pixel for all. Only word granularity exists:
channel offsets are multiples of 16.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from npuc.ir import Graph, Node
from npuc.targets.easynpu.memory import LANES, Place, groups

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class View:
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

    def within(self, whole: Place) -> Place:
        """Where the view lies when its buffer lies at this place."""
        base = whole.base + self.row * whole.row + self.column * whole.pixel + self.group * whole.group
        return replace(whole, base=base, row=whole.row * self.row_step, pixel=whole.pixel * self.column_step)

    def channel_groups(self, first: int, channels: int) -> View:
        """The groups from `first` on that hold this many channels."""
        return replace(self, group=self.group + first, channels=channels)

    def part(self, row: int, column: int) -> View:
        """The rows and columns from an offset on."""
        return replace(
            self,
            row=self.row + row * self.row_step,
            column=self.column + column * self.column_step,
            height=self.height - row,
            width=self.width - column,
        )

    def interleaved(self, row: int, column: int, step: tuple[int, int], size: tuple[int, int]) -> View:
        """Every step-th row and column from an offset on, of a given size."""
        return replace(
            self.part(row, column),
            height=size[0],
            width=size[1],
            row_step=self.row_step * step[0],
            column_step=self.column_step * step[1],
        )

    def broadcast_to(self, height: int, width: int) -> View:
        """The view repeated over a map: a step of 0 where it has one row or column."""
        return replace(
            self,
            height=height,
            width=width,
            row_step=self.row_step if self.height == height else 0,
            column_step=self.column_step if self.width == width else 0,
        )


@dataclass(frozen=True)
class Views:
    """The view of every int8 tensor, and the shape (C, H, W) of every buffer."""

    tensors: Mapping[str, View]
    buffers: Mapping[str, Shape]
    copies: Mapping[str, tuple[tuple[str, View], ...]] = field(
        default_factory=dict[str, "tuple[tuple[str, View], ...]"]
    )
    """Per concatenation result: the operands that must be copied into it, and their windows."""

    def is_whole(self, view: View) -> bool:
        """Whether the view is its buffer, so that no address arithmetic is needed."""
        return view == View(view.buffer, *self.buffers[view.buffer])


def map_shape(shape: Sequence[int]) -> Shape:
    """(C, H, W) of a tensor (1, C, H, W) or (1, C)."""
    channels, height, width = (*shape[1:], 1, 1)[:3]
    return channels, height, width


def is_alias(graph: Graph, node: Node) -> bool:
    """Whether an int8 reshape leaves every word in its place: (1, C, 1, 1) and (1, C)."""
    if node.op != "Reshape" or graph.tensors[node.output].dtype != "int8":
        return False
    before, after = graph.shape(node.inputs[0]), graph.shape(node.output)
    vectors = all(shape[:1] == (1,) and np.prod(shape[2:]) == 1 for shape in (before, after))
    return before == after or (vectors and before[:2] == after[:2])


def concat_offsets(graph: Graph, node: Node) -> list[int] | None:
    """The offset of each operand along the axis, if words suffice: None for unaligned channels or other axes."""
    axis = node.integer("axis")
    extents = [graph.shape(name)[axis] for name in node.inputs]
    offsets = [sum(extents[:position]) for position in range(len(extents))]
    if len(graph.shape(node.output)) != 4 or axis == 0:
        return None
    if axis == 1 and any(offset % LANES for offset in offsets):
        return None
    return offsets


def is_window(graph: Graph, node: Node) -> bool:
    """Whether a Slice or Split only takes whole words: unit steps forward, channels from a multiple of 16 on."""
    if len(graph.shape(node.inputs[0])) != 4:
        return False
    if node.op == "Split":
        offsets = _split_offsets(graph, node)
        return node.integer("axis") in (2, 3) or all(offset % LANES == 0 for offset in offsets)
    if node.op != "Slice":
        return False
    pairs = dict(zip(node.integers("axes"), node.integers("starts"), strict=True))
    steps = node.integers("steps", (1,) * len(pairs))
    return all(step == 1 for step in steps) and 0 not in pairs and pairs.get(1, 0) % LANES == 0


def _split_offsets(graph: Graph, node: Node) -> list[int]:
    extents = [graph.shape(name)[node.integer("axis")] for name in node.outputs]
    return [sum(extents[:position]) for position in range(len(extents))]


def interleaved(graph: Graph, node: Node) -> Node | None:
    """The concatenation that a DepthToSpace interleaves, if address arithmetic can do it: one operand a phase.

    Phase (i, j) of block size s, operand i * s + j, fills every s-th row and column from (i, j) on.
    """
    if node.op != "DepthToSpace" or node.text("mode", "DCR") != "DCR":
        return None
    concat = graph.producers.get(node.inputs[0])
    if concat is None or concat.op != "Concat" or concat.integer("axis") != 1:
        return None
    phases = len(concat.inputs) == node.integer("blocksize") ** 2
    equal = len({graph.shape(name) for name in concat.inputs}) == 1
    return concat if phases and equal and graph.only_reader(concat.output) is node else None


def views_of(graph: Graph, nodes: Sequence[Node], shapes: Mapping[str, Shape]) -> Views:
    """The views of the tensors that a run of array nodes reads and writes.

    shapes: (C, H, W) of what is held of every tensor: all of it, or the window of a tile.
    """
    return _Planner(graph, nodes, shapes).result()


class _Planner:
    """Decides from the last node to the first which tensors are written straight into a concatenation."""

    def __init__(self, graph: Graph, nodes: Sequence[Node], shapes: Mapping[str, Shape]) -> None:
        self.graph = graph
        self.nodes = nodes
        self.shapes = shapes
        self.views: dict[str, View] = {}
        self.buffers: dict[str, Shape] = {}
        self.copies: dict[str, tuple[tuple[str, View], ...]] = {}
        windows = [node for node in nodes if is_alias(graph, node) or node.op in ("Slice", "Split")]
        self.windows = {name for node in windows for name in node.outputs}

    def result(self) -> Views:
        phases = {node.output: interleaved(self.graph, node) for node in self.nodes}
        never_stored = {id(concat) for concat in phases.values()}
        for node in reversed(self.nodes):
            concat = phases[node.output]
            if concat is not None:
                self._interleave(node, concat)
            elif node.op == "Concat" and id(node) not in never_stored:
                self._concat(node)
        for node in self.nodes:
            for name in node.inputs:
                if name not in self.graph.constants:
                    self._view(name)
            if is_alias(self.graph, node):
                source = self._view(node.inputs[0])
                self.views[node.output] = source
            elif node.op in ("Slice", "Split"):
                self._windows(node)
            else:
                for name in node.outputs:
                    self._view(name)
        return Views(self.views, self.buffers, self.copies)

    def _view(self, name: str) -> View:
        """The tensor's view; a buffer of its own where nothing else was decided."""
        if name not in self.views:
            shape = self.shapes[name]
            self.buffers[name] = shape
            self.views[name] = View(name, *shape)
        return self.views[name]

    def _concat(self, node: Node) -> None:
        """Gives each operand its window of the result, unless it already has a place or comes from outside."""
        whole, axis = self._view(node.output), node.integer("axis")
        offsets = concat_offsets(self.graph, node) or []
        self._write_into(
            node.output,
            [
                (name, concat_window(whole, axis, offset, self._operand_shape(name, axis, whole)))
                for name, offset in zip(node.inputs, offsets, strict=False)
            ],
        )

    def _operand_shape(self, name: str, axis: int, whole: View) -> Shape:
        """What a result of this size takes of an operand: all its channels, or all of it along other axes."""
        channels, height, width = self.shapes[name]
        return (channels, whole.height, whole.width) if axis == 1 else (channels, height, width)

    def _interleave(self, node: Node, concat: Node) -> None:
        """Gives each phase its rows and columns of the result; the concatenation itself is never stored."""
        whole, step = self._view(node.output), node.integer("blocksize")
        _, height, width = self.shapes[concat.output]
        phases = [
            (name, whole.interleaved(index // step, index % step, (step, step), (height, width)))
            for index, name in enumerate(concat.inputs)
        ]
        self._write_into(node.output, phases)
        self.views[concat.output] = whole

    def _write_into(self, result: str, windows: Sequence[tuple[str, View]]) -> None:
        """Lets each operand be written to its window of a result, or notes that it must be copied there.

        An operand of which a tile computes more than the result needs keeps a buffer of its own.
        """
        copied: list[tuple[str, View]] = []
        for name, window in windows:
            halo = self.shapes[name][1:] != (window.height, window.width)
            if name in self.views or name in self.windows or halo:
                copied.append((name, window))
            else:
                self.views[name] = window
        self.copies[result] = tuple(copied)

    def _windows(self, node: Node) -> None:
        source = self._view(node.inputs[0])
        if node.op == "Split":
            starts = [{node.integer("axis"): offset} for offset in _split_offsets(self.graph, node)]
        else:
            starts = [dict(zip(node.integers("axes"), node.integers("starts"), strict=True))]
        for name, start in zip(node.outputs, starts, strict=True):
            channels, height, width = self.shapes[name]
            moved = source.part(start.get(2, 0), start.get(3, 0)).channel_groups(
                start.get(1, 0) // LANES, channels
            )
            self.views[name] = replace(moved, height=height, width=width)


def concat_window(whole: View, axis: int, offset: int, shape: Shape) -> View:
    """The window of a concatenation's result that an operand of this shape fills."""
    start = {2: (offset, 0), 3: (0, offset)}.get(axis, (0, 0))
    first = groups(offset) if axis == 1 else 0
    moved = whole.part(*start).channel_groups(first, shape[0])
    return replace(moved, height=shape[1], width=shape[2])
