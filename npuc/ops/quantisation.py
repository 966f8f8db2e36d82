"""QuantizeLinear and DequantizeLinear, per tensor and per axis; FakeQuantize, which is both in one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops.attributes import DTYPE, SCALE, STEPS_AXIS, ZERO_POINT
from npuc.ops.declaration import Op, Parameter, along, has_input

if TYPE_CHECKING:
    from npuc.onnx_files.export import OnnxEmitter

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")


def _steps_of_the_axis(node: Node, types: Sequence[TensorType]) -> bool:
    """There is one scale, or one per element of the axis, and as many zero points."""
    x, scale, axis = types[0].shape, types[1], STEPS_AXIS(node)
    one_or_all = scale.size == 1 or (axis < len(x) and scale.shape == (x[axis],))
    return one_or_all and (not has_input(node, 2) or types[2].size == scale.size)


def _quantize_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return (TensorType(types[0].shape, types[2].dtype if has_input(node, 2) else "uint8"),)


def _align(node: Node, values: Array, rank: int) -> Array:
    """Scale or zero point shaped to broadcast with the input."""
    return values.reshape(()) if values.size == 1 else along(values, STEPS_AXIS(node), rank)


def _quantize(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, scale = inputs[0], _align(node, inputs[1], inputs[0].ndim)
    zero = inputs[2] if has_input(node, 2) else np.zeros(1, np.uint8)
    limits = np.iinfo(zero.dtype)
    steps = np.rint(x / scale) + _align(node, zero, x.ndim).astype(np.float32)
    return (np.clip(steps, limits.min, limits.max).astype(zero.dtype),)


def _dequantize(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, scale = inputs[0], _align(node, inputs[1], inputs[0].ndim)
    steps = x.astype(np.int64)
    if has_input(node, 2):
        steps = steps - _align(node, inputs[2], x.ndim)
    return (steps.astype(np.float32) * scale,)


def _fake(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    scale, zero, limits = np.float32(SCALE(node)), np.float32(ZERO_POINT(node)), np.iinfo(DTYPE(node))
    steps = np.clip(np.rint(inputs[0] / scale) + zero, limits.min, limits.max)
    return ((steps - zero) * scale,)


def _fake_onnx(node: Node, emit: OnnxEmitter) -> None:
    scale = emit.constant(np.float32(SCALE(node)), "scale")
    zero = emit.constant(np.array(ZERO_POINT(node), DTYPE(node)), "zero")
    steps = emit.fresh("steps")
    emit.node("QuantizeLinear", [node.inputs[0], scale, zero], [steps])
    emit.node("DequantizeLinear", [steps, scale, zero], node.outputs)


def _rescale_onnx(node: Node, emit: OnnxEmitter) -> None:
    emit.node("Identity", node.inputs, node.outputs)


X, Y = Parameter("x", shape="*X"), Parameter("y", shape="*X")
STEP = Parameter("scale", low=0)


def _zero_of_the_type(node: Node, _types: Sequence[TensorType]) -> bool:
    """The zero point is an integer of the type."""
    limits = np.iinfo(DTYPE(node))
    return bool(limits.min <= ZERO_POINT(node) <= limits.max)


OPERATORS = (
    Op(
        "FakeQuantize",
        "x rounded to the steps of an integer type: quantised and dequantised.",
        (X,),
        (Y,),
        _fake,
        (SCALE, ZERO_POINT, DTYPE),
        (_zero_of_the_type,),
        to_onnx=_fake_onnx,
        origin="passes",
    ),
    Op(
        "Rescale",
        "x; the integer network gives it another scale here.",
        (X,),
        (Y,),
        lambda _, inputs: (inputs[0],),
        to_onnx=_rescale_onnx,
        origin="passes",
    ),
    Op(
        "QuantizeLinear",
        "x / scale, rounded half to even, plus zero point, saturated.",
        (Parameter("x", ("float32", "int32")), STEP, Parameter("zero_point", INTEGERS[:4], optional=True)),
        (Parameter("y", INTEGERS[:4]),),
        _quantize,
        (STEPS_AXIS,),
        (_steps_of_the_axis,),
        _quantize_types,
    ),
    Op(
        "DequantizeLinear",
        "(x - zero point) * scale.",
        (Parameter("x", INTEGERS, "*X"), STEP, Parameter("zero_point", INTEGERS, like="x", optional=True)),
        (Y,),
        _dequantize,
        (STEPS_AXIS,),
        (_steps_of_the_axis,),
    ),
)

CONVERSIONS = ("FakeQuantize", "Rescale")
"""Operators that change nothing but scale and zero point."""
