"""Reductions over axes, and the normalised exponentials."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops.rules import expect_axes, expect_float, like_float_input
from npuc.ops.table import Op, bad_node, register


def _reduced(shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    if keepdims:
        return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    return tuple(extent for axis, extent in enumerate(shape) if axis not in axes)


def _reduce_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    x, axes = types[0], node.integers("axes")
    expect_axes(node, axes, len(x.shape))
    if node.op != "ReduceSum" and x.size == 0:
        raise bad_node(node, f"no elements in shape {list(x.shape)}", tensor=node.inputs[0])
    return (TensorType(_reduced(x.shape, axes, bool(node.integer("keepdims", 1))), x.dtype),)


def _reduce(name: str, summary: str, function: Callable[..., Array]) -> Op:
    def compute(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
        axes, keep = node.integers("axes"), bool(node.integer("keepdims", 1))
        return (np.asarray(function(inputs[0], axis=axes, keepdims=keep), inputs[0].dtype),)

    return Op(name, summary, _reduce_types, compute)


def _softmax_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    expect_axes(node, (node.integer("axis"),), len(types[0].shape))
    return like_float_input(node, types)


def _softmax(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    axis = node.integer("axis")
    powers = np.exp(inputs[0] - inputs[0].max(axis=axis, keepdims=True))
    return (powers / powers.sum(axis=axis, keepdims=True),)


def _log_softmax(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    axis = node.integer("axis")
    shifted = inputs[0] - inputs[0].max(axis=axis, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)),)


def _arg_max_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    expect_float(node, types)
    x, axis = types[0], node.integer("axis")
    expect_axes(node, (axis,), len(x.shape))
    if x.shape[axis] == 0:
        raise bad_node(node, f"axis {axis} is empty", tensor=node.inputs[0])
    return (TensorType(_reduced(x.shape, (axis,), bool(node.integer("keepdims", 1))), "int64"),)


def _arg_max(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,) = inputs
    axis, keep = node.integer("axis"), bool(node.integer("keepdims", 1))
    if node.integer("select_last_index"):
        return (x.shape[axis] - 1 - np.argmax(np.flip(x, axis), axis=axis, keepdims=keep),)
    return (np.asarray(np.argmax(x, axis=axis, keepdims=keep)),)


register(
    _reduce("ReduceMean", "The mean over some axes.", np.mean),
    _reduce("ReduceSum", "The sum over some axes.", np.sum),
    _reduce("ReduceMax", "The largest element over some axes.", np.max),
    _reduce("ReduceMin", "The smallest element over some axes.", np.min),
    Op("Softmax", "Exponentials along one axis, scaled to the sum 1.", _softmax_types, _softmax),
    Op("LogSoftmax", "The logarithm of Softmax.", _softmax_types, _log_softmax),
    Op("ArgMax", "The index of the largest element along an axis.", _arg_max_types, _arg_max),
)
