"""Operators on integers with scales and zero points mean what onnxruntime computes for them, to a step."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npuc.errors import NpucError
from npuc.frontend import import_model
from npuc.ir import Array
from npuc.ops.interpreter import run
from tests.conftest import Reference
from tests.onnx_models import network

pytestmark = pytest.mark.usefixtures("exact_integers")
RANDOM = np.random.default_rng(0)
X = RANDOM.integers(0, 256, (1, 4, 6, 6)).astype(np.uint8)
ROWS = RANDOM.integers(-128, 128, (3, 8)).astype(np.int8)
MS = "com.microsoft"


def _scale(*values: float) -> Array:
    return np.array(values[0] if len(values) == 1 else values, np.float32)


def _zero(value: int, like: str = "uint8") -> Array:
    return np.array(value, like)


def _model(
    op: str,
    x: Array,
    constants: Mapping[str, Array],
    order: str,
    domain: str = "",
    version: int = 13,
    **attrs: Any,
) -> onnx.ModelProto:
    """One node that reads `x` and constants, in this order, and writes `y`."""
    made = helper.make_node(op, order.split(), ["y"], "the_node", domain=domain, **attrs)
    model = network(
        [made], x.shape, constants, "y", version, helper.np_dtype_to_tensor_dtype(x.dtype), com_microsoft=1
    )
    model.graph.output[0].ClearField("type")
    return model


S, Y = {"s": _scale(0.05), "z": _zero(120)}, {"ys": _scale(0.08), "yz": _zero(100)}
W = RANDOM.integers(-127, 128, (5, 4, 3, 3)).astype(np.int8)
CONV = {
    **S,
    "w": W,
    "ws": _scale(0.01, 0.02, 0.005, 0.01, 0.03),
    "wz": np.zeros(5, np.int8),
    "ys": _scale(0.6),
    "yz": _zero(99),
}
BIAS = {"b": RANDOM.integers(-4000, 4000, 5).astype(np.int32)}
OTHER = {"o": RANDOM.integers(0, 256, (1, 4, 6, 6)).astype(np.uint8), "os": _scale(0.03), "oz": _zero(7)}
SIGNED = {"s": _scale(0.05), "z": _zero(-3, "int8"), "ys": _scale(0.9), "yz": _zero(5, "int8")}
MATRIX = {"w": RANDOM.integers(-127, 128, (8, 5)).astype(np.int8), "ws": _scale(0.02), "wz": _zero(2, "int8")}
SQUARE = {"w": RANDOM.integers(-127, 128, (8, 8)).astype(np.int8), "wz": np.arange(-4, 4).astype(np.int8)}
P = {"ys": _scale(1 / 256), "yz": _zero(0)}
"""Of probabilities."""

CASES: dict[str, tuple[Array, onnx.ModelProto]] = {
    "QLinearConv": (X, _model("QLinearConv", X, {**CONV, **BIAS}, "x s z w ws wz ys yz b", pads=[1, 1, 1, 1])),
    "QLinearConv of opset 10": (X, _model("QLinearConv", X, CONV, "x s z w ws wz ys yz", version=10)),
    "QLinearMatMul": (ROWS, _model("QLinearMatMul", ROWS, {**SIGNED, **MATRIX}, "x s z w ws wz ys yz")),
    "QLinearAdd": (X, _model("QLinearAdd", X, {**S, **OTHER, **Y}, "x s z o os oz ys yz", MS)),
    "QLinearMul": (X, _model("QLinearMul", X, {**S, **OTHER, **Y}, "x s z o os oz ys yz", MS)),
    "QLinearSigmoid": (X, _model("QLinearSigmoid", X, {**S, **Y}, "x s z ys yz", MS)),
    "QLinearLeakyRelu": (X, _model("QLinearLeakyRelu", X, {**S, **Y}, "x s z ys yz", MS, alpha=0.2)),
    "QLinearSoftmax": (X, _model("QLinearSoftmax", X, {**S, **Y}, "x s z ys yz", MS, axis=1, opset=13)),
    "QLinearSoftmax of opset 11": (X, _model("QLinearSoftmax", X, {**S, **P}, "x s z ys yz", MS, axis=2,
     opset=11)),
    "QLinearAveragePool": (X, _model("QLinearAveragePool", X, {**S, **Y}, "x s z ys yz", MS,
     kernel_shape=[2, 2])),
    "QLinearGlobalAveragePool": (X, _model("QLinearGlobalAveragePool", X, {**S, **Y}, "x s z ys yz", MS)),
    "QLinearConcat": (X, _model("QLinearConcat", X, {**S, **OTHER, **Y}, "ys yz x s z o os oz", MS, axis=1)),
    "QGemm": (ROWS, _model("QGemm", ROWS, {**SIGNED, **MATRIX, **BIAS}, "x s z w ws wz b ys yz", MS)),
    "QGemm to float": (ROWS, _model("QGemm", ROWS, {**SIGNED, **MATRIX, **BIAS}, "x s z w ws wz b", MS)),
    "QGemm with a factor": (ROWS, _model("QGemm", ROWS, {**SIGNED, **MATRIX, **BIAS}, "x s z w ws wz b", MS,
     alpha=0.5)),
    "ConvInteger": (X, _model("ConvInteger", X, {**CONV, "n": _zero(3, "int8")}, "x w z n")),
    "MatMulInteger": (ROWS, _model("MatMulInteger", ROWS, {**SIGNED, **MATRIX}, "x w z wz")),
    "MatMulInteger with zero points of columns": (ROWS, _model("MatMulInteger", ROWS, {**SIGNED, **SQUARE},
     "x w z wz")),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_operator_on_integers_gives_what_onnxruntime_gives(name: str, onnxruntime_values: Reference) -> None:
    x, model = CASES[name]
    expected = onnxruntime_values(model, {"x": x})["y"]
    (found,) = run(import_model(model), {"x": x}).values()
    assert found.shape == expected.shape
    difference = np.abs(found.astype(np.float64) - expected.astype(np.float64))
    assert difference.max() <= (1 if expected.dtype.itemsize == 1 else 1e-3 * np.abs(expected).max())


def test_scales_of_each_sample_are_left_to_calibration() -> None:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("MatMulInteger", ["q", "w", "z"], ["i"]),
        helper.make_node("Cast", ["i"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["s", "ws"], ["scale"]),
        helper.make_node("Mul", ["f", "scale"], ["y"]),
    ]
    x = RANDOM.standard_normal((2, 8)).astype(np.float32)
    model = network(nodes, x.shape, {"w": MATRIX["w"], "ws": MATRIX["ws"]}, opset=13)
    (found,) = run(import_model(model), {"x": x}).values()
    np.testing.assert_allclose(found, x @ (MATRIX["w"] * MATRIX["ws"]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("scale", [0.0, -0.1, float("nan"), float("inf")])
def test_a_scale_that_is_none_is_refused_by_name(scale: float) -> None:
    model = _model("QuantizeLinear", X.astype(np.float32), {**S, "s": _scale(scale)}, "x s z")
    with pytest.raises(NpucError, match=r"E105.*QuantizeLinear 'the_node', tensor 's': a scale is") as caught:
        import_model(model)
    assert caught.value.problems[0].limit == "finite, above 0"


@pytest.mark.parametrize(("constants", "code"), [
    ({"z": np.zeros(3, np.uint8)}, "E105"), ({"z": np.array(0.0, np.float32)}, "E107"),
    ({"s": np.ones(3, np.float32), "z": np.zeros(3, np.uint8)}, "E105"),
    ({"s": np.array(1.0, np.float16)}, "E107"),
])  # fmt: skip
def test_scales_and_zero_points_that_contradict_are_refused(constants: dict[str, Array], code: str) -> None:
    model = _model("QuantizeLinear", X.astype(np.float32), {**S, **constants}, "x s z")
    with pytest.raises(NpucError, match=rf"{code}.*QuantizeLinear 'the_node'"):
        import_model(model)


def test_channels_behind_rows_and_columns_are_refused() -> None:
    model = _model("QLinearGlobalAveragePool", X, {**S, **Y}, "x s z ys yz", MS, channels_last=1)
    with pytest.raises(NpucError, match=r"E202.*its channels are last"):
        import_model(model)


@pytest.mark.parametrize(("model", "reason"), [
    (_model("QLinearAveragePool", X, {**S, **Y}, "x s z ys yz", MS, kernel_shape=[2, 2], ceil_mode=1,
     count_include_pad=1), "ceil_mode with count_include_pad"),
    (_model("QLinearMatMul", ROWS, {**SIGNED, **MATRIX, "s": np.full(ROWS.shape[0], 0.1, np.float32),
     "z": np.zeros(ROWS.shape[0], np.int8)}, "x s z w ws wz ys yz"), "'s' has . scales"),
])  # fmt: skip
def test_an_integer_form_without_a_counterpart_is_refused(model: onnx.ModelProto, reason: str) -> None:
    with pytest.raises(NpucError, match=f"E202.*{reason}"):
        import_model(model)


def test_what_is_quantised_dynamically_may_be_dequantised() -> None:
    nodes = [
        helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]),
        helper.make_node("DequantizeLinear", ["q", "s", "z"], ["d"]),
        helper.make_node("Relu", ["d"], ["y"]),
    ]
    assert [each.op for each in import_model(network(nodes, (5,), opset=13)).nodes] == ["Relu"]


@pytest.mark.parametrize("dtype", ["INT4", "UINT4"])
def test_weights_of_4_bits_from_onnxruntimes_quantiser_are_what_it_computes(
    dtype: str, onnxruntime_values: Reference
) -> None:
    """Below opset 21 its quantiser writes them for its own DequantizeLinear, with a scale for each channel."""
    kind, random = TensorProto.DataType.Value(dtype), np.random.default_rng(0)
    low = -8 if dtype == "INT4" else 0
    held = [
        helper.make_tensor("w", kind, (5, 3, 1, 1), random.integers(low, low + 16, 15).tolist()),
        helper.make_tensor("z", kind, (5,), random.integers(low, low + 16, 5).tolist()),
        numpy_helper.from_array(np.linspace(0.02, 0.1, 5, dtype=np.float32), "s"),
    ]
    nodes = [
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["f"], domain=MS, axis=0),
        helper.make_node("Conv", ["x", "f"], ["y"]),
    ]
    values = [
        helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, k, 2, 4]) for name, k in (("x", 3), ("y", 5))
    ]
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid(MS, 1)]
    graph = helper.make_graph(nodes, "g", values[:1], values[1:], held)
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    x = random.standard_normal((1, 3, 2, 4)).astype(np.float32)
    expected = onnxruntime_values(model, {"x": x})["y"]
    np.testing.assert_allclose(run(import_model(model), {"x": x})["y"], expected, rtol=1e-5, atol=1e-6)


def test_an_operator_of_another_domain_stays_unknown() -> None:
    model = _model("QLinearReduceMean", X, {**S, **Y}, "x s z ys yz", MS)
    with pytest.raises(NpucError, match=r"E201.*QLinearReduceMean 'the_node'.*'com.microsoft'"):
        import_model(model)
