"""Quantised models for the tests of targets: trained ones, and networks as onnxruntime quantises them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from npuc.models import MODELS

TRAINED = {
    "tiny_resnet8_int8qdq": ("input_1_int8", (1, 32, 32, 3)),
    "tiny_kws_int8qdq": ("input_1", (1, 49, 10, 1)),
    "tiny_vww_int8qdq": ("input_1_int8", (1, 96, 96, 3)),
    "tiny_sww_int8": ("serving_default_input_1:0", (1, 30, 1, 40)),
}
"""Model -> its input and that one's shape."""

FORMS = {
    "QDQ, unsigned": ("QDQ", "QUInt8", "QInt8", False, False, 17),
    "QDQ, signed, per channel": ("QDQ", "QInt8", "QInt8", False, True, 13),
    "QDQ, symmetric, per channel": ("QDQ", "QInt8", "QInt8", True, True, 21),
    "QDQ, unsigned weights": ("QDQ", "QUInt8", "QUInt8", False, False, 23),
    "QOperator, signed": ("QOperator", "QInt8", "QInt8", False, False, 17),
    "QOperator, unsigned, per channel": ("QOperator", "QUInt8", "QInt8", False, True, 11),
}
"""Form -> arguments of `quantised`: format, activations, weights, symmetric, per channel, opset."""


class _Samples(CalibrationDataReader):
    """Some normal values for a network's one input."""

    def __init__(self, model: onnx.ModelProto) -> None:
        port, random = model.graph.input[0], np.random.default_rng(0)
        shape = [each.dim_value for each in port.type.tensor_type.shape.dim]
        self.left = [{port.name: random.standard_normal(shape).astype(np.float32)} for _ in range(8)]

    def get_next(self) -> dict[str, Any] | None:
        return self.left.pop() if self.left else None


def quantised(
    name: str,
    folder: Path,
    form: str,
    activations: str,
    weights: str,
    *,
    symmetric: bool,
    per_channel: bool,
    opset: int,
) -> Path:
    """A network of npuc.models, or the one below, as onnxruntime's quantize_static makes it."""
    model = _gated() if name == "gated" else MODELS[name]()
    model.opset_import[0].version = opset  # its operators are the same in all of these
    source, prepared, result = (folder / f"{stem}.onnx" for stem in ("float", "prepared", "quantised"))
    onnx.save(model, source)
    quant_pre_process(str(source), str(prepared), skip_symbolic_shape=True)
    quantize_static(
        str(prepared),
        str(result),
        _Samples(model),
        quant_format=QuantFormat[form],
        activation_type=QuantType[activations],
        weight_type=QuantType[weights],
        per_channel=per_channel,
        extra_options={"ActivationSymmetric": symmetric, "WeightSymmetric": weights == "QInt8"},
    )
    return result


def _gated() -> onnx.ModelProto:
    """A convolution whose channels are multiplied with gates made of their means, and a PRelu with many slopes."""
    random = np.random.default_rng(0)
    make, value = onnx.helper.make_node, onnx.helper.make_tensor_value_info
    shapes = {"w": (16, 3, 3, 3), "g": (16, 16, 1, 1), "v": (8, 16, 3, 3)}
    weights = {name: random.standard_normal(shape) / np.sqrt(np.prod(shape[1:])) for name, shape in shapes.items()}
    weights["slope"] = random.uniform(0, 0.5, (8, 1, 1))
    nodes = [
        make("Conv", ["x", "w"], ["c"], "conv", pads=[1, 1, 1, 1]),
        make("GlobalAveragePool", ["c"], ["m"], "mean"),
        make("Conv", ["m", "g"], ["n"], "squeeze"),
        make("Sigmoid", ["n"], ["s"], "gate"),
        make("Mul", ["c", "s"], ["p"], "product"),
        make("Conv", ["p", "v"], ["d"], "last", pads=[1, 1, 1, 1]),
        make("PRelu", ["d", "slope"], ["y"], "slopes"),
    ]
    constants = [onnx.numpy_helper.from_array(each.astype(np.float32), name) for name, each in weights.items()]
    graph = onnx.helper.make_graph(
        nodes, "gated", [value("x", 1, [1, 3, 9, 9])], [value("y", 1, [1, 8, 9, 9])], constants
    )
    return onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 17)], ir_version=8)
