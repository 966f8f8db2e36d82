"""Constants and shape arithmetic: after binding every shape is static, so these are values, not nodes."""

from __future__ import annotations

import numpy as np

from npuc.frontend.builder import NodeBuilder, OnnxNode
from npuc.frontend.importers.importer import Importer
from npuc.ir import Array
from npuc.onnx_files.external_data import LARGEST_CONSTANT
from npuc.system.budget import expect_room

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
    "Constant": _constant,
    "Shape": _shape,
    "Size": _size,
    "ConstantOfShape": _constant_of_shape,
    "Range": _range,
}
