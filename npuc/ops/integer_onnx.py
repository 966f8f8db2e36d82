"""The integer operators in standard ONNX operators, such that onnxruntime computes them exactly.

A convolution whose accumulators stay below 2^24 for every possible input is written as a float32 Conv, which is
exact there: all products and partial sums are integers that float32 can represent. Beyond that, the input channels
are split into groups that stay below, each with a float32 Conv, and the results are summed and requantised in
double; if a single channel exceeds 24 bits, ConvInteger accumulates in 32 (supported for int8 by onnxruntime 1.24
and newer). Weights are stored in int8. Requantisation is Mul by 2^-n, Add 1/2, Floor, Clip.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np

from npuc.ir import Array, Attr, Node
from npuc.ops.accumulators import EXACT_FLOAT32, accumulator_bound
from npuc.ops.attributes import DILATIONS, GROUP, PADDING, PADS, RELU, SHIFT, STRIDES

if TYPE_CHECKING:
    from npuc.onnx_files.export import OnnxEmitter

FLOAT, DOUBLE, INT8, INT32 = "float32", "float64", "int8", "int32"


def _requantise(
    emit: OnnxEmitter, acc: str, shift: Array, relu: bool, output: str, dtype: type[np.floating]
) -> None:
    """acc (float or double) -> int8: Mul, Add, Floor, Clip, Cast."""
    scale = np.ldexp(np.ones(shift.shape), -shift.astype(np.int32)).astype(dtype)
    scaled = emit.step("Mul", acc, emit.constant(scale, "scale"))
    half = np.where(shift > 0, 0.5, 0.0).astype(dtype)
    shifted = emit.step("Add", scaled, emit.constant(half, "half"))
    low, high = (
        emit.constant(np.array(0 if relu else -128, dtype), "low"),
        emit.constant(np.array(127, dtype), "high"),
    )
    clipped = emit.step("Clip", emit.step("Floor", shifted), low, high)
    emit.node("Cast", [clipped], [output], to=INT8)


def conv(node: Node, emit: OnnxEmitter) -> None:
    """A convolution by float32 sums if they are exact."""
    w, bias, shift = (emit.graph.constants[name] for name in node.inputs[1:4])
    x, attrs = pad_window(node, emit, w)
    relu, column = RELU(node), (-1, 1, 1)
    rounding = np.left_shift(1, np.maximum(shift.astype(np.int64) - 1, 0))
    if (accumulator_bound(w, bias) + rounding).max() < EXACT_FLOAT32:
        weights, offset = as_float(emit, w), emit.constant(bias.astype(np.float32), "b")
        acc = emit.step("Conv", emit.step("Cast", x, to=FLOAT), weights, offset, **attrs)
        _requantise(emit, acc, shift.reshape(column), relu, node.output, np.float32)
    else:
        offset = emit.constant(bias.reshape(column).astype(np.float64), "b")
        acc = emit.step("Add", wide_sums(emit, x, w, attrs), offset)
        _requantise(emit, acc, shift.reshape(column), relu, node.output, np.float64)


def window_attrs(node: Node, w: Array) -> dict[str, Attr]:
    """The attributes of a Conv with a node's window and groups."""
    window: dict[str, Attr] = {each.name: each(node) for each in (STRIDES, PADS, DILATIONS)}
    return {**window, "kernel_shape": w.shape[2:], "group": GROUP(node)}


def pad_window(node: Node, emit: OnnxEmitter, w: Array) -> tuple[str, dict[str, Attr]]:
    """A node's int8 input, padded explicitly if the padding value is not 0, and the attributes of the Conv."""
    attrs, pads, value = window_attrs(node, w), PADS(node), PADDING(node)
    if not value:
        return node.inputs[0], attrs
    del attrs["pads"]
    rank = len(pads) // 2
    widths = np.array([0, 0, *pads[:rank], 0, 0, *pads[rank:]], np.int64)
    value = emit.constant(np.int8(value), "value")
    return emit.step("Pad", node.inputs[0], emit.constant(widths, "pads"), value), attrs


def weighted_sum(node: Node, emit: OnnxEmitter) -> None:
    """Both products and their sum in double."""
    (first, second), bias = (emit.graph.constants[name].astype(np.float64) for name in node.inputs[2:])
    acc = emit.constant(bias, "bias")
    for name, factor in zip(node.inputs[:2], (first, second), strict=True):
        product = emit.step("Mul", emit.step("Cast", name, to=DOUBLE), emit.constant(factor, "factor"))
        acc = emit.step("Add", acc, product)
    _requantise(emit, acc, np.array(SHIFT(node)), RELU(node), node.output, np.float64)


def wide_sums(emit: OnnxEmitter, x: str, w: Array, attrs: Mapping[str, Attr]) -> str:
    """The sums of a convolution, without a bias, in double; w: (Co, Ci/group, ...) int8."""
    channels = np.moveaxis(w, 1, 0)
    reach = 128 * np.array([np.abs(each, dtype=np.int64).sum(axis=(1, 2)) for each in channels])
    if reach.max() >= EXACT_FLOAT32:
        return emit.step("Cast", emit.step("ConvInteger", x, emit.constant(w, "w"), **attrs), to=DOUBLE)
    values, group, total = emit.step("Cast", x, to=FLOAT), attrs.get("group", 1), ""
    assert isinstance(group, int)
    firsts = np.arange(group)[:, None] * w.shape[1]
    for run in _below(reach, EXACT_FLOAT32):
        index = (firsts + np.arange(run.start, run.stop)).ravel()
        part = emit.step("Gather", values, emit.constant(index, "channels"), axis=1)
        sums = emit.step("Cast", emit.step("Conv", part, as_float(emit, w[:, run]), **attrs), to=DOUBLE)
        total = emit.step("Add", total, sums) if total else sums
    return total


def _below(reach: Array, limit: int) -> Iterator[slice]:
    """Runs of rows whose sums in every column stay below the limit; no single row reaches it."""
    first, held = 0, np.zeros_like(reach[0])
    for row, each in enumerate(reach):
        held = held + each
        if held.max() >= limit:
            yield slice(first, row)
            first, held = row, each
    yield slice(first, len(reach))


def as_float(emit: OnnxEmitter, w: Array) -> str:
    """Weights as float32, stored as integers."""
    return emit.step("Cast", emit.constant(w, "w"), to=FLOAT)


def pair(node: Node, emit: OnnxEmitter) -> None:
    """The sum or product in float32."""
    left, right = (emit.step("Cast", name, to=FLOAT) for name in node.inputs)
    acc = emit.step(node.op.removeprefix("Int"), left, right)
    shift = np.array(SHIFT(node))
    _requantise(emit, acc, shift, RELU(node), node.output, np.float32)


def relu(node: Node, emit: OnnxEmitter) -> None:
    """Computed in float32."""
    positive = emit.step("Relu", emit.step("Cast", node.inputs[0], to=FLOAT))
    emit.node("Cast", [positive], [node.output], to=INT8)


EVERY = np.arange(256, dtype=np.uint8).view(np.int8)
"""All int8 values, each in the place that it selects as an index: negative ones count from the end."""


def table(node: Node, emit: OnnxEmitter) -> None:
    """Evaluates the table for every int8 value, selecting segments by comparison; elements are looked up."""
    starts, a, b = (emit.graph.constants[name] for name in node.inputs[1:])
    column = emit.constant(EVERY[:, None].astype(np.int32))
    row = emit.constant(starts[None].astype(np.int32))
    reached = emit.step("Cast", emit.step("GreaterOrEqual", column, row), to=INT32)
    count = emit.step("ReduceSum", reached, emit.constant(np.array([1])), keepdims=0)
    segment = emit.step("Sub", count, emit.constant(np.int32(1)))
    slope, offset = (emit.step("Gather", emit.constant(each.astype(np.float64)), segment) for each in (a, b))
    product = emit.step("Mul", slope, emit.constant(EVERY.astype(np.float64)))
    results = emit.fresh("results")
    shift = np.array(SHIFT(node))
    _requantise(emit, emit.step("Add", product, offset), shift, False, results, np.float64)
    looked_up(emit, results, node.inputs[0], node.output)


def looked_up(emit: OnnxEmitter, entries: str, places: str, output: str = "") -> str:
    """The entries of a vector in these places (integers, or whole numbers as floats), in their shape.

    GatherElements has operands of one rank, but takes a sixth of Gather's time under onnxruntime. output: the
    result's name, otherwise a new one.
    """
    index = emit.step("Cast", emit.step("Reshape", places, emit.integers("flat", [-1])), to=INT32)
    found = emit.step("GatherElements", entries, index)
    output = output or emit.fresh("entry")
    emit.node("Reshape", [found, emit.step("Shape", places)], [output])
    return output


def prelu(node: Node, emit: OnnxEmitter) -> None:
    """Both sides; each element selects one of them."""
    rank = len(emit.graph.shape(node.inputs[0]))
    column = (-1, *(1,) * (rank - 2))
    constants = [emit.graph.constants[name].reshape(column) for name in node.inputs[1:]]
    x = emit.step("Cast", node.inputs[0], to=FLOAT)
    sides: list[str] = []
    for factor, shift in (constants[:2], constants[2:]):
        slope = emit.constant(np.ldexp(factor.astype(np.float32), -shift.astype(np.int32)), "slope")
        half = emit.constant(np.where(shift > 0, np.float32(0.5), np.float32(0)), "half")
        sides.append(emit.step("Add", emit.step("Mul", x, slope), half))
    below = emit.step("Less", x, emit.constant(np.float32(0)))
    floor = emit.step("Floor", emit.step("Where", below, *sides[::-1]))
    low, high = emit.constant(np.float32(-128), "low"), emit.constant(np.float32(127), "high")
    emit.node("Cast", [emit.step("Clip", floor, low, high)], [node.output], to=INT8)
