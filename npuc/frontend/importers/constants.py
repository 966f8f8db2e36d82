"""What is constant once shapes are: constants, shape arithmetic, Where by a constant condition, IsNaN of finite x.

After binding every shape is static, so these are values, not nodes. PyTorch writes `Where(IsNaN(s), 0, s)` behind
the Softmax of every attention, as a mask may remove all of a row.
"""

from __future__ import annotations

import numpy as np

from npuc.frontend.builder import Importer, NodeBuilder, OnnxNode, broadcast
from npuc.frontend.finite import is_finite
from npuc.ir import Array
from npuc.onnx_files.external_data import LARGEST_CONSTANT
from npuc.system.budget import expect_room

ABSORBING = 2.0**127
"""In float32, a sum with a constant of this magnitude is the constant."""


def _is_nan(node: OnnxNode, to: NodeBuilder) -> None:
    """False everywhere, if x is finite whenever the inputs are. Raises UnsupportedOperator otherwise."""
    x = node.inputs[0]
    if not is_finite(to, x):
        raise node.support_error("its argument may be NaN", "leave out the test, or use the host", limit="finite")
    to.add_constant(node.outputs[0], np.broadcast_to(np.False_, to.shape(x)))


def _where(node: OnnxNode, to: NodeBuilder) -> None:
    """One of two tensors, or for each element the sum of both, one of them times 0.

    Raises UnsupportedOperator for a computed condition, and for an operand that may be infinite or NaN.
    """
    condition, *operands = node.inputs
    if condition not in to.constants:
        reason = "the condition is computed at run time"
        raise node.support_error(reason, "a product with 0 and 1, or the host", limit="a constant condition")
    chosen = to.constants[condition]
    shape = broadcast(node, *map(to.shape, node.inputs))
    if chosen.all() or not chosen.any():
        _copy(node, to, operands[not chosen.all()], shape)
        return
    if any(to.types[each].dtype != "float32" or not _is_safe(to, each) for each in operands):
        reason = "an operand may be infinite or NaN, or is not float32"
        raise node.support_error(reason, "the host", limit="finite float32")
    parts = [
        _part(node, to, each, kept, other)
        for each, kept, other in zip(operands, (chosen, ~chosen), operands[::-1], strict=True)
    ]
    to.emit(node, "Add", parts)


def _copy(node: OnnxNode, to: NodeBuilder, x: str, shape: tuple[int, ...]) -> None:
    if to.shape(x) == shape:
        to.alias(node, x)
    else:
        to.emit(node, "Expand", (x,), shape=shape)


def _is_safe(to: NodeBuilder, name: str) -> bool:
    return name in to.constants or is_finite(to, name)


def _part(node: OnnxNode, to: NodeBuilder, x: str, kept: Array, other: str) -> str:
    """x where it is kept, 0 elsewhere; x itself, if the sum with the other absorbs it there."""
    if x in to.constants:
        return to.constant(node, "part", np.where(kept, to.constants[x], np.float32(0)))
    if other in to.constants and (np.abs(to.constants[other]) >= ABSORBING).all():
        return x
    return to.emit(node, "Mul", (x, to.constant(node, "kept", kept.astype(np.float32))), ())


TYPED_VALUES = {
    "value_float": np.float32,
    "value_floats": np.float32,
    "value_int": np.int64,
    "value_ints": np.int64,
    "value_string": np.object_,
    "value_strings": np.object_,
}


def _constant(node: OnnxNode, to: NodeBuilder) -> None:
    """One of the attributes value, value_float(s), value_int(s), value_string(s)."""
    if len(node.attrs) != 1:
        raise node.bad(f"{len(node.attrs)} values", limit="one")
    ((key, value),) = node.attrs.items()
    to.add_constant(node.outputs[0], value if key == "value" else np.array(value, TYPED_VALUES[key]))


def _shape(node: OnnxNode, to: NodeBuilder) -> None:
    shape = to.shape(node.inputs[0])
    part = slice(node.attrs.get("start", 0), node.attrs.get("end"))
    to.add_constant(node.outputs[0], np.array(shape[part], np.int64))


def _size(node: OnnxNode, to: NodeBuilder) -> None:
    to.add_constant(node.outputs[0], np.array(to.types[node.inputs[0]].size, np.int64))


def _constant_of_shape(node: OnnxNode, to: NodeBuilder) -> None:
    shape = to.integers(node, 0)
    fill: Array = node.attrs.get("value", np.zeros(1, np.float32))
    if any(extent < 0 for extent in shape) or fill.size != 1:
        raise node.bad(f"shape {list(shape)} and {fill.size} values")
    _check_size(node, float(np.prod(shape, dtype=np.float64)), fill.itemsize)
    to.add_constant(node.outputs[0], np.full(shape, fill.reshape(()), fill.dtype))


def _range(node: OnnxNode, to: NodeBuilder) -> None:
    start, limit, delta = (to.scalar(node, index) for index in range(3))
    if delta == 0:
        raise node.bad("the step is 0")
    _check_size(node, (limit - start) / delta, 2 * 8)
    dtype = to.types[node.inputs[0]].dtype
    to.add_constant(node.outputs[0], np.arange(start, limit, delta).astype(dtype))


def _check_size(node: OnnxNode, elements: float, element_bytes: int) -> None:
    if not elements <= LARGEST_CONSTANT:
        raise node.bad(f"a constant of {elements:.0f} elements", limit=f"{LARGEST_CONSTANT} elements")
    expect_room(max(elements, 0) * element_bytes, "a constant", node=node.source, tensor=node.outputs[0])


IMPORTERS: dict[str, Importer] = {
    "IsNaN": _is_nan,
    "Where": _where,
    "Constant": _constant,
    "Shape": _shape,
    "Size": _size,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
}
