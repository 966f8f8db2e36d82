"""Nodes that are pure address arithmetic: views of other maps, or maps that consist of views; no word runs.

Addresses have word granularity: channel offsets are multiples of 16.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npuc.ir import Graph, Node
from npuc.ops.attributes import AXES, AXIS, BLOCK_MODE, BLOCKSIZE, STARTS, STEPS
from npuc.targets.easynpu.machine.memory import LANES

Shape = tuple[int, int, int]


def map_shape(shape: Sequence[int]) -> Shape:
    """(C, H, W) of a tensor (1, C, H, W) or (1, C)."""
    channels, height, width = (*shape[1:], 1, 1)[:3]
    return channels, height, width


def is_alias(graph: Graph, node: Node) -> bool:
    """Whether an int8 Reshape moves no word: equal shapes, or (1, C, 1, 1) and (1, C)."""
    if node.op != "Reshape" or graph.tensors[node.output].dtype != "int8":
        return False
    before, after = graph.shape(node.inputs[0]), graph.shape(node.output)
    vectors = all(shape[:1] == (1,) and np.prod(shape[2:]) == 1 for shape in (before, after))
    return before == after or (vectors and before[:2] == after[:2])


def is_part(graph: Graph, node: Node) -> bool:
    """Whether a node's results are views of its input: Slice, Split or an alias."""
    return node.op in ("Slice", "Split") or is_alias(graph, node)


def concat_offsets(graph: Graph, node: Node) -> list[int] | None:
    """The offset of each operand along the axis; None for unaligned channels, axis 0 or under 4 dimensions."""
    axis = AXIS(node)
    extents = [graph.shape(name)[axis] for name in node.inputs]
    offsets = [sum(extents[:position]) for position in range(len(extents))]
    if len(graph.shape(node.output)) != 4 or axis == 0:
        return None
    if axis == 1 and any(offset % LANES for offset in offsets):
        return None
    return offsets


def is_window(graph: Graph, node: Node) -> bool:
    """Whether a Slice or Split takes whole DTCM words: unit steps, channel offsets that are multiples of 16."""
    if node.op not in ("Slice", "Split") or len(graph.shape(node.inputs[0])) != 4:
        return False
    if node.op == "Split":
        offsets = split_offsets(graph, node)
        return AXIS(node) in (2, 3) or all(offset % LANES == 0 for offset in offsets)
    if node.op != "Slice":
        return False
    pairs = dict(zip(AXES(node), STARTS(node), strict=True))
    return all(step == 1 for step in STEPS(node)) and 0 not in pairs and pairs.get(1, 0) % LANES == 0


def split_offsets(graph: Graph, node: Node) -> list[int]:
    """Where each output of a Split begins along its axis."""
    extents = [graph.shape(name)[AXIS(node)] for name in node.outputs]
    return [sum(extents[:position]) for position in range(len(extents))]


def interleaved(graph: Graph, node: Node) -> Node | None:
    """The Concat that a DepthToSpace interleaves, one operand per phase; None if address arithmetic cannot do it.

    Phase (i, j) for block size s is operand i * s + j; it fills every s-th row and column, starting at (i, j).
    """
    if node.op != "DepthToSpace" or BLOCK_MODE(node) != "DCR":
        return None
    concat = graph.producers.get(node.inputs[0])
    if concat is None or concat.op != "Concat" or AXIS(concat) != 1:
        return None
    phases = len(concat.inputs) == BLOCKSIZE(node) ** 2
    equal = len({graph.shape(name) for name in concat.inputs}) == 1
    return concat if phases and equal and graph.only_reader(concat.output) is node else None


def moved_axes(graph: Graph, node: Node) -> set[int]:
    """The axes of the map (0 channels, 1 rows, 2 columns) along which a node moves elements."""
    if node.op in ("Concat", "Slice", "Split"):
        inputs, outputs = (
            [map_shape(graph.shape(name)) for name in names] for names in (node.inputs, node.outputs)
        )
        return {axis for axis in range(3) if any(x[axis] != y[axis] for x in inputs for y in outputs)}
    if interleaved(graph, node) is not None:
        return {0}
    moves = node.op in ("Reshape", "DepthToSpace", "IntReshape") and not is_alias(graph, node)
    return {0, 1, 2} if moves else set()
