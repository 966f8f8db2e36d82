"""Export of a graph as a plain ONNX model: the frontend's canonical attributes become ONNX inputs again.

The model requires only opset 17 (19 for a dilated AveragePool, 21 for 16-bit quantisation), so every supported
onnxruntime can run it; newer operators (Gelu, Mish, Swish, padding by wrapping) are expressed by older ones. How
an operator is written is part of its declaration (`Op.to_onnx`). Names and bytes depend on the graph alone.

Results of ONNX operators on constants, in numpy: onnxruntime takes longer to fold a node when it opens a model.

Every operator here gives the same bits in both: it selects or moves values, adds integers, or rounds each value
once, as IEEE 754 demands. Forms that npuc does not write, such as sums of floats or shapes with 0, are not met.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import reduce

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import helper, numpy_helper

from npuc import __version__
from npuc.ir import Array, Attr, Graph, Node
from npuc.onnx_files.external_data import outside
from npuc.onnx_files.wire import join_weights
from npuc.ops.attributes import ACTIVATION, DILATIONS, DTYPE, MAX, MIN
from npuc.storage.mapped import HEAVY, Content
from npuc.text.escaping import Names

MOST_BYTES = 1 << 16
"""The largest result that is folded, so that weights stay in integers and a model's size stays bounded."""


def _cast(x: Array, *, to: int) -> Array:
    return x.astype(helper.tensor_dtype_to_np_dtype(to))


def _gather(x: Array, places: Array, *, axis: int = 0) -> Array:
    return np.take(x, places, axis)


def _gather_elements(x: Array, places: Array, *, axis: int = 0) -> Array:
    return np.take_along_axis(x, places, axis)


def _max(*values: Array) -> Array:
    return reduce(np.maximum, values)


def _reduce_sum(x: Array, axes: Array, *, keepdims: int = 1) -> Array:
    return x.sum(tuple(axes), x.dtype, keepdims=bool(keepdims))


FOLDED: Mapping[str, Callable[..., Array]] = {
    "Add": np.add,
    "Cast": _cast,
    "Clip": np.clip,
    "Floor": np.floor,
    "Gather": _gather,
    "GatherElements": _gather_elements,
    "GreaterOrEqual": np.greater_equal,
    "Max": _max,
    "Mul": np.multiply,
    "ReduceSum": _reduce_sum,
    "Reshape": np.reshape,
    "Sub": np.subtract,
}
"""Operators on constants: their inputs in order, and attributes by name."""


def result_of(op_type: str, inputs: Sequence[Array | None], attrs: Mapping[str, Attr]) -> Array | None:
    """The result of an ONNX operator on these values; None if an input is no constant or it is not folded."""
    function = FOLDED.get(op_type)
    values = [each for each in inputs if each is not None]
    if function is None or len(values) < len(inputs) or sum(each.nbytes for each in values) > MOST_BYTES:
        return None
    result = np.asarray(function(*values, **attrs))
    return result if result.nbytes <= MOST_BYTES else None


OPSET = 17
IR_VERSIONS = {17: 8, 19: 9, 21: 10}
APART = ("float32", "int8")
"""Element types of constants that may be stored outside a model."""


class OnnxEmitter:
    """Collects ONNX nodes and initialisers while the nodes of a graph are written.

    folded: whether nodes on constants are replaced by their results.
    """

    def __init__(self, graph: Graph, opset: int, *, folded: bool = False) -> None:
        self.graph = graph
        self.opset = opset
        self.folded = folded
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self._names = graph.names()
        self._node_names = Names()
        self._current = Node("", (), ("",))

    def emit(self, node: Node) -> None:
        """Writes a node of the graph; all ONNX nodes written for it carry its name."""
        self._current = node
        rule = self.graph.operators[node.op].to_onnx
        self.plain(node) if rule is None else rule(node, self)

    def attributes(self, node: Node) -> dict[str, Attr]:
        """The attributes of a node that exist in ONNX."""
        known = [each.name for each in self.graph.operators[node.op].attributes if not each.internal]
        return {name: node.attrs[name] for name in known if name in node.attrs}

    def plain(self, node: Node, without: Sequence[str] = ()) -> None:
        """Writes the operator of the same name with the same attributes, except some, and its fused activation."""
        attrs = {name: value for name, value in self.attributes(node).items() if name not in without}
        self.activate(node, node.op, node.inputs, **attrs)

    def activate(self, node: Node, op_type: str, inputs: Sequence[str], **attrs: Attr) -> None:
        """Writes an operator for the node's outputs, followed by the node's fused activation."""
        kind = ACTIVATION(node)
        linear = self.fresh("linear") if kind else node.output
        self.node(op_type, inputs, (linear, *node.outputs[1:]), **attrs)
        if kind == "Relu":
            self.node("Relu", [linear], node.outputs)
        elif kind == "Clip":
            self.clip(node, linear)

    def clip(self, node: Node, x: str) -> None:
        """Writes a Clip with the node's min and max; infinite ones are left out."""
        bounds = {"min": MIN(node), "max": MAX(node)}
        sides = [self.constant(np.float32(v), stem) if math.isfinite(v) else "" for stem, v in bounds.items()]
        self.node("Clip", [x, *sides], node.outputs)

    def through_float(self, node: Node, *dtypes: str) -> None:
        """Writes a plain operator through float32, for types that onnxruntime does not support for it."""
        dtype = self.graph.tensors[node.output].dtype
        if dtype not in dtypes:
            self.plain(node)
            return
        moved = self.fresh("moved")
        self.plain(replace(node, inputs=(self.step("Cast", node.inputs[0], to="float32"),), outputs=(moved,)))
        self.node("Cast", [moved], [node.output], to=dtype)

    def step(self, op_type: str, *inputs: str, **attrs: Attr) -> str:
        """Appends an ONNX node with one new output; returns the output's name."""
        output = self.fresh(op_type.lower())
        self.node(op_type, inputs, [output], **attrs)
        return output

    def integers(self, stem: str, values: Sequence[int]) -> str:
        """The name of a new int64 initialiser."""
        return self.constant(np.array(values, np.int64), stem)

    def fresh(self, stem: str) -> str:
        """An unused tensor name, made of the current node's output and the stem."""
        return self._names.new(f"{self._current.output}/{stem}")

    def constant(self, value: ArrayLike, stem: str = "constant") -> str:
        """The name of a new initialiser."""
        name = self.fresh(stem)
        self.constants[name] = np.asarray(value)
        return name

    def node(self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Attr) -> None:
        """Appends one ONNX node. Trailing absent inputs and empty attributes are left out.

        `to`, an element type, is given by its name.
        """
        if "to" in attrs:
            attrs["to"] = _element_type(str(attrs["to"]))
        used = list(inputs)
        while used and not used[-1]:
            used.pop()
        self._use_constants(used)
        if self.folded and self._fold(op_type, used, outputs, attrs):
            return
        current = self._current.name or self._current.output
        name = self._node_names.new(current if op_type == self._current.op else f"{current}/{op_type}")
        proto = helper.make_node(op_type, used, list(outputs), name=name)
        present = sorted((key, value) for key, value in attrs.items() if value != ())
        proto.attribute.extend(helper.make_attribute(key, value) for key, value in present)
        self.nodes.append(proto)

    def _fold(
        self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], attrs: Mapping[str, Attr]
    ) -> bool:
        """Adds the node's result as a constant, if it is one."""
        if op_type == "Shape" and inputs[0] in self.graph.tensors:
            found = np.array(self.graph.shape(inputs[0]), np.int64)
        else:
            found = result_of(op_type, [self.constants.get(name) for name in inputs], attrs)
        if found is not None:
            self.constants[outputs[0]] = found
        return found is not None

    def _use_constants(self, names: Sequence[str]) -> None:
        for name in names:
            value = self.graph.constant(name)
            if value is not None:
                self.constants[name] = value


def to_onnx(
    graph: Graph,
    outputs: Sequence[str] | None = None,
    weights: dict[str, Array] | None = None,
    *,
    folded: bool = False,
) -> onnx.ModelProto:
    """The graph as an ONNX model. outputs: any of the graph's tensors (default: its outputs).

    weights: receives heavy constants, of which the model then has only types and shapes (reference.session).
    folded: whether small results of constants become constants: a session of the model opens faster.
    """
    opset = _opset(graph)
    emitter = OnnxEmitter(graph, opset, folded=folded)
    for node in graph.nodes:
        emitter.emit(node)
    wanted = dict.fromkeys(graph.outputs if outputs is None else outputs)
    emitter.constants.update({name: graph.constants[name] for name in wanted if name in graph.constants})
    proto = helper.make_graph(
        emitter.nodes,
        graph.name or "graph",
        [_value(graph, name) for name in graph.inputs],
        [_value(graph, name) for name in wanted],
    )
    imports = [helper.make_opsetid("", opset)]
    model = helper.make_model(
        proto,
        opset_imports=imports,
        ir_version=IR_VERSIONS[opset],
        producer_name="npuc",
        producer_version=__version__,
    )
    read = {name for node in emitter.nodes for name in node.input} if folded else emitter.constants.keys()
    used = {name: value for name, value in emitter.constants.items() if name in read or name in wanted}
    for name, value in used.items():  # added one by one: each step above would copy all of them
        _add_constant(model.graph.initializer.add(), name, np.asarray(value, order="C"), weights)
    return model


def onnx_content(graph: Graph, outputs: Sequence[str] | None = None) -> Content:
    """The same as a file's content, in pieces if the graph has heavy constants, which are not copied."""
    weights: dict[str, Array] = {}
    model = to_onnx(graph, outputs, weights)
    return join_weights(model, weights) if weights else model.SerializeToString(deterministic=True)


def _add_constant(tensor: onnx.TensorProto, name: str, value: Array, weights: dict[str, Array] | None) -> None:
    """Fills in an initialiser; heavy values go into `weights`."""
    if weights is None or value.nbytes < HEAVY or value.dtype not in APART:
        tensor.CopyFrom(numpy_helper.from_array(value, name))
        return
    weights[name] = value
    tensor.name, tensor.data_type = name, _element_type(str(value.dtype))
    tensor.dims.extend(value.shape)
    outside(tensor)


def _value(graph: Graph, name: str) -> onnx.ValueInfoProto:
    found = graph.tensors[name]
    return helper.make_tensor_value_info(name, _element_type(found.dtype), found.shape)


def _element_type(dtype: str) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _opset(graph: Graph) -> int:
    """The smallest of 17, 19 and 21 that supports the graph."""
    quantised = (node for node in graph.nodes if node.op in ("QuantizeLinear", "DequantizeLinear"))
    names = {name for node in quantised for name in (*node.inputs, *node.outputs) if name}
    types = {graph.tensors[name].dtype for name in names}
    types |= {DTYPE(node) for node in graph.nodes if node.op == "FakeQuantize"}
    if types & {"int16", "uint16"}:
        return 21
    dilated = any(node.op == "AveragePool" and max(DILATIONS(node), default=1) > 1 for node in graph.nodes)
    return 19 if dilated else OPSET
