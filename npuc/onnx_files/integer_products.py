"""Integer products of an ONNX model in a form that onnxruntime computes exactly on every x64 processor.

With AVX2 and without VNNI, its products of uint8 activations and int8 weights saturate in 16 bits inside. Products
of uint8 and uint8 do not, and raising weights and their zero point by 128 does not change a result.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, shape_inference

from npuc.ir import Array
from npuc.onnx_files.subgraphs import graphs
from npuc.text.escaping import Names


class Product(NamedTuple):
    """The inputs of an operator that are the factors of a product and their zero points.

    Activations without a place are uint8 inside the operator.
    """

    weights: int
    weights_zero: int
    activations: int | None = None
    activations_zero: int | None = None


QLINEAR, INTEGER = Product(3, 5, 0, 2), Product(1, 3, 0, 2)
PRODUCTS: Mapping[str, tuple[Product, ...]] = {
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QGemm"), (QLINEAR,)),
    **dict.fromkeys(("ConvInteger", "MatMulInteger"), (INTEGER,)),
    "MatMulIntegerToFloat": (Product(1, 5, 0, 4),),
    "QAttention": (Product(1, 7, 0, 6),),
    "DynamicQuantizeMatMul": (Product(1, 3),),
    "DynamicQuantizeLSTM": (Product(1, 9), Product(2, 11)),
}
"""The products of each operator that multiplies integers (ONNX, and onnxruntime's contributed operators)."""
RAISED = 128


def with_unsigned_weights(model: onnx.ModelProto, outside: Mapping[str, Array]) -> onnx.ModelProto | None:
    """The model with the int8 weights of uint8 activations as uint8, or None if it has none; the model is changed.

    outside: values of constants that are not in the model.
    """
    types = _element_types(model)
    raising = _Raising(model, types, outside)
    changed = False
    for graph in graphs(model.graph):
        nodes: list[onnx.NodeProto] = []
        for node in graph.node:
            for product in PRODUCTS.get(node.op_type, ()):
                if _saturates(node, product, types):
                    changed = True
                    inputs = [*node.input, *[""] * (product.weights_zero + 1 - len(node.input))]
                    for place in (product.weights, product.weights_zero):
                        inputs[place] = raising(inputs[place], nodes)
                    node.input[:] = inputs
            nodes.append(node)
        if len(nodes) > len(graph.node):
            del graph.node[:]
            graph.node.extend(nodes)
    return model if changed else None


def _saturates(node: onnx.NodeProto, product: Product, types: Mapping[str, int]) -> bool:
    """Whether uint8 activations meet int8 weights."""

    def of(*places: int | None) -> set[int | None]:
        return {types.get(node.input[place]) for place in places if place is not None and place < len(node.input)}

    unsigned = product.activations is None or TensorProto.UINT8 in of(
        product.activations, product.activations_zero
    )
    return unsigned and TensorProto.INT8 in of(product.weights, product.weights_zero)


def _element_types(model: onnx.ModelProto) -> dict[str, int]:
    """The element type of each tensor that ONNX knows; names are unique across subgraphs."""
    found = {}
    for graph in graphs(shape_inference.infer_shapes(model).graph):
        known = (*graph.input, *graph.value_info, *graph.output)
        found.update({each.name: each.type.tensor_type.elem_type for each in known})
        found.update({each.name: each.data_type for each in graph.initializer})
    return found


class _Raising:
    """Raises tensors by 128: constants once, as new constants; others by nodes. New names are unused ones."""

    def __init__(self, model: onnx.ModelProto, types: Mapping[str, int], outside: Mapping[str, Array]) -> None:
        self.model, self.outside = model, outside
        self.constants = {each.name: each for graph in graphs(model.graph) for each in graph.initializer}
        self.names = Names({*types, *self.constants})
        for graph in graphs(model.graph):
            self.names.take(name for node in graph.node for name in (*node.input, *node.output))
        self.made: dict[str, str] = {}

    def __call__(self, name: str, nodes: list[onnx.NodeProto]) -> str:
        """The raised tensor; the empty name stands for a zero point of 0. nodes: receives the new nodes."""
        if name and name not in self.constants:
            wide, sum_, result = (self.names.new(f"{name}/{part}") for part in ("wide", "raised", "unsigned"))
            nodes.append(helper.make_node("Cast", [name], [wide], to=TensorProto.INT32))
            nodes.append(helper.make_node("Add", [wide, self._constant("", np.int32)], [sum_]))
            nodes.append(helper.make_node("Cast", [sum_], [result], to=TensorProto.UINT8))
            return result
        return self._constant(name, np.uint8)

    def _constant(self, name: str, dtype: type[np.generic]) -> str:
        key = f"{name}/{np.dtype(dtype).name}"
        if key not in self.made:
            raised = (np.asarray(self._values(name), np.int16) + RAISED).astype(dtype)
            self.made[key] = self.names.new(key)
            self.model.graph.initializer.append(numpy_helper.from_array(raised, self.made[key]))
        return self.made[key]

    def _values(self, name: str) -> Array:
        if not name:
            return np.zeros((), np.int8)
        return self.outside[name] if name in self.outside else numpy_helper.to_array(self.constants[name])
