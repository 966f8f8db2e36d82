"""Networks with dynamic quantisation in float32: calibration chooses their scales.

DynamicQuantizeLinear finds a scale for each sample, which the targets cannot. It is read as the values themselves,
and the integer products of its results as float products. Where anything else needs the integers or their scale,
the node stays as it is.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from collections.abc import Set as AbstractSet

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from npuc.custom_ops import STANDARD
from npuc.onnx_files.subgraphs import subgraphs, tensor_names, within
from npuc.text.names import Names

PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
READERS = (*PRODUCTS, "DequantizeLinear")
"""Readers of integers that accept values instead."""
INTEGERS = (TensorProto.UINT8, TensorProto.INT32)
"""Declared types of dynamic integers and their products, which no longer hold."""


def without_dynamic_quantisation(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with every DynamicQuantizeLinear and its readers on floats; the same object if there is none."""
    dynamic = set(_replaceable(model.graph))
    if not dynamic:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph, names = made.graph, Names(tensor_names(made.graph))
    declared = [each for each in graph.value_info if each.type.tensor_type.elem_type not in INTEGERS]
    nodes = [new for node in model.graph.node for new in _on_floats(node, dynamic, names)]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.value_info.extend(declared)
    graph.initializer.extend(_parameters(model.graph, dynamic))
    return made


def _on_floats(node: onnx.NodeProto, dynamic: AbstractSet[str], names: Names) -> Iterable[onnx.NodeProto]:
    """The nodes in place of one. dynamic: integers that become values."""
    quantises = _is_dynamic(node) and node.output[0] in dynamic
    if quantises or (node.op_type == "DequantizeLinear" and not dynamic.isdisjoint(node.input[:1])):
        return [helper.make_node("Identity", node.input[:1], node.output[:1], node.name)]
    if node.op_type in PRODUCTS and not dynamic.isdisjoint(node.input[:2]):
        return _product(node, dynamic, names)
    return [node]


def _parameters(graph: onnx.GraphProto, dynamic: AbstractSet[str]) -> Iterator[onnx.TensorProto]:
    """The scale of 1 and zero point of 0 that values have."""
    for node in graph.node:
        if _is_dynamic(node) and node.output[0] in dynamic:
            for name, value in zip(node.output[1:], (np.float32(1), np.uint8(0)), strict=False):
                yield numpy_helper.from_array(np.array(value), name)


def _is_dynamic(node: onnx.NodeProto) -> bool:
    complete = bool(node.input and node.output)  # a damaged model is refused later
    return node.op_type == "DynamicQuantizeLinear" and node.domain in STANDARD and complete


def _replaceable(graph: onnx.GraphProto) -> Iterator[str]:
    """The integers of each DynamicQuantizeLinear that only READERS take, with its scale inside the network."""
    needed = {each.name for each in graph.output}
    values = {name for node in graph.node if node.op_type not in READERS for name in node.input}
    for inner in (each for node in graph.node for each in subgraphs(node)):
        values.update(name for node in within(inner.node) for name in node.input)
    for node in graph.node:
        if _is_dynamic(node) and needed.isdisjoint(node.output) and node.output[0] not in values:
            yield node.output[0]


def _product(node: onnx.NodeProto, dynamic: AbstractSet[str], names: Names) -> Generator[onnx.NodeProto]:
    """The product of values; integers that were not quantised dynamically give them less their zero point."""
    operands: list[str] = []
    for at, name in enumerate(node.input[:2]):
        zero = node.input[at + 2] if len(node.input) > at + 2 else ""
        operands.append(name if name in dynamic else (yield from _centred(node, at, zero, names)))
    made = helper.make_node(PRODUCTS[node.op_type], operands, node.output, node.name)
    made.attribute.extend(node.attribute)
    yield made


def _centred(node: onnx.NodeProto, at: int, zero: str, names: Names) -> Generator[onnx.NodeProto, None, str]:
    """An operand as float, less its zero point."""
    value = yield from _as_float(node, at, names)
    if not zero:
        return value
    subtracted, result = (yield from _as_float(node, at + 2, names)), names.new(f"{value}/centred")
    yield helper.make_node("Sub", [value, subtracted], [result])
    return result


def _as_float(node: onnx.NodeProto, index: int, names: Names) -> Generator[onnx.NodeProto, None, str]:
    name = names.new(f"{node.output[0]}/{index}/float")
    yield helper.make_node("Cast", [node.input[index]], [name], to=TensorProto.FLOAT)
    return name
