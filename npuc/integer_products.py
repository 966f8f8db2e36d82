"""Integer products of an ONNX model in a form that onnxruntime computes exactly on every x64 processor.

With AVX2 and without VNNI, its products of uint8 activations and int8 weights saturate in 16 bits inside. Products
of uint8 and uint8 do not, and raising weights and their zero point by 128 does not change a result.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper, shape_inference

from npuc.ir import Array

WEIGHTS = {
    **dict.fromkeys(("QLinearConv", "QLinearMatMul", "QGemm"), (3, 5)),
    **dict.fromkeys(("ConvInteger", "MatMulInteger"), (1, 3)),
}
"""The inputs of each product that are the weights and their zero point."""
ZERO_POINT = 2
"""The input of each product that is the zero point of the activations."""
RAISED = 128


def with_unsigned_weights(model: onnx.ModelProto, outside: Mapping[str, Array]) -> onnx.ModelProto:
    """The model with constant int8 weights of uint8 activations as uint8; the given model is changed.

    outside: values of constants that are not in the model.
    """
    constants = {each.name: each for each in model.graph.initializer if each.data_type == each.INT8}
    types = _element_types(model)
    raised = _Raised(model, constants, outside)
    for node in model.graph.node:
        if node.op_type not in WEIGHTS:
            continue
        at, zero_at = WEIGHTS[node.op_type]
        inputs = [*node.input, *[""] * (zero_at + 1 - len(node.input))]
        unsigned = TensorProto.UINT8 in (types.get(inputs[0]), types.get(inputs[ZERO_POINT]))
        if unsigned and inputs[at] in constants and (not inputs[zero_at] or inputs[zero_at] in constants):
            inputs[at], inputs[zero_at] = raised(inputs[at]), raised(inputs[zero_at])
            node.input[:] = inputs
    return model


def _element_types(model: onnx.ModelProto) -> dict[str, int]:
    graph = shape_inference.infer_shapes(model).graph
    found = {each.name: each.type.tensor_type.elem_type for each in (*graph.input, *graph.value_info)}
    return found | {each.name: each.data_type for each in graph.initializer}


class _Raised:
    """Raised copies of constants, each made once, under names that the model does not use."""

    def __init__(
        self, model: onnx.ModelProto, constants: Mapping[str, TensorProto], outside: Mapping[str, Array]
    ) -> None:
        self.model, self.constants, self.outside = model, constants, outside
        self.names = {name for node in model.graph.node for name in (*node.input, *node.output)}
        self.names.update(each.name for each in model.graph.initializer)
        self.made: dict[str, str] = {}

    def __call__(self, name: str) -> str:
        """The name of the copy; the empty name stands for a zero point of 0."""
        if name not in self.made:
            values = np.asarray(self._values(name), np.int16) + RAISED
            copy = f"{name}/unsigned"
            while copy in self.names:
                copy += "_"
            self.names.add(copy)
            self.model.graph.initializer.append(numpy_helper.from_array(values.astype(np.uint8), copy))
            self.made[name] = copy
        return self.made[name]

    def _values(self, name: str) -> Array:
        if not name:
            return np.zeros((), np.int8)
        return self.outside[name] if name in self.outside else numpy_helper.to_array(self.constants[name])
