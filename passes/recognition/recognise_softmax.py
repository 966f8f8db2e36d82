"""Recognises Softmax and LogSoftmax that a model writes as several nodes."""

from __future__ import annotations

from npuc.ir import Graph, Node
from npuc.ops.attributes import ACTIVATION, AXES, KEEPDIMS
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite


def recognise_softmax(graph: Graph) -> Graph:
    """exp(x) / sum(exp(x)) along one axis, and x - log(sum(exp(x))), possibly after subtracting the maximum.

    Nothing is replaced if a result inside the pattern is read outside or is a graph output.
    """
    return rewrite(graph, _softmax, _log_softmax)


def _softmax(rewriter: Rewriter, node: Node) -> bool:
    if node.op != "Div" or ACTIVATION(node):
        return False
    powers, total = rewriter.producer(node.inputs[0]), rewriter.private(node.inputs[1])
    if powers is None or powers.op != "Exp" or total is None or total.inputs[0] != powers.output:
        return False
    axis = _axis(total, "ReduceSum")
    if axis is None or not _serves(rewriter, powers, total, node):
        return False
    found = _less_maximum(rewriter, powers.inputs[0], axis, powers)
    return _becomes(rewriter, "Softmax", axis, found, node, total, powers)


def _log_softmax(rewriter: Rewriter, node: Node) -> bool:
    if node.op != "Sub" or ACTIVATION(node):
        return False
    logarithm = rewriter.private(node.inputs[1])
    total = rewriter.private(logarithm.inputs[0]) if logarithm is not None and logarithm.op == "Log" else None
    powers = rewriter.private(total.inputs[0]) if total is not None else None
    if logarithm is None or total is None or powers is None or powers.op != "Exp":
        return False
    axis = _axis(total, "ReduceSum")
    if axis is None or powers.inputs[0] != node.inputs[0]:
        return False
    found = _less_maximum(rewriter, node.inputs[0], axis, powers, node)
    return _becomes(rewriter, "LogSoftmax", axis, found, node, logarithm, total, powers)


def _axis(node: Node, op: str) -> int | None:
    """The single axis of a reduction that keeps its dimensions."""
    axes = AXES(node) if node.op == op and KEEPDIMS(node) else ()
    return axes[0] if len(axes) == 1 else None


def _less_maximum(rewriter: Rewriter, tensor: str, axis: int, *readers: Node) -> tuple[str, tuple[Node, ...]]:
    """x and the nodes in between, if the tensor is x minus its maximum for just these readers; else the tensor."""
    shifted = rewriter.producer(tensor)
    if shifted is None or shifted.op != "Sub" or ACTIVATION(shifted) or not _serves(rewriter, shifted, *readers):
        return tensor, ()
    largest = rewriter.private(shifted.inputs[1])
    if largest is None or largest.inputs[0] != shifted.inputs[0] or _axis(largest, "ReduceMax") != axis:
        return tensor, ()
    return shifted.inputs[0], (shifted, largest)


def _serves(rewriter: Rewriter, node: Node, *readers: Node) -> bool:
    """Whether exactly these nodes read the result of a node."""
    found = {each.output for each in rewriter.readers(node.output)}
    return node.output not in rewriter.outputs and found == {each.output for each in readers}


def _becomes(rewriter: Rewriter, op: str, axis: int, x: tuple[str, tuple[Node, ...]], *pattern: Node) -> bool:
    """Replaces the first node of a pattern by one operator on x; refuses if the shape or type would change."""
    (node, *_), (tensor, before) = pattern, x
    if rewriter.types[tensor] != rewriter.types[node.output] or not only_float(rewriter, tensor):
        return False
    sources = rewriter.sources(*pattern, *before)
    rewriter.replace(node, Node(op, (tensor,), (node.output,), {"axis": axis}, node.name, sources))
    return True
