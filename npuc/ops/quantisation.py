"""QuantizeLinear and DequantizeLinear, per tensor and per axis; FakeQuantize, which is both in one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npuc.errors import ModelError
from npuc.ir import Array, Node, TensorType
from npuc.ops.rules import along, expect_axes, expect_float, given
from npuc.ops.table import Op, bad_node, register

INTEGERS = ("int8", "uint8", "int16", "uint16", "int32")


def _checked(node: Node, types: Sequence[TensorType]) -> None:
    """Scale and zero point are scalars (shape () or (1,)) or vectors along the axis, of the same shape."""
    x, scale = types[0].shape, types[1]
    if scale.dtype != "float32":
        raise ModelError("E107", f"the scale is {scale.dtype}", node=node.name, op=node.op, tensor=node.inputs[1])
    if scale.size != 1:
        axis = node.integer("axis", 1)
        expect_axes(node, (axis,), len(x))
        if scale.shape != (x[axis],):
            reason = f"scale of shape {list(scale.shape)} along axis {axis} of {list(x)}"
            raise bad_node(node, reason, tensor=node.inputs[1], limit=f"[] or [{x[axis]}]")
    if given(node, 2) and types[2].size != scale.size:
        reason = f"zero point of shape {list(types[2].shape)}, scale of shape {list(scale.shape)}"
        raise bad_node(node, reason, tensor=node.inputs[2])


def _integer(node: Node, dtype: str, tensor: str, allowed: Sequence[str]) -> str:
    if dtype not in allowed:
        raise ModelError(
            "E107",
            f"the element type is {dtype}",
            node=node.name,
            op=node.op,
            tensor=tensor,
            limit=", ".join(allowed),
        )
    return dtype


def _quantize_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    _checked(node, types)
    _integer(node, types[0].dtype, node.inputs[0], ("float32", "int32"))
    dtype = _integer(node, types[2].dtype, node.inputs[2], INTEGERS[:4]) if given(node, 2) else "uint8"
    return (TensorType(types[0].shape, dtype),)


def _dequantize_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    _checked(node, types)
    dtype = _integer(node, types[0].dtype, node.inputs[0], INTEGERS)
    if given(node, 2) and types[2].dtype != dtype:
        reason = f"the zero point is {types[2].dtype}, the input {dtype}"
        raise bad_node(node, reason, tensor=node.inputs[2])
    return (TensorType(types[0].shape),)


def _aligned(node: Node, values: Array, rank: int) -> Array:
    """Scale or zero point shaped to broadcast with the input."""
    return values.reshape(()) if values.size == 1 else along(values, node.integer("axis", 1), rank)


def _quantize(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, scale = inputs[0], _aligned(node, inputs[1], inputs[0].ndim)
    zero = inputs[2] if given(node, 2) else np.zeros(1, np.uint8)
    limits = np.iinfo(zero.dtype)
    steps = np.rint(x / scale) + _aligned(node, zero, x.ndim).astype(np.float32)
    return (np.clip(steps, limits.min, limits.max).astype(zero.dtype),)


def _dequantize(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, scale = inputs[0], _aligned(node, inputs[1], inputs[0].ndim)
    steps = x.astype(np.int64)
    if given(node, 2):
        steps = steps - _aligned(node, inputs[2], x.ndim)
    return (steps.astype(np.float32) * scale,)


def _fake_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    expect_float(node, types)
    return (types[0],)


def _fake(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    scale, zero = np.float32(node.number("scale")), node.integer("zero_point")
    limits = np.iinfo(node.text("dtype"))
    steps = np.clip(np.rint(inputs[0] / scale) + np.float32(zero), limits.min, limits.max)
    return ((steps - np.float32(zero)) * scale,)


def _same(_node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return (inputs[0],)


register(
    Op(
        "FakeQuantize", "x rounded to the steps of an integer type: quantised and dequantised.", _fake_types, _fake
    ),
    Op("Rescale", "x; the integer network gives it another scale here.", _fake_types, _same),
    Op("QuantizeLinear", "x / scale + zero point, rounded and saturated.", _quantize_types, _quantize),
    Op("DequantizeLinear", "(x - zero point) * scale.", _dequantize_types, _dequantize),
)
