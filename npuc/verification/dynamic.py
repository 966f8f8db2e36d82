"""Models with dynamic quantisation, for comparison with a graph that has none.

npuc reads DynamicQuantizeLinear as the values themselves, whose scales calibration then chooses. For onnxruntime
the model is therefore written without it: values instead of integers, float products instead of integer ones.
"""

from __future__ import annotations

from collections.abc import Generator

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from npuc.names import Names
from npuc.subgraphs import within

PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
READERS = (*PRODUCTS, "DequantizeLinear")


def without_dynamic_quantisation(model: onnx.ModelProto) -> onnx.ModelProto:
    """The same model, changed in place, with every DynamicQuantizeLinear and its readers on floats."""
    graph = model.graph
    dynamic = {node.output[0] for node in graph.node if node.op_type == "DynamicQuantizeLinear"}
    if not dynamic:
        return model
    nodes: list[onnx.NodeProto] = []
    names = Names(name for each in within(graph.node) for name in (*each.input, *each.output))
    for node in graph.node:
        if node.op_type == "DynamicQuantizeLinear":
            nodes.append(_identity(node))
            values = zip(node.output[1:], (np.float32(1), np.uint8(0)), strict=False)
            graph.initializer.extend(numpy_helper.from_array(np.array(value), name) for name, value in values)
        elif node.op_type in READERS and node.input[0] in dynamic:
            nodes += _product(node, names) if node.op_type in PRODUCTS else [_identity(node)]
        else:
            nodes.append(node)
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    return model


def _identity(node: onnx.NodeProto) -> onnx.NodeProto:
    return helper.make_node("Identity", node.input[:1], node.output[:1], node.name)


def _product(node: onnx.NodeProto, names: Names) -> Generator[onnx.NodeProto]:
    """The float product of values and weights without their zero point."""
    weights = yield from _as_float(node, 1, names)
    if len(node.input) > 3 and node.input[3]:
        zero, centred = (yield from _as_float(node, 3, names)), names.new(f"{weights}/centred")
        yield helper.make_node("Sub", [weights, zero], [centred])
        weights = centred
    made = helper.make_node(PRODUCTS[node.op_type], [node.input[0], weights], node.output, node.name)
    made.attribute.extend(node.attribute)
    yield made


def _as_float(node: onnx.NodeProto, index: int, names: Names) -> Generator[onnx.NodeProto, None, str]:
    name = names.new(f"{node.output[0]}/{index}/float")
    yield helper.make_node("Cast", [node.input[index]], [name], to=TensorProto.FLOAT)
    return name
