"""ONNX models for tests: from text, from nodes, and as onnxruntime quantises them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper, parser
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static
from onnxruntime.quantization.shape_inference import quant_pre_process

from npuc.ir import Array
from npuc.models import MODELS

Constant = Array | np.generic | float | Sequence[int] | Sequence[float]
"""An array or number, whose floats become float32; a tuple: the shape of weights."""


def parse(text: str, opset: int = 17, **constants: Constant) -> onnx.ModelProto:
    """A model in ONNX's textual form, as `g (float[1,3] x) => (float[1,3] y) { y = Mul(x, w) }`.

    text: with the header `<ir_version: 8, opset_import: ["": 17]>` if it has none. Constants that it does not
    name are left out.
    """
    header = "" if text.lstrip().startswith("<") else f'<ir_version: {_ir(opset)}, opset_import: ["": {opset}]> '
    model = parser.parse_model(header + text)
    named = set(re.findall(r"[^\s(),]+", text))
    known = {name: value for name, value in constants.items() if name in named}
    model.graph.initializer.extend(tensors(known))
    return model


def network(
    nodes: Iterable[onnx.NodeProto],
    x: Sequence[int] | Mapping[str, Sequence[int]],
    constants: Mapping[str, Constant] | None = None,
    outputs: str = "y",
    opset: int = 17,
    dtype: int = TensorProto.FLOAT,
    functions: Sequence[onnx.FunctionProto] = (),
    **domains: int,
) -> onnx.ModelProto:
    """A model of nodes. x: the shape of the input x, or of all inputs. outputs: separated by blanks.

    dtype: of inputs and outputs. domains: opsets, such as com_microsoft = 1.
    """
    inputs = x if isinstance(x, Mapping) else {"x": x}
    graph = helper.make_graph(
        [*nodes],
        "network",
        [helper.make_tensor_value_info(name, dtype, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info(name, dtype, None) for name in outputs.split()],
        tensors(constants or {}),
    )
    opsets = [helper.make_opsetid(name.replace("_", "."), each) for name, each in {"": opset, **domains}.items()]
    return helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=_ir(opset))


def _ir(opset: int) -> int:
    return 8 if opset < 20 else 10 if opset < 23 else 11


def node(op: str, inputs: str, output: str, **attrs: Any) -> onnx.NodeProto:
    """An operator named by its first output; inputs and outputs apart by blanks, `-` for none."""
    outputs = output.split()
    given = ["" if each == "-" else each for each in inputs.split()]
    return helper.make_node(op, given, outputs, name=outputs[0], **attrs)


def tensors(constants: Mapping[str, Constant]) -> list[onnx.TensorProto]:
    """Initialisers. Weights that are given by shapes differ from one another."""
    random = np.random.default_rng(3)
    found: list[onnx.TensorProto] = []
    for name, given in constants.items():
        value = normal(random, given) if isinstance(given, tuple) else np.asarray(given)
        found.append(numpy_helper.from_array(value.astype(np.float32) if value.dtype == float else value, name))
    return found


def normal(random: np.random.Generator, shape: Sequence[int]) -> Array:
    """Weights that keep the variance, of a mean that is not 0."""
    fan_in = max(int(np.prod(shape[1:])), 1)
    return (random.standard_normal(shape) / np.sqrt(fan_in) + 0.1 / fan_in).astype(np.float32)


def weights(*shape: int) -> Array:
    """Normal weights that keep the variance, the same for the same shape."""
    values = np.random.default_rng(sum(shape)).standard_normal(shape)
    return (values / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


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
    shapes = {"w": (16, 3, 3, 3), "g": (16, 16, 1, 1), "v": (8, 16, 3, 3)}
    held = {name: random.standard_normal(shape) / np.sqrt(np.prod(shape[1:])) for name, shape in shapes.items()}
    return parse(
        "gated (float[1,3,9,9] x) => (float[1,8,9,9] y) { c = Conv<pads = [1, 1, 1, 1]>(x, w)\n"
        "m = GlobalAveragePool(c)\n n = Conv(m, g)\n s = Sigmoid(n)\n p = Mul(c, s)\n"
        "d = Conv<pads = [1, 1, 1, 1]>(p, v)\n y = PRelu(d, slope) }",
        **held,
        slope=random.uniform(0, 0.5, (8, 1, 1)),
    )
