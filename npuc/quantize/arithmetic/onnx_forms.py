"""How each integer operator is written in standard ONNX operators, so that onnxruntime computes it exactly.

A convolution whose accumulators stay below 2^24 for every possible input is written with float32 Conv, which
is exact there: all products and partial sums are integers that float32 holds. Beyond, so many channels of the
input as stay below have a float32 Conv each, summed and requantised in double; and where one channel alone leaves
24 bits, ConvInteger accumulates in 32 (onnxruntime 1.24 and newer know it for int8). Weights are stored in int8.
Requantisation is Mul by 2^-n, Add 1/2, Floor, Clip.
Importing this module adds the rules to the exporter; integer_model writes a whole integer graph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import onnx

from npuc.export_onnx import EXPORTERS, Emitter, Exporter, to_onnx
from npuc.ir import Array, Attr, Graph, Node
from npuc.quantize.arithmetic.operators import EXACT_FLOAT32, accumulator_bound

FLOAT, DOUBLE, INT8, INT16, INT32 = (
    onnx.TensorProto.FLOAT,
    onnx.TensorProto.DOUBLE,
    onnx.TensorProto.INT8,
    onnx.TensorProto.INT16,
    onnx.TensorProto.INT32,
)
INTEGERS = {"int8": INT8, "int16": INT16}
"""The element types of activations."""


def step(emit: Emitter, op: str, *inputs: str, **attrs: Attr) -> str:
    """Emits a node with one output and names it."""
    output = emit.fresh(op.lower())
    emit.node(op, inputs, [output], **attrs)
    return output


def _requantise(emit: Emitter, acc: str, shift: Array, relu: bool, output: str, dtype: type[np.floating]) -> None:
    """acc (float or double) -> int8: Mul, Add, Floor, Clip, Cast."""
    scale = np.ldexp(np.ones(shift.shape), -shift.astype(np.int32)).astype(dtype)
    scaled = step(emit, "Mul", acc, emit.constant(scale, "scale"))
    half = np.where(shift > 0, 0.5, 0.0).astype(dtype)
    shifted = step(emit, "Add", scaled, emit.constant(half, "half"))
    low, high = (
        emit.constant(np.array(0 if relu else -128, dtype), "low"),
        emit.constant(np.array(127, dtype), "high"),
    )
    clipped = step(emit, "Clip", step(emit, "Floor", shifted), low, high)
    emit.node("Cast", [clipped], [output], to=INT8)


def _conv(node: Node, emit: Emitter) -> None:
    w, bias, shift = (emit.graph.constants[name] for name in node.inputs[1:4])
    x, attrs = windowed(node, emit, w)
    relu, column = bool(node.integer("relu")), (-1, 1, 1)
    rounding = np.left_shift(1, np.maximum(shift.astype(np.int64) - 1, 0))
    if (accumulator_bound(w, bias) + rounding).max() < EXACT_FLOAT32:
        weights, offset = as_float(emit, w), emit.constant(bias.astype(np.float32), "b")
        acc = step(emit, "Conv", step(emit, "Cast", x, to=FLOAT), weights, offset, **attrs)
        _requantise(emit, acc, shift.reshape(column), relu, node.output, np.float32)
    else:
        offset = emit.constant(bias.reshape(column).astype(np.float64), "b")
        acc = step(emit, "Add", wide_sums(emit, x, w, attrs), offset)
        _requantise(emit, acc, shift.reshape(column), relu, node.output, np.float64)


def window_attrs(node: Node, w: Array) -> dict[str, Attr]:
    """The attributes of the Conv that has a node's window and groups."""
    window = {key: node.integers(key) for key in ("strides", "pads", "dilations")}
    present: dict[str, Attr] = {key: value for key, value in window.items() if value}
    return {**present, "kernel_shape": w.shape[2:], "group": node.integer("group", 1)}


def windowed(node: Node, emit: Emitter, w: Array) -> tuple[str, dict[str, Attr]]:
    """The int8 map under a node's window, with what surrounds it unless that is 0; the attributes of the Conv."""
    attrs, pads, value = window_attrs(node, w), node.integers("pads"), node.integer("padding")
    if not value:
        return node.inputs[0], attrs
    del attrs["pads"]
    rank = len(pads) // 2
    around = np.array([0, 0, *pads[:rank], 0, 0, *pads[rank:]], np.int64)
    value = emit.constant(np.int8(value), "value")
    return step(emit, "Pad", node.inputs[0], emit.constant(around, "pads"), value), attrs


def _sum(node: Node, emit: Emitter) -> None:
    (first, second), bias = (emit.graph.constants[name].astype(np.float64) for name in node.inputs[2:])
    acc = emit.constant(bias, "bias")
    for name, factor in zip(node.inputs[:2], (first, second), strict=True):
        product = step(emit, "Mul", step(emit, "Cast", name, to=DOUBLE), emit.constant(factor, "factor"))
        acc = step(emit, "Add", acc, product)
    _requantise(emit, acc, np.array(node.integer("shift")), bool(node.integer("relu")), node.output, np.float64)


def wide_sums(emit: Emitter, x: str, w: Array, attrs: Mapping[str, Attr]) -> str:
    """The sums of a convolution, without a bias, in double; w: (Co, Ci/group, ...) int8."""
    channels = np.moveaxis(w, 1, 0)
    reach = 128 * np.array([np.abs(each, dtype=np.int64).sum(axis=(1, 2)) for each in channels])
    if reach.max() >= EXACT_FLOAT32:
        return step(emit, "Cast", step(emit, "ConvInteger", x, emit.constant(w, "w"), **attrs), to=DOUBLE)
    values, group, total = step(emit, "Cast", x, to=FLOAT), attrs.get("group", 1), ""
    assert isinstance(group, int)
    firsts = np.arange(group)[:, None] * w.shape[1]
    for run in _below(reach, EXACT_FLOAT32):
        index = (firsts + np.arange(run.start, run.stop)).ravel()
        part = step(emit, "Gather", values, emit.constant(index, "channels"), axis=1)
        sums = step(emit, "Cast", step(emit, "Conv", part, as_float(emit, w[:, run]), **attrs), to=DOUBLE)
        total = step(emit, "Add", total, sums) if total else sums
    return total


def _below(reach: Array, limit: int) -> Iterator[slice]:
    """Runs of rows whose sums, column by column, stay below the limit; no row reaches it by itself."""
    first, held = 0, np.zeros_like(reach[0])
    for row, each in enumerate(reach):
        held = held + each
        if held.max() >= limit:
            yield slice(first, row)
            first, held = row, each
    yield slice(first, len(reach))


def as_float(emit: Emitter, w: Array) -> str:
    """Weights as float32, stored as the integers that they are."""
    return step(emit, "Cast", emit.constant(w, "w"), to=FLOAT)


def _pair(node: Node, emit: Emitter) -> None:
    left, right = (step(emit, "Cast", name, to=FLOAT) for name in node.inputs)
    acc = step(emit, node.op.removeprefix("Int"), left, right)
    shift = np.array(node.integer("shift"))
    _requantise(emit, acc, shift, bool(node.integer("relu")), node.output, np.float32)


def _relu(node: Node, emit: Emitter) -> None:
    positive = step(emit, "Relu", step(emit, "Cast", node.inputs[0], to=FLOAT))
    emit.node("Cast", [positive], [node.output], to=INT8)


def _table(node: Node, emit: Emitter) -> None:
    """The segment of every int8 value by comparison, its line evaluated; an element takes its value's result."""
    starts, a, b = (emit.graph.constants[name] for name in node.inputs[1:])
    values = np.arange(-128, 128)
    column, row = emit.constant(values[:, None].astype(np.int32)), emit.constant(starts[None].astype(np.int32))
    reached = step(emit, "Cast", step(emit, "GreaterOrEqual", column, row), to=INT32)
    count = step(emit, "ReduceSum", reached, emit.constant(np.array([1])), keepdims=0)
    segment = step(emit, "Sub", count, emit.constant(np.int32(1)))
    slope, offset = (step(emit, "Gather", emit.constant(each.astype(np.float64)), segment) for each in (a, b))
    product = step(emit, "Mul", slope, emit.constant(values.astype(np.float64)))
    results = emit.fresh("results")
    shift = np.array(node.integer("shift"))
    _requantise(emit, step(emit, "Add", product, offset), shift, False, results, np.float64)
    index = step(emit, "Add", step(emit, "Cast", node.inputs[0], to=INT32), emit.constant(np.int32(128)))
    emit.node("Gather", [results, index], [node.output])


def _prelu(node: Node, emit: Emitter) -> None:
    rank = len(emit.graph.shape(node.inputs[0]))
    column = (-1, *(1,) * (rank - 2))
    constants = [emit.graph.constants[name].reshape(column) for name in node.inputs[1:]]
    x = step(emit, "Cast", node.inputs[0], to=FLOAT)
    sides: list[str] = []
    for factor, shift in (constants[:2], constants[2:]):
        slope = emit.constant(np.ldexp(factor.astype(np.float32), -shift.astype(np.int32)), "slope")
        half = emit.constant(np.where(shift > 0, np.float32(0.5), np.float32(0)), "half")
        sides.append(step(emit, "Add", step(emit, "Mul", x, slope), half))
    below = step(emit, "Less", x, emit.constant(np.float32(0)))
    floor = step(emit, "Floor", step(emit, "Where", below, *sides[::-1]))
    low, high = emit.constant(np.float32(-128), "low"), emit.constant(np.float32(127), "high")
    emit.node("Cast", [step(emit, "Clip", floor, low, high)], [node.output], to=INT8)


def through_float(rule: Exporter, dtypes: Collection[str] = tuple(INTEGERS)) -> Exporter:
    """The rule of an operator that onnxruntime does not know for these types: the values pass through float32."""

    def export(node: Node, emit: Emitter) -> None:
        dtype = emit.graph.tensors[node.output].dtype
        if dtype not in dtypes:
            rule(node, emit)
            return
        moved = emit.fresh("moved")
        x = step(emit, "Cast", node.inputs[0], to=FLOAT)
        rule(replace(node, inputs=(x,), outputs=(moved,)), emit)
        emit.node("Cast", [moved], [node.output], to=INTEGERS[dtype])

    return export


EXPORTERS.update({op: through_float(EXPORTERS[op]) for op in ("DepthToSpace", "SpaceToDepth")})
EXPORTERS["MaxPool"] = through_float(EXPORTERS["MaxPool"], ("int16",))
EXPORTERS.update(
    {
        "IntConv": _conv,
        "IntSum": _sum,
        "IntAdd": _pair,
        "IntMul": _pair,
        "IntRelu": _relu,
        "IntTable": _table,
        "IntPRelu": _prelu,
    }
)


def integer_model(graph: Graph, outputs: Sequence[str]) -> bytes:
    """An integer graph as a serialised ONNX model of standard operators, with these tensors as outputs."""
    return to_onnx(graph, outputs).SerializeToString(deterministic=True)
