"""Products of uint8 and int8 are exact on every processor, also where onnxruntime's option for that fails.

It fails for a model that multiplies int8 by int8 somewhere, and for products that share constants. A kernel that
adds two products of 255 and 127 in 16 bits gives about half of their sum.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from npuc.ir import Array
from npuc.onnx_files.integer_products import with_unsigned_weights
from npuc.reference import session

DEPTH, COLUMNS = 16, 4
SUM = DEPTH * 255 * 127
SCALE = 5080.0
TYPES = {
    "uint8": TensorProto.UINT8,
    "int8": TensorProto.INT8,
    "float32": TensorProto.FLOAT,
    "bool": TensorProto.BOOL,
}


class Model:
    """Products with the same weights and zero points, one after the other in a list of nodes."""

    def __init__(self) -> None:
        self.nodes: list[onnx.NodeProto] = []
        self.constants: dict[str, Array] = {}
        self.inputs: dict[str, Array] = {}
        self.outputs: dict[str, int] = {}

    def constant(self, name: str, value: Array) -> str:
        self.constants[name] = value
        return name

    def x(self, shape: tuple[int, ...], dtype: str) -> str:
        name = f"x_{len(shape)}_{dtype}"
        self.inputs[name] = np.full(shape, np.iinfo(dtype).max, dtype)
        return name

    def zero(self, dtype: str) -> str:
        return self.constant(f"zero_{dtype}", np.zeros((), dtype))

    def scale(self, value: float = 1.0) -> str:
        return self.constant(f"scale_{value}", np.array(value, np.float32))

    def node(self, op: str, inputs: list[str], dtype: int) -> str:
        name = f"y{len(self.nodes)}"
        domain = "com.microsoft" if op == "QGemm" else ""
        self.nodes.append(helper.make_node(op, inputs, [name], domain=domain))
        self.outputs[name] = dtype
        return name

    def proto(self) -> onnx.ModelProto:
        graph = helper.make_graph(
            self.nodes,
            "products",
            [
                helper.make_tensor_value_info(name, TYPES[str(value.dtype)], value.shape)
                for name, value in self.inputs.items()
            ],
            [helper.make_tensor_value_info(name, dtype, None) for name, dtype in self.outputs.items()],
            [numpy_helper.from_array(np.asarray(value), name) for name, value in self.constants.items()],
        )
        opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def _weights(model: Model, *shape: int) -> str:
    return model.constant(f"w{len(shape)}", np.full(shape, 127, np.int8))


def _scaled(model: Model, dtype: str) -> list[str]:
    return [model.scale(SCALE), model.zero(dtype)]


def qlinear_conv(model: Model, x: str, dtype: str) -> str:
    w = [_weights(model, COLUMNS, DEPTH, 1, 1), model.scale(), model.zero("int8")]
    inputs = [x, model.scale(), model.zero(dtype), *w, *_scaled(model, dtype)]
    return model.node("QLinearConv", inputs, TYPES[dtype])


def qlinear_matmul(model: Model, x: str, dtype: str) -> str:
    w = [_weights(model, DEPTH, COLUMNS), model.scale(), model.zero("int8")]
    inputs = [x, model.scale(), model.zero(dtype), *w, *_scaled(model, dtype)]
    return model.node("QLinearMatMul", inputs, TYPES[dtype])


def qgemm(model: Model, x: str, dtype: str) -> str:
    w = [_weights(model, DEPTH, COLUMNS), model.scale(), model.zero("int8")]
    inputs = [x, model.scale(), model.zero(dtype), *w, "", *_scaled(model, dtype)]
    return model.node("QGemm", inputs, TYPES[dtype])


def conv_integer(model: Model, x: str, _dtype: str) -> str:
    return model.node("ConvInteger", [x, _weights(model, COLUMNS, DEPTH, 1, 1)], TensorProto.INT32)


def matmul_integer(model: Model, x: str, dtype: str) -> str:
    inputs = [x, _weights(model, DEPTH, COLUMNS), model.zero(dtype), model.zero("int8")]
    return model.node("MatMulInteger", inputs, TensorProto.INT32)


PRODUCTS: dict[str, tuple[Callable[[Model, str, str], str], tuple[int, ...], float]] = {
    "QLinearConv": (qlinear_conv, (1, DEPTH, 2, 2), SUM / SCALE),
    "QLinearMatMul": (qlinear_matmul, (3, DEPTH), SUM / SCALE),
    "QGemm": (qgemm, (3, DEPTH), SUM / SCALE),
    "ConvInteger": (conv_integer, (1, DEPTH, 2, 2), SUM),
    "MatMulInteger": (matmul_integer, (3, DEPTH), SUM),
}
GIVEN = ("model", "bytes", "file", "external data")


def _given(model: onnx.ModelProto, kind: str, folder: Path) -> onnx.ModelProto | bytes | Path:
    if kind == "model":
        return model
    if kind == "bytes":
        return model.SerializeToString()
    path, external = folder / "m.onnx", kind == "external data"
    onnx.save(model, path, save_as_external_data=external, location="m.bin", size_threshold=0)
    return path


@pytest.mark.parametrize("kind", GIVEN)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_that_share_their_constants_are_exact(name: str, kind: str, tmp_path: Path) -> None:
    build, shape, expected = PRODUCTS[name]
    model = Model()
    for _ in range(2):
        build(model, model.x(shape, "uint8"), "uint8")
    found = session(_given(model.proto(), kind, tmp_path)).run(None, model.inputs)
    assert len(found) == 2
    for each in found:
        assert (each == expected).all()


@pytest.mark.parametrize("kind", GIVEN)
@pytest.mark.parametrize("name", PRODUCTS)
def test_products_beside_one_of_int8_and_int8_are_exact(name: str, kind: str, tmp_path: Path) -> None:
    build, shape, expected = PRODUCTS[name]
    model = Model()
    build(model, model.x(shape, "uint8"), "uint8")
    qlinear_conv(model, model.x((1, DEPTH, 2, 2), "int8"), "int8")
    of_uint8, of_int8 = session(_given(model.proto(), kind, tmp_path)).run(None, model.inputs)
    assert (of_uint8 == expected).all()
    assert (of_int8 == round(DEPTH * 127 * 127 / SCALE)).all()


def test_a_zero_point_and_a_scale_per_channel_keep_their_meaning() -> None:
    """(255 - 3) * 127 * 16 per channel, times 1 and 0.5, over 5080; by hand."""
    model = Model()
    x = model.x((1, DEPTH, 2, 2), "uint8")
    w = model.constant("w", np.full((2, DEPTH, 1, 1), 127, np.int8))
    scales = model.constant("scales", np.array([1, 0.5], np.float32))
    zeros = model.constant("zeros", np.zeros(2, np.int8))
    three = model.constant("three", np.array(3, np.uint8))
    for _ in range(2):
        inputs = [x, model.scale(), three, w, scales, zeros, *_scaled(model, "uint8")]
        model.node("QLinearConv", inputs, TensorProto.UINT8)
    for found in session(model.proto()).run(None, model.inputs):
        assert found[0, :, 0, 0].tolist() == [101, 50]  # 100.8, 50.4


def _product(op: str, inputs: list[str], dtype: int, activations: Array) -> tuple[Model, onnx.ModelProto]:
    """A product of activations and weights that both are inputs of the model."""
    model = Model()
    model.inputs = {"x": activations, "w": np.full((DEPTH, COLUMNS), 127, np.int8)}
    model.scale()
    model.constants |= {"three": np.array(3, np.int8), "zero": np.array(0, np.uint8)}
    model.nodes.append(
        helper.make_node(op, inputs, ["y"], domain="" if op == "MatMulInteger" else "com.microsoft")
    )
    model.outputs["y"] = dtype
    return model, model.proto()


FULL = np.full((3, DEPTH), 255, np.uint8)
BELOW = DEPTH * 255 * (127 - 3)
"""The sum with a zero point of 3, by hand."""


@pytest.mark.parametrize("confined", [False, True])
@pytest.mark.parametrize(("op", "inputs", "dtype", "activations", "expected"), [
    ("MatMulInteger", ["x", "w"], TensorProto.INT32, FULL, SUM),
    ("MatMulInteger", ["x", "w", "", "three"], TensorProto.INT32, FULL, BELOW),
    ("MatMulIntegerToFloat", ["x", "w", "scale_1.0", "scale_1.0"], TensorProto.FLOAT, FULL, SUM),
    ("DynamicQuantizeMatMul", ["x", "w", "scale_1.0", "three"], TensorProto.FLOAT, FULL.astype(np.float32),
     BELOW),
])  # fmt: skip
def test_weights_that_are_computed_are_exact(
    op: str, inputs: list[str], dtype: int, activations: Array, expected: int, *, confined: bool
) -> None:
    model, proto = _product(op, inputs, dtype, activations)
    (found,) = session(proto, confined=confined).run(["y"], model.inputs)
    assert (found == expected).all()


def test_a_product_in_a_branch_is_exact_and_names_stay_unique() -> None:
    model, _ = _product("MatMulInteger", ["x", "w"], TensorProto.INT32, FULL)
    outputs = [helper.make_tensor_value_info(name, TensorProto.INT32, None) for name in ("w/unsigned", "other")]
    branches: dict[str, Any] = {
        f"{name}_branch": helper.make_graph(
            [helper.make_node("MatMulInteger", ["x", "w"], [output.name])], name, [], [output]
        )
        for name, output in zip(("then", "else"), outputs, strict=True)
    }
    model.nodes = [helper.make_node("If", ["c"], ["y"], **branches)]
    model.inputs["c"] = np.array(True)
    for condition in (True, False):
        (found,) = session(model.proto()).run(["y"], model.inputs | {"c": np.array(condition)})
        assert (found == SUM).all()


@pytest.mark.parametrize("dtype", ["uint8", "int8"])
def test_only_weights_of_unsigned_activations_change(dtype: str) -> None:
    """On any processor: the changed model has the same results, by ONNX's own definition."""
    activations = np.arange(3 * DEPTH).reshape(3, DEPTH).astype(dtype)
    model, proto = _product("MatMulInteger", ["x", "w", "", "three"], TensorProto.INT32, activations)
    expected = activations.astype(np.int32) @ np.full((DEPTH, COLUMNS), 127 - 3, np.int32)
    changed = with_unsigned_weights(proto, {})
    assert (changed is None) == (dtype == "int8")
    if changed is not None:
        (product,) = [node for node in changed.graph.node if node.op_type == "MatMulInteger"]
        assert product.input[1] != "w"
        (found,) = ReferenceEvaluator(changed).run(None, model.inputs)
        assert np.array_equal(found, expected)


def test_activations_that_leave_the_model_are_known_as_well() -> None:
    """The integers of a dynamic quantisation and their zero point are outputs too."""
    made = Model()
    made.inputs["x"] = np.full((3, DEPTH), 255, np.float32)
    made.nodes.append(helper.make_node("DynamicQuantizeLinear", ["x"], ["q", "s", "z"]))
    made.outputs |= {"q": TensorProto.UINT8, "z": TensorProto.UINT8}
    inputs = ["q", _weights(made, DEPTH, COLUMNS), "z"]
    products = [made.node("MatMulInteger", inputs, TensorProto.INT32) for _ in range(2)]
    for found in session(made.proto()).run(products, made.inputs):
        assert (found == SUM).all()
