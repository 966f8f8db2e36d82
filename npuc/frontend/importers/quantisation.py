"""QuantizeLinear and DequantizeLinear, always with a zero point and a non-negative axis."""

from __future__ import annotations

import numpy as np
import onnx

from npuc.errors import ModelError
from npuc.frontend.builder import NodeBuilder, OnnxNode
from npuc.frontend.importers.importer import Importer


def convert(node: OnnxNode, to: NodeBuilder) -> None:
    """Imports a QuantizeLinear or DequantizeLinear node."""
    if node.attrs.get("block_size"):
        raise node.unsupported(
            "blocked quantisation", "quantise per tensor or per channel", limit="per tensor or per axis"
        )
    for index in range(1, len(node.inputs)):
        if node.given(index):
            to.value(node, index)
    _expect_scale(node, to)
    rank, scale = len(to.shape(node.inputs[0])), to.types[node.inputs[1]]
    axis = node.axis(node.attrs.get("axis", 1), rank) if scale.size != 1 else 0
    zero = node.inputs[2] if node.given(2) else _zero_point(node, to, scale.shape)
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


IMPORTERS: dict[str, Importer] = {"QuantizeLinear": convert, "DequantizeLinear": convert}
