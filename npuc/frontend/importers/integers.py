"""QuantizeLinear, DequantizeLinear, and integer operators with scales and zero points: float ones between the two.

QLinearConv, QLinearMatMul and onnxruntime's QLinear... and QGemm have scale and zero point of each operand and of
the result. ConvInteger and MatMulInteger have no scales: their operands are in units of 1, and their int32 result
becomes a float with integral values (attribute `whole` of its Cast).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx

from npuc.errors import ModelError
from npuc.frontend.builder import Importer, NodeBuilder, OnnxNode
from npuc.frontend.importers import elementwise, movement, products, reduction, windows


def _convert(node: OnnxNode, to: NodeBuilder) -> None:
    """Imports a QuantizeLinear or DequantizeLinear node."""
    if node.attrs.get("block_size"):
        raise node.support_error(
            "blocked quantisation", "quantise per tensor or per channel", limit="per tensor or per axis"
        )
    for index in range(1, len(node.inputs)):
        if node.has_input(index):
            to.value(node, index)
    _expect_scale(node, to)
    rank, scale = len(to.shape(node.inputs[0])), to.types[node.inputs[1]]
    axis = node.axis(node.attrs.get("axis", 1), rank) if scale.size != 1 else 0
    zero = node.inputs[2] if node.has_input(2) else _zero_point(node, to, scale.shape)
    to.emit(node, node.op, (node.inputs[0], node.inputs[1], zero), axis=axis)


def _expect_scale(node: OnnxNode, to: NodeBuilder) -> None:
    """Raises ModelError (E105) for scales that are not finite numbers above 0."""
    scale = to.value(node, 1)
    if scale.dtype.kind == "f" and not (np.isfinite(scale) & (scale > 0)).all():
        wrong = scale[~(np.isfinite(scale) & (scale > 0))] if scale.ndim else scale
        reason, limit = f"a scale is {float(wrong.flat[0])}", "finite, above 0"
        raise node.bad(reason, tensor=node.inputs[1], limit=limit)


def _zero_point(node: OnnxNode, to: NodeBuilder, shape: tuple[int, ...]) -> str:
    """Zeros of the integer type: that of DequantizeLinear's input, or QuantizeLinear's output_dtype or uint8."""
    if node.op == "DequantizeLinear":
        dtype = np.dtype(to.types[node.inputs[0]].dtype)
    else:
        code = node.attrs.get("output_dtype") or onnx.TensorProto.UINT8
        if code not in onnx.helper.get_all_tensor_dtypes():
            raise ModelError("E107", f"output_dtype is {code}", node=node.source, op=node.op)
        dtype = onnx.helper.tensor_dtype_to_np_dtype(code)
    return to.constant(node, "zero_point", np.zeros(shape, dtype))


FLOAT: dict[str, Importer] = {
    **elementwise.IMPORTERS,
    **products.IMPORTERS,
    **movement.IMPORTERS,
    **reduction.IMPORTERS,
    **windows.IMPORTERS,
}


def _float(node: OnnxNode, to: NodeBuilder, inputs: Sequence[int], axis: int | None = None) -> str:
    """The dequantised operand; `inputs`: positions of its integers, scale and zero point.

    axis: along which it may have several scales; None: it has one.
    """
    names = tuple(node.inputs[at] if node.has_input(at) else "" for at in inputs)
    if axis is None:
        _expect_one(node, to, names[1])
    output = to.fresh(f"{names[0]}/dequantised")
    attrs = {"axis": axis or 0}
    _convert(replace(node, op="DequantizeLinear", inputs=names, outputs=(output,), attrs=attrs), to)
    return output


def _expect_one(node: OnnxNode, to: NodeBuilder, scale: str) -> None:
    count = to.types[scale].size
    if count != 1:
        reason, remedy = f"{scale!r} has {count} scales", "quantise activations per tensor"
        raise node.support_error(reason, remedy, limit="one scale for activations")


def _compute(node: OnnxNode, to: NodeBuilder, op: str, inputs: Sequence[str], scale: int) -> None:
    """Emits the float operator, and quantises its result; the zero point follows the scale's position."""
    if node.attrs.get("channels_last"):
        raise node.support_error("its channels are last", "export the model with channels first")
    _expect_one(node, to, node.inputs[scale])
    result = to.fresh(f"{node.outputs[0]}/float")
    FLOAT[op](replace(node, op=op, inputs=tuple(inputs), outputs=(result,)), to)
    zero = node.inputs[scale + 1] if node.has_input(scale + 1) else ""
    quantize = replace(node, op="QuantizeLinear", inputs=(result, node.inputs[scale], zero), attrs={})
    _convert(quantize, to)


def _unary(op: str) -> Importer:
    """x, its scale and zero point, those of the result."""

    def importer(node: OnnxNode, to: NodeBuilder) -> None:
        _compute(node, to, op, [_float(node, to, (0, 1, 2))], 3)

    return importer


def _softmax(node: OnnxNode, to: NodeBuilder) -> None:
    """Its attribute tells which opset's Softmax it is."""
    _unary("Softmax")(replace(node, opset=node.attrs["opset"]), to)


def _average_pool(node: OnnxNode, to: NodeBuilder) -> None:
    if node.attrs["ceil_mode"] and node.attrs["count_include_pad"]:
        # unlike AveragePool, it also counts what lies behind the pads
        remedy = "use AveragePool between DequantizeLinear and QuantizeLinear"
        raise node.support_error("ceil_mode with count_include_pad", remedy, limit="one of the two")
    _unary("AveragePool")(node, to)


def _binary(op: str) -> Importer:
    """Two operands, each with scale and zero point, then those of the result."""

    def importer(node: OnnxNode, to: NodeBuilder) -> None:
        rank = len(to.shape(node.inputs[3]))
        operands = [_float(node, to, (0, 1, 2)), _float(node, to, (3, 4, 5), max(rank - 1, 0))]
        _compute(node, to, op, operands, 6)

    return importer


def _bias(node: OnnxNode, to: NodeBuilder, at: int, axis: int) -> list[str]:
    """The int32 bias in units of the scales of the operands' product, if there is one."""
    if not node.has_input(at):
        return []
    alpha = np.float32(node.attrs.get("alpha", 1))
    product = np.asarray(to.value(node, 1) * to.value(node, 4) * alpha, np.float32)
    scale = to.constant(node, "bias_scale", product.squeeze())
    zero = to.constant(node, "bias_zero", np.zeros(to.shape(scale), np.int32))
    names = (node.inputs[at], scale, zero)
    output = to.fresh(f"{names[0]}/dequantised")
    _convert(replace(node, op="DequantizeLinear", inputs=names, outputs=(output,), attrs={"axis": axis}), to)
    return [output]


def _conv(node: OnnxNode, to: NodeBuilder) -> None:
    operands = [_float(node, to, (0, 1, 2)), _float(node, to, (3, 4, 5), 0)]
    _compute(node, to, "Conv", [*operands, *_bias(node, to, 8, 0)], 6)


def _gemm(node: OnnxNode, to: NodeBuilder) -> None:
    """Without a scale for the result it stays float."""
    columns = 0 if node.attrs["transB"] else 1
    operands = [_float(node, to, (0, 1, 2)), _float(node, to, (3, 4, 5), columns)]
    operands += _bias(node, to, 6, 0)
    if node.has_input(7):
        _compute(node, to, "Gemm", operands, 7)
    else:
        FLOAT["Gemm"](replace(node, op="Gemm", inputs=tuple(operands)), to)


def _concat(node: OnnxNode, to: NodeBuilder) -> None:
    """Scale and zero point of the result, then three inputs per operand."""
    if len(node.inputs) % 3 != 2:
        raise node.bad(f"the node has {len(node.inputs)} inputs", limit="2, and 3 for each operand")
    operands = [_float(node, to, (at, at + 1, at + 2)) for at in range(2, len(node.inputs), 3)]
    _compute(node, to, "Concat", operands, 0)


def _unscale(node: OnnxNode, to: NodeBuilder, at: int, given: float, axis: int) -> tuple[str, float]:
    """An operand of an integer product as float, and the scale that it was multiplied by.

    Its zero point is the second input behind it. given: the required scale; if QuantizeLinear computed the
    operand, its own scale is used instead. axis: along which it may have several zero points.
    """
    name = node.inputs[at]
    producer = to.producers.get(name)
    scale = to.constants.get(producer.inputs[1]) if producer and producer.op == "QuantizeLinear" else None
    factor = float(scale.flat[0]) if scale is not None and scale.size == 1 else given
    value = to.constant(node, "scale", np.float32(factor))
    zeros = node.inputs[at + 2] if node.has_input(at + 2) else ""
    if zeros and to.types[zeros].size > 1:
        value = to.constant(node, "scale", np.full(to.shape(zeros), factor, np.float32))
    output = to.fresh(f"{name}/dequantised")
    inputs = (name, value, zeros)
    _convert(replace(node, op="DequantizeLinear", inputs=inputs, outputs=(output,), attrs={"axis": axis}), to)
    return output, factor


def _integer(op: str, rows: int, columns: int) -> Importer:
    """A product of integers: x, w and their zero points. rows, columns: the axes along which these may vary."""

    def importer(node: OnnxNode, to: NodeBuilder) -> None:
        x, factor = _unscale(node, to, 0, 1.0, rows)
        w, _ = _unscale(node, to, 1, 1 / factor, columns)
        product = to.fresh(f"{node.outputs[0]}/float")
        FLOAT[op](replace(node, op=op, inputs=(x, w), outputs=(product,)), to)
        to.emit(node, "Cast", (product,), to="int32", whole=1)

    return importer


def _dynamic(node: OnnxNode, _to: NodeBuilder) -> None:
    """Raises UnsupportedOperator (E202): `dynamic` leaves only those whose integers or scale are needed."""
    remedy = "quantise with constant scales (QuantizeLinear)"
    reason, limit = "more than its products reads its scale or integers", "products that its scale multiplies"
    raise node.support_error(reason, remedy, limit=limit)


IMPORTERS: dict[str, Importer] = {
    "QuantizeLinear": _convert,
    "DequantizeLinear": _convert,
    "QLinearConv": _conv,
    "QLinearMatMul": _binary("MatMul"),
    "QLinearAdd": _binary("Add"),
    "QLinearMul": _binary("Mul"),
    "QLinearSigmoid": _unary("Sigmoid"),
    "QLinearLeakyRelu": _unary("LeakyRelu"),
    "QLinearSoftmax": _softmax,
    "QLinearAveragePool": _average_pool,
    "QLinearGlobalAveragePool": _unary("GlobalAveragePool"),
    "QLinearConcat": _concat,
    "QGemm": _gemm,
    "ConvInteger": _integer("Conv", 0, 0),
    "MatMulInteger": _integer("MatMul", -2, -1),
    "DynamicQuantizeLinear": _dynamic,
}
