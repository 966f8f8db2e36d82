"""Moves at the network's boundary.

The last tensors are split before they are moved and joined, so that each part has a range of its own. Between a
model's own quantisation and the boundary, data move in float instead of as integers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from npuc.frozen import frozen
from npuc.ir import Attr, Graph, Node
from npuc.ops.attributes import AXES, AXIS, GROUP, PERM, STARTS, STEPS
from npuc.passes.rewriting.rules import Rewriter, rewrite

COMPUTES = frozenset(
    {"Conv", "ConvTranspose", "Gemm", "MatMul", "MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool"}
)
"""A Split with none of these after it is at the network's end."""
MOST_PARTS = 8
"""With more parts they are not boxes and scores."""
ENDS = frozenset({"Softmax", "LogSoftmax", "ArgMax"})
"""Operators that no integers pass."""


def split_before_moves(graph: Graph) -> Graph:
    """A Split or Slice at the network's end moves before the Reshape, Transpose, Concat or Conv that it reads.

    Boxes and scores of a detector are often joined, moved and split again; with one scale for both, nothing of the
    scores would be left. The rewrite is exact. If a Split undoes a Concat, both vanish; a Conv becomes one per
    part. A Slice must have a single axis and a step of 1, and every reader of the moved tensor must be such a
    Split or Slice.
    """
    return rewrite(graph, _before)


@frozen
class TakenParts:
    """The parts that a Split or Slice takes along an axis: first index and end index, by output."""

    axis: int
    bounds: tuple[tuple[int, int], ...]


def _before(rewriter: Rewriter, node: Node) -> bool:
    parts = _parts(rewriter, node)
    move = rewriter.producer(node.inputs[0]) if parts is not None else None
    if parts is None or move is None or move.op not in ("Reshape", "Transpose", "Concat", "Conv"):
        return False
    readers = rewriter.readers(move.output)
    together = move.output not in rewriter.outputs and all(_parts(rewriter, each) for each in readers)
    few = len(readers) * len(parts.bounds) <= MOST_PARTS
    fixed = [name for name in move.inputs if name in rewriter.constants]
    if not together or not few or (fixed and move.op != "Conv") or not _at_end(rewriter, node):
        return False
    match move.op:
        case "Conv":
            new = _convolutions(rewriter, node, move, parts)
            if not new:
                return False
        case "Concat" if AXIS(move) == parts.axis:
            return _taken_apart(rewriter, node, move, parts)
        case "Concat":
            new = _of_every_operand(rewriter, node, move, parts)
        case "Transpose":
            axis = PERM(move)[parts.axis]
            new = _moved_parts(rewriter, node, move, axis, [dict(move.attrs) for _ in parts.bounds])
        case _:
            axis = _same_axis(rewriter.shape(move.inputs[0]), rewriter.shape(move.output), parts.axis)
            if axis is None:
                return False
            shapes = [{"shape": rewriter.shape(name)} for name in node.outputs]
            new = _moved_parts(rewriter, node, move, axis, shapes)
    rewriter.replace(node, *new)
    return True


def _parts(rewriter: Rewriter, node: Node) -> TakenParts | None:
    """The parts of a Split, or of a Slice of one axis with step 1 that takes less than the whole."""
    if node.op == "Split":
        axis, bounds = AXIS(node), list[tuple[int, int]]()
        for name in node.outputs:
            start = bounds[-1][1] if bounds else 0
            bounds.append((start, start + rewriter.shape(name)[axis]))
        return TakenParts(axis, tuple(bounds))
    if node.op != "Slice" or len(AXES(node)) != 1 or STEPS(node) != (1,):
        return None
    (axis,), (start,) = AXES(node), STARTS(node)
    extent, taken = rewriter.shape(node.inputs[0])[axis], rewriter.shape(node.output)[axis]
    start = max(start + extent, 0) if start < 0 else start
    return TakenParts(axis, ((start, start + taken),)) if taken < extent else None


def _at_end(rewriter: Rewriter, node: Node) -> bool:
    """Whether no layer with windows or weights uses the node's results, except after a Softmax."""
    waiting, seen = [node], set[str]()
    while waiting:
        for reader in (each for name in waiting.pop().outputs for each in rewriter.readers(name)):
            if reader.op in COMPUTES:
                return False
            if reader.op not in ENDS and reader.outputs[0] not in seen:
                seen.add(reader.outputs[0])
                waiting.append(reader)
    return True


def _same_axis(before: Sequence[int], after: Sequence[int], axis: int) -> int | None:
    """The axis of a reshaped tensor with the same indices as an axis of the result; None if there is none."""
    for at, extent in enumerate(before):
        if extent == after[axis] > 1 and prod(before[:at]) == prod(after[:axis]):
            return at
    return None


def _take_parts(node: Node, source: str, axis: int, names: Sequence[str], stem: str) -> Node:
    """The node that takes the same parts from another tensor, along one of its axes."""
    attrs = {**node.attrs, "axis": axis} if node.op == "Split" else {**node.attrs, "axes": (axis,)}
    return Node(node.op, (source, *node.inputs[1:]), tuple(names), attrs, stem, node.sources)


def _convolutions(rewriter: Rewriter, node: Node, conv: Node, parts: TakenParts) -> list[Node]:
    """A Conv for the output channels of each part; none if a part's channels are not those of one group."""
    names = [name for name in conv.inputs[1:] if name]
    fixed = all(name in rewriter.constants for name in names)
    if parts.axis != 1 or GROUP(conv) != 1 or not fixed:
        return []
    new: list[Node] = []
    for (first, end), result in zip(parts.bounds, node.outputs, strict=True):
        taken = (rewriter.constant(rewriter.constants[name][first:end], f"{result}/{name}") for name in names)
        inputs = (conv.inputs[0], *taken)
        new.append(replace(conv, inputs=inputs, outputs=(result,), name=f"{conv.name}/{first}"))
    return new


def _moved_parts(
    rewriter: Rewriter, node: Node, move: Node, axis: int, attrs: Sequence[Mapping[str, Attr]]
) -> list[Node]:
    """The parts of the moved tensor, each moved separately."""
    names = [rewriter.fresh(f"{name}/part") for name in node.outputs]
    new = [_take_parts(node, move.inputs[0], axis, names, f"{node.name}/before")]
    sources = rewriter.sources(node, move)
    for part, result, each in zip(names, node.outputs, attrs, strict=True):
        new.append(Node(move.op, (part, *move.inputs[1:]), (result,), each, f"{result}/moved", sources))
    return new


def _of_every_operand(rewriter: Rewriter, node: Node, move: Node, parts: TakenParts) -> list[Node]:
    """The parts of all operands of a Concat along another axis, concatenated part by part."""
    new: list[Node] = []
    columns: list[list[str]] = [[] for _ in node.outputs]
    for at, operand in enumerate(move.inputs):
        names = [rewriter.fresh(f"{name}/part_{at}") for name in node.outputs]
        new.append(_take_parts(node, operand, parts.axis, names, f"{node.name}/before_{at}"))
        for column, name in zip(columns, names, strict=True):
            column.append(name)
    sources = rewriter.sources(node, move)
    for column, result in zip(columns, node.outputs, strict=True):
        new.append(Node("Concat", tuple(column), (result,), dict(move.attrs), f"{result}/joined", sources))
    return new


def _taken_apart(rewriter: Rewriter, node: Node, move: Node, parts: TakenParts) -> bool:
    """Replaces parts by the operands of a Concat along the same axis, if every part consists of whole operands."""
    edges = [0]
    for operand in move.inputs:
        edges.append(edges[-1] + rewriter.shape(operand)[parts.axis])
    if any(bound not in edges for pair in parts.bounds for bound in pair):
        return False
    new: list[Node] = []
    for (first, end), result in zip(parts.bounds, node.outputs, strict=True):
        operands = move.inputs[edges.index(first) : edges.index(end)]
        if len(operands) == 1 and result not in rewriter.outputs:
            rewriter.substitute(result, operands[0])
            continue
        op, attrs = ("Concat", dict(move.attrs)) if len(operands) > 1 else ("Identity", {})
        new.append(
            Node(op, tuple(operands), (result,), attrs, f"{node.name}/{result}", rewriter.sources(node, move))
        )
    rewriter.replace(node, *new)
    return True


MOVES = ("Reshape", "Transpose")


def move_as_floats(graph: Graph) -> Graph:
    """DequantizeLinear moved before the Reshape or Transpose it reads, QuantizeLinear after those that read it.

    This is exact: both work on single elements, with one scale and zero point. A machine whose 8-bit layers use
    the model's scales then sees them next to its layers.
    """
    return rewrite(graph, _dequantised_first, _quantised_last)


def _dequantised_first(rewriter: Rewriter, node: Node) -> bool:
    """DequantizeLinear of a move without other readers: the move comes last."""
    move = rewriter.private(node.inputs[0]) if node.op == "DequantizeLinear" else None
    return move is not None and _swap(rewriter, node, move, node)


def _quantised_last(rewriter: Rewriter, node: Node) -> bool:
    """A move of a QuantizeLinear without other readers: the move comes first."""
    steps = rewriter.private(node.inputs[0]) if node.op in MOVES else None
    return steps is not None and steps.op == "QuantizeLinear" and _swap(rewriter, node, steps, steps)


def _swap(rewriter: Rewriter, second: Node, first: Node, steps: Node) -> bool:
    """Swaps two consecutive nodes: replaces the second by both in the other order."""
    move = first if steps is second else second
    sizes = (rewriter.shape(name) for name in steps.inputs[1:])
    if move.op not in MOVES or any(extent != 1 for shape in sizes for extent in shape):
        return False
    inner = rewriter.fresh(f"{second.output}@{'moved' if steps is first else 'steps'}")
    before = replace(second, inputs=(first.inputs[0], *second.inputs[1:]), outputs=(inner,))
    rewriter.replace(second, before, replace(first, inputs=(inner, *first.inputs[1:]), outputs=second.outputs))
    return True
