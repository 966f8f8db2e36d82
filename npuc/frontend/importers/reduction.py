"""Reductions and the normalised exponentials."""

from __future__ import annotations

from math import prod

from npuc.frontend.builder import Builder, OnnxNode
from npuc.frontend.importers.table import Importer


def _reduce(node: OnnxNode, to: Builder) -> None:
    """The axes are an attribute, or an input since opset 18 (ReduceSum 13); none means all of them."""
    rank = len(to.shape(node.inputs[0]))
    given = to.integers(node, 1) if node.given(1) else node.attrs.get("axes") or ()
    if not given and node.attrs.get("noop_with_empty_axes"):
        to.alias(node, node.inputs[0])
        return
    axes = tuple(sorted(node.axes(given, rank))) or tuple(range(rank))
    to.emit(node, node.op, node.inputs[:1], axes=axes, keepdims=node.attrs["keepdims"])


def _softmax(node: OnnxNode, to: Builder) -> None:
    """Before opset 13 the axes from `axis` on are one: where that differs, Reshapes say so."""
    shape = to.shape(node.inputs[0])
    axis = node.axis(node.attrs["axis"], len(shape))
    if node.opset >= 13 or prod(shape[axis + 1 :]) == 1:
        to.emit(node, node.op, node.inputs, axis=axis)
        return
    matrix = (prod(shape[:axis]), prod(shape[axis:]))
    flat = to.emit(node, "Reshape", node.inputs, (), shape=matrix)
    normal = to.emit(node, node.op, (flat,), (), axis=1)
    to.emit(node, "Reshape", (normal,), shape=shape)


def _arg_max(node: OnnxNode, to: Builder) -> None:
    axis = node.axis(node.attrs["axis"], len(to.shape(node.inputs[0])))
    last = node.attrs.get("select_last_index", 0)
    to.emit(node, "ArgMax", node.inputs, axis=axis, keepdims=node.attrs["keepdims"], select_last_index=last)


IMPORTERS: dict[str, Importer] = {
    **dict.fromkeys(("ReduceMean", "ReduceSum", "ReduceMax", "ReduceMin"), _reduce),
    **dict.fromkeys(("Softmax", "LogSoftmax"), _softmax),
    "ArgMax": _arg_max,
}
