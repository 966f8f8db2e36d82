"""Merges Reshapes, and moves them behind operators that do not depend on the shape."""

from __future__ import annotations

from dataclasses import replace

from npuc.ir import Graph, Node
from npuc.ops.attributes import AXES, KEEPDIMS
from npuc.passes.cleanup.clutter import drop_no_op
from npuc.passes.rewriting.layout import BINARY, UNARY, Layout, moved_inputs, moved_node
from npuc.passes.rewriting.patterns import scalar
from npuc.passes.rewriting.rules import Rewriter, Rule, rewrite

SINKABLE = UNARY | BINARY | {"Concat", "Split", "Slice", "Pad", "ReduceMean", "ReduceMax"}
"""Operators behind which a Reshape that drops axes of extent 1 moves. Heads (Softmax, ArgMax) keep their axes."""


def sink_reshapes(graph: Graph) -> Graph:
    """Reshapes merged and sunk, so that producers and their activations, and operators that models wrap in
    Squeeze and Unsqueeze, become adjacent.
    """
    return rewrite(graph, *RESHAPE_RULES)


def merge_reshapes(rewriter: Rewriter, node: Node) -> bool:
    """Reshape of Reshape becomes one."""
    first = rewriter.producer(node.inputs[0]) if node.op == "Reshape" else None
    if first is None or first.op != "Reshape":
        return False
    rewriter.replace(node, replace(node, inputs=first.inputs, sources=rewriter.sources(first, node)))
    return True


def sink_below_function(rewriter: Rewriter, node: Node) -> bool:
    """A unary function of a Reshape without other readers: the Reshape comes last.

    A binary operator counts as one if the other operand is a single number.
    """
    computed = [name for name in node.inputs if scalar(rewriter, name) is None]
    if node.op not in UNARY | BINARY or len(computed) != 1:
        return False
    reshape = rewriter.private(computed[0])
    if reshape is None or reshape.op != "Reshape" or rewriter.shape(computed[0]) != rewriter.shape(node.output):
        return False
    x = reshape.inputs[0]
    if any(len(rewriter.shape(name)) > len(rewriter.shape(x)) for name in node.inputs if name != computed[0]):
        return False
    inner = rewriter.fresh(f"{node.output}@{_extents(rewriter.shape(x))}")
    inputs = tuple(x if name == computed[0] else name for name in node.inputs)
    function = replace(node, inputs=inputs, outputs=(inner,))
    rewriter.replace(node, function, replace(reshape, inputs=(inner,), outputs=node.outputs))
    return True


def sink_squeeze(rewriter: Rewriter, node: Node) -> bool:
    """An operator whose operands all lost the same axes of extent 1: they are dropped after it instead."""
    moved = moved_inputs(rewriter, node) if node.op in SINKABLE else None
    if moved is None:
        return False
    reshapes = [rewriter.producer(name) for name in moved]
    found = _common_layout(rewriter, [each for each in reshapes if each is not None and each.op == "Reshape"])
    if found is None or len(found[1]) < len(moved):
        return False
    layout, operands = found
    names = dict(zip(moved, (each.inputs[0] for each in operands), strict=True))
    shapes = {name: _with_axes(rewriter.shape(name), layout) for name in node.outputs if name}
    names |= {name: rewriter.fresh(f"{name}@{_extents(shape)}") for name, shape in shapes.items()}
    sources = rewriter.sources(*operands)
    after = [
        Node("Reshape", (names[name],), (name,), {"shape": rewriter.shape(name)}, name, sources) for name in shapes
    ]
    rewriter.replace(node, moved_node(rewriter, node, layout, names), *after)
    return True


def reduce_before_squeeze(rewriter: Rewriter, node: Node) -> bool:
    """A reduction that drops its axes, of a Reshape that drops axes of extent 1: drops all at once."""
    reshape = rewriter.producer(node.inputs[0]) if node.op.startswith("Reduce") else None
    if reshape is None or reshape.op != "Reshape" or KEEPDIMS(node):
        return False
    layout = _unsqueeze_layout(rewriter.shape(reshape.inputs[0]), rewriter.shape(reshape.output))
    if layout is None:
        return False
    dropped = AXES(node)
    axes = tuple(at for at, axis in enumerate(layout) if axis is None or axis in dropped)
    sources = rewriter.sources(reshape, node)
    rewriter.replace(node, replace(node.with_attrs(axes=axes), inputs=reshape.inputs, sources=sources))
    return True


def _common_layout(rewriter: Rewriter, reshapes: list[Node]) -> tuple[Layout, list[Node]] | None:
    """A common layout: the tensors before all of these Reshapes are those after them plus axes of extent 1."""
    pairs = [(rewriter.shape(each.inputs[0]), rewriter.shape(each.output)) for each in reshapes]
    for before, after in pairs:
        layout = _unsqueeze_layout(before, after)
        if layout is not None and all(_with_axes(short, layout) == long for long, short in pairs):
            return layout, reshapes
    return None


def _unsqueeze_layout(before: tuple[int, ...], after: tuple[int, ...]) -> Layout | None:
    """The positions of axes of extent 1 in `before` that `after` lacks; None if the shapes differ otherwise."""
    layout: list[int | None] = []
    at = 0
    for extent in before:
        if at < len(after) and extent == after[at]:
            layout.append(at)
            at += 1
        elif extent == 1:
            layout.append(None)
        else:
            return None
    return tuple(layout) if at == len(after) < len(before) else None


def _with_axes(shape: tuple[int, ...], layout: Layout) -> tuple[int, ...]:
    return tuple(1 if axis is None else shape[axis] for axis in layout)


def _extents(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape))


RESHAPE_RULES: tuple[Rule, ...] = (
    merge_reshapes,
    drop_no_op,
    sink_below_function,
    sink_squeeze,
    reduce_before_squeeze,
)
