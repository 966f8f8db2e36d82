"""Writes a graph as a plain ONNX model: the frontend's canonical attributes become ONNX inputs again.

The model needs opset 17 only (19 for a dilated AveragePool, 21 for 16-bit quantisation), so every supported
onnxruntime runs it; younger operators (Gelu, Mish, Swish, padding by wrapping) are written in older ones.
Another module makes its own operators exportable by adding a rule to EXPORTERS.
Names and bytes depend on the graph alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import onnx
from numpy.typing import ArrayLike
from onnx import helper, numpy_helper

from npuc import __version__
from npuc.ir import Array, Attr, Graph, Node
from npuc.names import Names
from npuc.ops.resize import scales_of
from npuc.reference import HEAVY, outside

OPSET = 17
IR_VERSIONS = {17: 8, 19: 9, 21: 10}


class Emitter:
    """Collects the ONNX nodes and initialisers while the rules of a graph's nodes run."""

    def __init__(self, graph: Graph, opset: int) -> None:
        self.graph = graph
        self.opset = opset
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self._names = Names(graph.tensors)
        self._node_names = Names()
        self._current = Node("", (), ("",))

    def start(self, node: Node) -> None:
        """Says which node the following emissions belong to: it names them."""
        self._current = node

    def fresh(self, stem: str) -> str:
        """A tensor name that the graph does not use, made of the current node's output and the stem."""
        return self._names.new(f"{self._current.output}/{stem}")

    def constant(self, value: ArrayLike, stem: str = "constant") -> str:
        """The name of a new initialiser."""
        name = self.fresh(stem)
        self.constants[name] = np.asarray(value)
        return name

    def node(self, op_type: str, inputs: Sequence[str], outputs: Sequence[str], **attrs: Attr) -> None:
        """Appends one ONNX node. Trailing absent inputs and empty attributes are left out."""
        used = list(inputs)
        while used and not used[-1]:
            used.pop()
        self._use_constants(used)
        current = self._current.name or self._current.output
        name = self._node_names.new(current if op_type == self._current.op else f"{current}/{op_type}")
        proto = helper.make_node(op_type, used, list(outputs), name=name)
        present = sorted((key, value) for key, value in attrs.items() if value != ())
        proto.attribute.extend(helper.make_attribute(key, value) for key, value in present)
        self.nodes.append(proto)

    def _use_constants(self, names: Sequence[str]) -> None:
        for name in names:
            value = self.graph.constant(name)
            if value is not None:
                self.constants[name] = value


Exporter = Callable[[Node, Emitter], None]

# The attributes of the operators that ONNX knows in exactly the canonical form.
PLAIN: dict[str, tuple[str, ...]] = {
    "Conv": ("kernel_shape", "strides", "pads", "dilations", "group"),
    "ConvTranspose": ("kernel_shape", "strides", "pads", "dilations", "output_padding", "group"),
    "MatMul": (),
    "BatchNormalization": ("epsilon",),
    "InstanceNormalization": ("epsilon",),
    "LRN": ("alpha", "beta", "bias", "size"),
    "LeakyRelu": ("alpha",),
    "Elu": ("alpha",),
    "HardSigmoid": ("alpha", "beta"),
    "MaxPool": ("kernel_shape", "strides", "pads", "dilations", "ceil_mode"),
    "Concat": ("axis",),
    "Transpose": ("perm",),
    "Gather": ("axis",),
    "SpaceToDepth": ("blocksize",),
    "DepthToSpace": ("blocksize", "mode"),
    "Softmax": ("axis",),
    "LogSoftmax": ("axis",),
    "ArgMax": ("axis", "keepdims", "select_last_index"),
    "QuantizeLinear": ("axis",),
    "DequantizeLinear": ("axis",),
}
WITHOUT_ATTRIBUTES = """
    Abs Add Ceil Div Erf Exp Floor GlobalAveragePool GlobalMaxPool HardSwish Identity Log Max Min Mul Neg Pow PRelu
    Reciprocal Relu Round Sigmoid Softplus Softsign Sqrt Sub Tanh
"""
PLAIN.update(dict.fromkeys(WITHOUT_ATTRIBUTES.split(), ()))


def to_onnx(
    graph: Graph, outputs: Sequence[str] | None = None, weights: dict[str, Array] | None = None
) -> onnx.ModelProto:
    """The graph as an ONNX model. outputs: the tensors it gives, any of the graph's (default: its outputs).

    weights: takes heavy constants, of which the model then has type and shape only (reference.session).
    Operators without a rule here or in EXPORTERS raise KeyError: each operator brings its own.
    """
    opset = _opset(graph)
    emitter = Emitter(graph, opset)
    for node in graph.nodes:
        emitter.start(node)
        EXPORTERS[node.op](node, emitter)
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
    for name, value in emitter.constants.items():  # one by one into the model: each step above would copy them all
        _add_constant(model.graph.initializer.add(), name, np.asarray(value, order="C"), weights)
    return model


def _add_constant(tensor: onnx.TensorProto, name: str, value: Array, weights: dict[str, Array] | None) -> None:
    """Fills in an initialiser, or the weights with what is heavy."""
    if weights is None or value.nbytes < HEAVY or value.dtype != np.float32:
        tensor.CopyFrom(numpy_helper.from_array(value, name))
        return
    weights[name] = value
    tensor.name, tensor.data_type = name, onnx.TensorProto.FLOAT
    tensor.dims.extend(value.shape)
    outside(tensor)


def _value(graph: Graph, name: str) -> onnx.ValueInfoProto:
    found = graph.tensors[name]
    return helper.make_tensor_value_info(name, _element_type(found.dtype), found.shape)


def _element_type(dtype: str) -> int:
    return helper.np_dtype_to_tensor_dtype(np.dtype(dtype))


def _opset(graph: Graph) -> int:
    """The smallest of 17, 19 and 21 that has every form of the graph."""
    quantised = (node for node in graph.nodes if node.op in ("QuantizeLinear", "DequantizeLinear"))
    names = {name for node in quantised for name in (*node.inputs, *node.outputs) if name}
    if any(graph.tensors[name].dtype in ("int16", "uint16") for name in names):
        return 21
    dilated = any(node.op == "AveragePool" and max(node.integers("dilations", (1,))) > 1 for node in graph.nodes)
    return 19 if dilated else OPSET


def _plain(node: Node, emitter: Emitter) -> None:
    attrs = {key: node.attrs[key] for key in PLAIN[node.op] if key in node.attrs}
    linear = _linear_output(node, emitter)
    emitter.node(node.op, node.inputs, (linear, *node.outputs[1:]), **attrs)
    _activation(node, emitter, linear)


def _linear_output(node: Node, emitter: Emitter) -> str:
    """Where the operator itself writes: a new tensor if an activation follows, else the node's output."""
    return emitter.fresh("linear") if node.text("activation") else node.output


def _activation(node: Node, emitter: Emitter, linear: str) -> None:
    if node.text("activation") == "Relu":
        emitter.node("Relu", [linear], node.outputs)
    elif node.text("activation") == "Clip":
        _emit_clip(node, emitter, linear)


def _emit_clip(node: Node, emitter: Emitter, x: str) -> None:
    """Clip with the node's min and max; an infinite one is left out."""
    bounds = [("min", node.number("min", -math.inf)), ("max", node.number("max", math.inf))]
    sides = [emitter.constant(np.float32(v), stem) if math.isfinite(v) else "" for stem, v in bounds]
    emitter.node("Clip", [x, *sides], node.outputs)


def _int64(emitter: Emitter, stem: str, values: Sequence[int]) -> str:
    return emitter.constant(np.array(values, np.int64), stem)


def _clip(node: Node, emitter: Emitter) -> None:
    _emit_clip(node, emitter, node.inputs[0])


def _gemm(node: Node, emitter: Emitter) -> None:
    linear = _linear_output(node, emitter)
    emitter.node("Gemm", node.inputs, [linear], transB=1)
    _activation(node, emitter, linear)


def _swish(node: Node, emitter: Emitter) -> None:
    x, alpha, gate = node.inputs[0], node.number("alpha", 1.0), emitter.fresh("gate")
    inner = x
    if alpha != 1:
        inner = emitter.fresh("scaled")
        emitter.node("Mul", [x, emitter.constant(np.float32(alpha), "alpha")], [inner])
    emitter.node("Sigmoid", [inner], [gate])
    emitter.node("Mul", [x, gate], node.outputs)


def _mish(node: Node, emitter: Emitter) -> None:
    soft, gate = emitter.fresh("softplus"), emitter.fresh("gate")
    emitter.node("Softplus", node.inputs, [soft])
    emitter.node("Tanh", [soft], [gate])
    emitter.node("Mul", [node.inputs[0], gate], node.outputs)


def _gelu(node: Node, emitter: Emitter) -> None:
    """0.5 x (1 + erf(x / sqrt 2)), or 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    x = node.inputs[0]

    def step(op: str, *inputs: str | float) -> str:
        result = emitter.fresh(op.lower())
        names = [each if isinstance(each, str) else emitter.constant(np.float32(each)) for each in inputs]
        emitter.node(op, names, [result])
        return result

    if node.text("approximate", "none") == "tanh":
        cubic = step("Mul", step("Mul", step("Mul", x, x), x), 0.044715)
        gate = step("Tanh", step("Mul", step("Add", x, cubic), math.sqrt(2 / math.pi)))
    else:
        gate = step("Erf", step("Mul", x, math.sqrt(0.5)))
    emitter.node("Mul", [step("Mul", x, 0.5), step("Add", gate, 1.0)], node.outputs)


def _average_pool(node: Node, emitter: Emitter) -> None:
    keys = ["kernel_shape", "strides", "pads", "ceil_mode", "count_include_pad"]
    if max(node.integers("dilations", (1,))) > 1:
        keys.append("dilations")
    present = {key: node.attrs[key] for key in keys if key in node.attrs}
    emitter.node("AveragePool", node.inputs, node.outputs, **present)


def _split(node: Node, emitter: Emitter) -> None:
    sizes = _int64(emitter, "split", node.integers("split"))
    emitter.node("Split", [node.inputs[0], sizes], node.outputs, axis=node.integer("axis"))


def _slice(node: Node, emitter: Emitter) -> None:
    """An end below 0 means "past the first element"; ONNX would count it from the back."""
    shape, axes = emitter.graph.shape(node.inputs[0]), node.integers("axes")
    ends = [e if e >= 0 else -shape[axis] - 1 for axis, e in zip(axes, node.integers("ends"), strict=True)]
    parts = {"starts": node.integers("starts"), "ends": ends, "axes": axes, "steps": node.integers("steps")}
    inputs = [_int64(emitter, stem, values) for stem, values in parts.items()]
    emitter.node("Slice", [node.inputs[0], *inputs], node.outputs)


def _interleave(node: Node, emitter: Emitter) -> None:
    """The inputs one after the other, of which Gather then takes the elements in turns."""
    axis, joined = node.integer("axis"), emitter.fresh("joined")
    extents = np.cumsum([0, *(emitter.graph.shape(name)[axis] for name in node.inputs)])
    indices = np.zeros(extents[-1], np.int64)
    for number, (first, end) in enumerate(pairwise(extents.tolist())):
        indices[number :: len(node.inputs)] = range(first, end)
    emitter.node("Concat", node.inputs, [joined], axis=axis)
    emitter.node("Gather", [joined, emitter.constant(indices, "turns")], node.outputs, axis=axis)


def _pad(node: Node, emitter: Emitter) -> None:
    x, pads, mode = node.inputs[0], node.integers("pads"), node.text("mode", "constant")
    if mode == "wrap":
        _pad_by_wrapping(node, emitter)
        return
    inputs = [x, _int64(emitter, "pads", pads)]
    if mode == "constant":
        dtype = np.dtype(emitter.graph.tensors[x].dtype)
        inputs.append(emitter.constant(np.array(node.number("value"), dtype), "value"))
    emitter.node("Pad", inputs, node.outputs, mode=mode)


def _pad_by_wrapping(node: Node, emitter: Emitter) -> None:
    """One Gather per padded axis, as opset 17 has no such mode."""
    name, pads, shape = node.inputs[0], node.integers("pads"), emitter.graph.shape(node.inputs[0])
    pairs = list(enumerate(zip(pads[: len(shape)], pads[len(shape) :], strict=True)))
    for axis, (begin, end) in pairs:
        if begin or end:
            low, high = max(-begin, 0), shape[axis] + min(end, 0)
            index = low + (np.arange(-begin, shape[axis] + end, dtype=np.int64) - low) % (high - low)
            padded = emitter.fresh(f"axis{axis}")
            emitter.node("Gather", [name, emitter.constant(index, "indices")], [padded], axis=axis)
            name = padded
    emitter.node("Identity", [name], node.outputs)


def _shaped(node: Node, emitter: Emitter) -> None:
    shape = _int64(emitter, "shape", node.integers("shape"))
    zeros = {"allowzero": 1} if node.op == "Reshape" and 0 in node.integers("shape") else {}
    emitter.node(node.op, [node.inputs[0], shape], node.outputs, **zeros)


def _cast(node: Node, emitter: Emitter) -> None:
    emitter.node("Cast", node.inputs, node.outputs, to=_element_type(node.text("to")))


def _fake_quantize(node: Node, emitter: Emitter) -> None:
    scale = emitter.constant(np.float32(node.number("scale")), "scale")
    zero = emitter.constant(np.array(node.integer("zero_point"), node.text("dtype")), "zero")
    steps = emitter.fresh("steps")
    emitter.node("QuantizeLinear", [node.inputs[0], scale, zero], [steps])
    emitter.node("DequantizeLinear", [steps, scale, zero], node.outputs)


def _rescale(node: Node, emitter: Emitter) -> None:
    emitter.node("Identity", node.inputs, node.outputs)


def _resize(node: Node, emitter: Emitter) -> None:
    """By scales where they give the same size as in ONNX, floor(extent * scale); otherwise by sizes."""
    shape, sizes = emitter.graph.shape(node.inputs[0]), node.integers("sizes")
    scales = np.array(scales_of(node), np.float32)
    if tuple(np.floor(np.array(shape, np.float32) * scales).astype(int)) == sizes:
        inputs = [node.inputs[0], "", emitter.constant(scales, "scales")]
    else:
        inputs = [node.inputs[0], "", "", _int64(emitter, "sizes", sizes)]
    keys = ("mode", "coordinate_transformation_mode", "nearest_mode", "cubic_coeff_a", "exclude_outside")
    emitter.node("Resize", inputs, node.outputs, **{key: node.attrs[key] for key in keys if key in node.attrs})


def _reduce(node: Node, emitter: Emitter) -> None:
    """The axes are an input of ReduceSum since opset 13, of the others since opset 18."""
    axes, keep = node.integers("axes"), node.integer("keepdims", 1)
    if node.op == "ReduceSum" or emitter.opset >= 18:
        emitter.node(node.op, [node.inputs[0], _int64(emitter, "axes", axes)], node.outputs, keepdims=keep)
    else:
        emitter.node(node.op, node.inputs, node.outputs, axes=axes, keepdims=keep)


EXPORTERS: dict[str, Exporter] = {
    **dict.fromkeys(PLAIN, _plain),
    "Gemm": _gemm,
    "Clip": _clip,
    "Swish": _swish,
    "Mish": _mish,
    "Gelu": _gelu,
    "AveragePool": _average_pool,
    "Split": _split,
    "Slice": _slice,
    "Interleave": _interleave,
    "Pad": _pad,
    "Reshape": _shaped,
    "Expand": _shaped,
    "Cast": _cast,
    "FakeQuantize": _fake_quantize,
    "Rescale": _rescale,
    "Resize": _resize,
    "ReduceMean": _reduce,
    "ReduceSum": _reduce,
    "ReduceMax": _reduce,
    "ReduceMin": _reduce,
}
