"""Reductions over axes, and what they normalise: maps by their statistics, rows by Softmax."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops.attributes import (
    AXES,
    AXIS,
    EPSILON,
    KEEPDIMS,
    LRN_ALPHA,
    LRN_BETA,
    LRN_BIAS,
    SELECT_LAST_INDEX,
    SIZE,
)
from npuc.ops.declaration import NUMBERS, Meaning, Op, Parameter, Requirement, along, has_elements

if TYPE_CHECKING:
    from npuc.onnx_files.export import OnnxEmitter


MAP, NORMAL_MAP = Parameter("x", shape="N C *S"), Parameter("y", shape="N C *S")


def _batch_normalization(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, *vectors = inputs
    scale, bias, mean, var = (along(each, 1, x.ndim) for each in vectors)
    factor = scale / np.sqrt(var + np.float32(EPSILON(node)))
    return (x * factor + (bias - mean * factor),)


def _instance_normalization(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, scale, bias = inputs
    axes = tuple(range(2, x.ndim))
    centred = x - x.mean(axis=axes, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(axis=axes, keepdims=True) + EPSILON(node))
    y = along(scale, 1, x.ndim) * centred / deviation + along(bias, 1, x.ndim)
    return (y.astype(np.float32),)


def _lrn(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,) = inputs
    size = SIZE(node)
    before, after = (size - 1) // 2, size // 2
    squares = np.pad(np.square(x), [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)])
    total = sum(squares[:, start : start + x.shape[1]] for start in range(size))
    return (np.asarray(x / (LRN_BIAS(node) + LRN_ALPHA(node) / size * total) ** LRN_BETA(node), np.float32),)


def _per_channel(name: str, summary: str, compute: Meaning, vectors: Sequence[str], *requires: Requirement) -> Op:
    """A normalisation whose other inputs are vectors over the channels."""
    inputs = (MAP, *(Parameter(each, shape="C") for each in vectors))
    return Op(name, summary, inputs, (NORMAL_MAP,), compute, (EPSILON,), requires)


def _reduced_shape(shape: Sequence[int], axes: Sequence[int], keepdims: bool) -> tuple[int, ...]:
    if keepdims:
        return tuple(1 if axis in axes else extent for axis, extent in enumerate(shape))
    return tuple(extent for axis, extent in enumerate(shape) if axis not in axes)


def _reduce_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    (x,) = types
    return (TensorType(_reduced_shape(x.shape, AXES(node), KEEPDIMS(node)), x.dtype),)


def _reduce_onnx(node: Node, emit: OnnxEmitter) -> None:
    """Axes are an input of ReduceSum since opset 13, of the others since opset 18; an empty list means all."""
    if not AXES(node):
        emit.node("Identity", node.inputs, node.outputs)
    elif node.op == "ReduceSum" or emit.opset >= 18:
        axes = emit.integers("axes", AXES(node))
        emit.node(node.op, [node.inputs[0], axes], node.outputs, keepdims=int(KEEPDIMS(node)))
    else:
        emit.node(node.op, node.inputs, node.outputs, axes=AXES(node), keepdims=int(KEEPDIMS(node)))


def _reduce(name: str, summary: str, function: Callable[..., Array], *requires: Requirement) -> Op:
    def compute(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.asarray(function(inputs[0], axis=AXES(node), keepdims=KEEPDIMS(node)), inputs[0].dtype),)

    x, y = Parameter("x", NUMBERS), Parameter("y", like="x")
    return Op(name, summary, (x,), (y,), compute, (AXES, KEEPDIMS), requires, _reduce_types, _reduce_onnx)


def _softmax(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    axis = AXIS(node)
    powers = np.exp(inputs[0] - inputs[0].max(axis=axis, keepdims=True))
    return (powers / powers.sum(axis=axis, keepdims=True),)


def _log_softmax(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    axis = AXIS(node)
    shifted = inputs[0] - inputs[0].max(axis=axis, keepdims=True)
    return (shifted - np.log(np.exp(shifted).sum(axis=axis, keepdims=True)),)


def _axis_has_elements(node: Node, types: Sequence[TensorType]) -> bool:
    """The axis is not empty."""
    return types[0].shape[AXIS(node)] > 0


def _arg_max_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return (TensorType(_reduced_shape(types[0].shape, (AXIS(node),), KEEPDIMS(node)), "int64"),)


def _arg_max(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,) = inputs
    axis, keep = AXIS(node), KEEPDIMS(node)
    if SELECT_LAST_INDEX(node):
        return (x.shape[axis] - 1 - np.argmax(np.flip(x, axis), axis=axis, keepdims=keep),)
    return (np.asarray(np.argmax(x, axis=axis, keepdims=keep)),)


X, Y = Parameter("x", shape="*X"), Parameter("y", shape="*X")

OPERATORS = (
    _per_channel(
        "BatchNormalization",
        "Normalisation per channel with constant statistics.",
        _batch_normalization,
        ("scale", "bias", "mean", "var"),
    ),
    _per_channel(
        "InstanceNormalization",
        "Normalisation per channel with the statistics of each sample.",
        _instance_normalization,
        ("scale", "bias"),
        has_elements,  # onnxruntime crashes without elements
    ),
    Op(
        "LRN",
        "Local response normalisation across channels.",
        (MAP,),
        (NORMAL_MAP,),
        _lrn,
        (SIZE, LRN_ALPHA, LRN_BETA, LRN_BIAS),
    ),
    _reduce("ReduceMean", "The mean over some axes.", np.mean, has_elements),
    _reduce("ReduceSum", "The sum over some axes.", np.sum),
    _reduce("ReduceMax", "The largest element over some axes.", np.max, has_elements),
    _reduce("ReduceMin", "The smallest element over some axes.", np.min, has_elements),
    Op("Softmax", "Exponentials along one axis, scaled to the sum 1.", (X,), (Y,), _softmax, (AXIS,)),
    Op("LogSoftmax", "The logarithm of Softmax.", (X,), (Y,), _log_softmax, (AXIS,)),
    Op(
        "ArgMax",
        "The index of the largest element along an axis.",
        (X,),
        (Parameter("y", ("int64",)),),
        _arg_max,
        (AXIS, KEEPDIMS, SELECT_LAST_INDEX),
        (_axis_has_elements,),
        _arg_max_types,
    ),
)
