"""Values of constant nodes that have no canonical operator, by ONNX's own reference implementation."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx

from npuc.frontend.builder import Builder, OnnxNode
from npuc.ir import Array

RANDOM = (
    "RandomNormal",
    "RandomNormalLike",
    "RandomUniform",
    "RandomUniformLike",
    "Bernoulli",
    "Multinomial",
)


def can_fold(node: OnnxNode, proto: onnx.NodeProto, to: Builder) -> bool:
    """Whether the node's value is the same in every run: constant inputs, no subgraph, nothing random."""
    if node.op in RANDOM or any(each.type == onnx.AttributeProto.GRAPH for each in proto.attribute):
        return False
    return bool(node.inputs) and all(each in to.constants for each in node.inputs if each)


def fold(node: OnnxNode, proto: onnx.NodeProto, to: Builder) -> None:
    """Makes the node's outputs constants. Raises E105 if the reference implementation refuses the node."""
    values = _reference_values(node, proto, to)
    for name, value in zip(filter(None, proto.output), values, strict=True):
        to.add_constant(name, value)


def _reference_values(node: OnnxNode, proto: onnx.NodeProto, to: Builder) -> Sequence[Array]:
    from onnx.reference import ReferenceEvaluator

    feeds = {raw: to.constants[each] for raw, each in zip(proto.input, node.inputs, strict=True) if raw}
    inputs = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.UNDEFINED, None) for name in feeds]
    outputs = [onnx.helper.make_empty_tensor_value_info(name) for name in proto.output if name]
    graph = onnx.helper.make_graph([proto], "constant", inputs, outputs)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", node.opset)])
    try:
        return [np.asarray(each) for each in ReferenceEvaluator(model).run(None, feeds)]
    except Exception as error:
        # The reference implementation declares no exceptions of its own: whatever it raises for this node
        # means that the node has no value.
        raise node.bad(f"the constant cannot be computed: {error}") from error
