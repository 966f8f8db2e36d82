"""Reductions and the normalised exponentials."""

from __future__ import annotations

from math import prod

from npuc.frontend.builder import NodeBuilder, OnnxNode
from npuc.frontend.importers.importer import Importer


def _axes(node: OnnxNode, to: NodeBuilder) -> tuple[int, ...]:
    """The axes: an attribute, or an input since opset 18 (ReduceSum 13); if absent, all or none."""
    rank = len(to.shape(node.inputs[0]))
    given = to.integers(node, 1) if node.given(1) else node.attrs.get("axes") or ()
    if given or node.attrs.get("noop_with_empty_axes"):
        return tuple(sorted(node.axes(given, rank)))
    return tuple(range(rank))


def _reduce(node: OnnxNode, to: NodeBuilder) -> None:
    axes = _axes(node, to)
    if axes:
        to.emit(node, node.op, node.inputs[:1], axes=axes, keepdims=node.attrs["keepdims"])
    else:
        to.alias(node, node.inputs[0])


def _norm(node: OnnxNode, to: NodeBuilder) -> None:
    """ReduceL1, ReduceL2 and ReduceSumSquare: a sum of absolute values or squares, and its root."""
    x, axes = node.inputs[0], _axes(node, to)
    powers = to.emit(node, "Abs", (x,), ()) if node.op == "ReduceL1" else to.emit(node, "Mul", (x, x), ())
    rooted, keep = node.op == "ReduceL2", node.attrs["keepdims"]
    total = to.emit(node, "ReduceSum", (powers,), () if rooted else None, axes=axes, keepdims=keep)
    if rooted:
        to.emit(node, "Sqrt", (total,))


def _softmax(node: OnnxNode, to: NodeBuilder) -> None:
    """Before opset 13 the axes from `axis` on count as one: Reshapes express this where it matters."""
    shape = to.shape(node.inputs[0])
    axis = node.axis(node.attrs["axis"], len(shape))
    if node.opset >= 13 or prod(shape[axis + 1 :]) == 1:
        to.emit(node, node.op, node.inputs, axis=axis)
        return
    matrix = (prod(shape[:axis]), prod(shape[axis:]))
    flat = to.emit(node, "Reshape", node.inputs, (), shape=matrix)
    normal = to.emit(node, node.op, (flat,), (), axis=1)
    to.emit(node, "Reshape", (normal,), shape=shape)


def _arg_max(node: OnnxNode, to: NodeBuilder) -> None:
    axis = node.axis(node.attrs["axis"], len(to.shape(node.inputs[0])))
    last = node.attrs.get("select_last_index", 0)
    keep, x = node.attrs["keepdims"], node.inputs[0]
    if node.op == "ArgMin":
        x = to.emit(node, "Neg", (x,), ())
    to.emit(node, "ArgMax", (x,), axis=axis, keepdims=keep, select_last_index=last)


IMPORTERS: dict[str, Importer] = {
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), _reduce),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    **dict.fromkeys(("ReduceL1", "ReduceL2", "ReduceSumSquare"), _norm),
    "ArgMax": _arg_max,
    "ArgMin": _arg_max,
}
