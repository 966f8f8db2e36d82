"""Networks with dynamic quantisation in float32: calibration chooses their scales.

DynamicQuantizeLinear finds a scale for each sample, which the targets cannot. Where its integers only meet
products and its scale only undoes them, it is read as the values themselves, and the products as float products.
That is found as units are checked in physics: a tensor has powers of scales (integers s^-1, as x / s, and their
products too, the scale s), multiplication adds them, and only tensors without any may go anywhere else. Where a
power is left over, the node stays as it is, for the host.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from npuc.frontend.foreign import all_inputs
from npuc.onnx_files.subgraphs import tensor_names
from npuc.reference import STANDARD
from npuc.text.escaping import Names

PRODUCTS = {"MatMulInteger": "MatMul", "ConvInteger": "Conv"}
SUMS = ("Add", "Sub", "Concat")
KEEPING = ("Identity", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten")
"""Operators whose result has the powers of their first input."""
INTEGERS = (TensorProto.UINT8, TensorProto.INT32)
"""Declared types of dynamic integers and their products, which no longer hold."""
FLOAT = helper.make_attribute("to", int(TensorProto.FLOAT))
Powers = Counter[str]
"""The exponents of scales in a tensor. A zero point has its scale's too: it stands for the same node."""


def without_dynamic_quantisation(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with each DynamicQuantizeLinear that can be, and its readers, on floats; itself without any."""
    dynamic = _replaceable(model.graph)
    if not dynamic:
        return model
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph, names = made.graph, Names(tensor_names(made.graph))
    declared = [each for each in graph.value_info if each.type.tensor_type.elem_type not in INTEGERS]
    integers = {name for name, node in dynamic.items() if name == node.output[0]}
    nodes = [new for node in model.graph.node for new in _on_floats(node, integers, names)]
    del graph.node[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.value_info.extend(declared)
    graph.initializer.extend(_parameters(dynamic))
    return made


def _on_floats(node: onnx.NodeProto, dynamic: AbstractSet[str], names: Names) -> Iterable[onnx.NodeProto]:
    """The nodes in place of one. dynamic: integers that become values."""
    quantises = _is_dynamic(node) and node.output[0] in dynamic
    if quantises or (node.op_type == "DequantizeLinear" and not dynamic.isdisjoint(node.input[:1])):
        return [helper.make_node("Identity", node.input[:1], node.output[:1], node.name)]
    if node.op_type in PRODUCTS and not dynamic.isdisjoint(node.input[:2]):
        return _product(node, dynamic, names)
    return [node]


def _parameters(dynamic: Mapping[str, onnx.NodeProto]) -> Iterator[onnx.TensorProto]:
    """The scale of 1 and zero point of 0 that values have."""
    for integers, node in dynamic.items():
        if integers == node.output[0]:
            for name, value in zip(node.output[1:], (np.float32(1), np.uint8(0)), strict=False):
                yield numpy_helper.from_array(np.array(value), name)


def _is_dynamic(node: onnx.NodeProto) -> bool:
    complete = len(node.input) == 1 and len([*filter(None, node.output)]) == 3  # a damaged model is refused later
    return node.op_type == "DynamicQuantizeLinear" and node.domain in STANDARD and complete


def _replaceable(graph: onnx.GraphProto) -> dict[str, onnx.NodeProto]:
    """The nodes that can be replaced, each by the names of its results."""
    found = {name: node for node in graph.node if _is_dynamic(node) for name in node.output}
    while wrong := _left_over(graph, found):
        gone = {name for each in wrong for name in found[each].output}
        found = {name: node for name, node in found.items() if name not in gone}
    return found


def _left_over(graph: onnx.GraphProto, dynamic: Mapping[str, onnx.NodeProto]) -> set[str]:
    """The scales of which something reads a power that it does not undo, given that all of these are replaced.

    All scales where the nodes are in no order: a second walk would find other powers.
    """
    walk = _PowerWalk(dynamic)
    for node in graph.node:
        walk.meet(node)
    first = dict(walk.powers)
    for node in graph.node:
        walk.meet(node)
    left = {scale for each in graph.output for scale in walk.powers.get(each.name, ())}
    return walk.wrong | left if walk.powers == first else {node.output[1] for node in dynamic.values()}


class _PowerWalk:
    """The powers of tensors, node by node. dynamic: the nodes to be replaced, by the names of their results."""

    def __init__(self, dynamic: Mapping[str, onnx.NodeProto]) -> None:
        self.dynamic, self.wrong = dynamic, set[str]()
        self.powers = {
            name: Powers({node.output[1]: [*node.output].index(name) % 2 * 2 - 1})
            for name, node in dynamic.items()
        }
        self.integers = set[str]()
        """Sums of integer products, until a Cast."""

    def meet(self, node: onnx.NodeProto) -> None:
        """Notes the powers of a node's result, or the scales that it reads and does not undo."""
        read = [name for name in dict.fromkeys(all_inputs(node)) if name in self.powers]
        result = self._result(node) if read else None
        if read and result is None:
            self.wrong.update(scale for name in read for scale in self.powers[name])
        elif result:
            self.powers[node.output[0]] = result

    def _result(self, node: onnx.NodeProto) -> Powers | None:
        """The powers of a node's result; None if it may not read what it reads."""
        if node.domain not in STANDARD or any(each.type == each.GRAPH for each in node.attribute):
            return None
        inputs, integers = [*node.input, "", "", "", ""], not self.integers.isdisjoint(node.input)
        if node.op_type in PRODUCTS:
            self.integers.add(node.output[0])
            return self._of_product(inputs)
        if node.op_type == "DequantizeLinear":
            own = self.dynamic.get(inputs[0])
            return Powers() if own is not None and inputs[:3] == [*own.output] else None
        if any(name in self.dynamic and name != self.dynamic[name].output[1] for name in inputs):
            return None
        first, second = (self.powers.get(name, Powers()) for name in inputs[:2])
        if node.op_type == "Mul" and not integers:
            return _sum(first, second)
        if node.op_type == "Cast" and FLOAT in node.attribute:
            return first
        alike = all(self.powers.get(name) == first for name in node.input)
        if not ((node.op_type in SUMS and alike) or (node.op_type in KEEPING and not second)):
            return None
        if integers:
            self.integers.add(node.output[0])
        return first

    def _of_product(self, inputs: list[str]) -> Powers | None:
        """The powers of an integer product: those of its factors, each of which has its own zero point."""
        found = Powers()
        for factor, zero in ((inputs[0], inputs[2]), (inputs[1], inputs[3])):
            own = self.dynamic.get(factor)
            if own is not None and [factor, zero] == [own.output[0], own.output[2]]:
                found = _sum(found, self.powers[factor])
            elif factor in self.powers or zero in self.powers:
                return None
        return found


def _sum(one: Powers, other: Powers) -> Powers:
    return Powers({name: one[name] + other[name] for name in {*one, *other} if one[name] + other[name]})


def _product(node: onnx.NodeProto, dynamic: AbstractSet[str], names: Names) -> Generator[onnx.NodeProto]:
    """The product of values; integers that were not quantised dynamically give them less their zero point."""
    operands: list[str] = []
    for at, name in enumerate(node.input[:2]):
        zero = node.input[at + 2] if len(node.input) > at + 2 else ""
        operands.append(name if name in dynamic else (yield from _centre(node, at, zero, names)))
    made = helper.make_node(PRODUCTS[node.op_type], operands, node.output, node.name)
    made.attribute.extend(node.attribute)
    yield made


def _centre(node: onnx.NodeProto, at: int, zero: str, names: Names) -> Generator[onnx.NodeProto, None, str]:
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
