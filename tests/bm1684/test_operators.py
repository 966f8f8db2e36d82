"""Every operator as a network of its own, compiled and run on npuc's model, against onnxruntime."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

from npuc import running
from npuc.ir import Array
from npuc.samples.loading import Samples
from npuc.target import Options, Request
from npuc.targets.bm1684.network.support import OPERATORS
from npuc.targets.bm1684.target import BM1684
from tests.compiled import compilation

RNG = np.random.default_rng(7)


def _normal(*shape: int) -> Array:
    return RNG.standard_normal(shape).astype(np.float32)


@dataclass(frozen=True)
class Case:
    """One ONNX node: shapes of its inputs, constants behind them, attributes."""

    op: str
    shapes: Sequence[tuple[int, ...]]
    constants: Sequence[Array] = ()
    attrs: dict[str, Any] = field(default_factory=dict[str, Any])
    outputs: int = 1
    positive: bool = False


IMAGE = (1, 6, 9, 11)
WIDE = (1, 150, 5, 6)
CASES = {
    "Conv 3x3 with bias": Case("Conv", [IMAGE], [_normal(10, 6, 3, 3), _normal(10)], {"pads": [1, 1, 1, 1]}),
    "Conv of 150 to 200 channels": Case("Conv", [WIDE], [_normal(200, 150, 1, 1), _normal(200)]),
    "Conv with strides and dilations": Case("Conv", [IMAGE], [_normal(70, 6, 3, 2)],
        {"strides": [2, 1], "dilations": [1, 2], "pads": [2, 1, 0, 2]}),
    "Conv of a batch": Case("Conv", [(3, 6, 9, 11)], [_normal(70, 6, 3, 3), _normal(70)]),
    "Conv with groups": Case("Conv", [(1, 12, 7, 7)], [_normal(18, 4, 3, 3), _normal(18)], {"group": 3}),
    "Conv with groups of a batch": Case("Conv", [(2, 12, 7, 7)], [_normal(18, 4, 3, 3)], {"group": 3}),
    "Conv depthwise": Case("Conv", [WIDE], [_normal(150, 1, 3, 3), _normal(150)], {"group": 150}),
    "ConvTranspose": Case("ConvTranspose", [IMAGE], [_normal(6, 5, 3, 3), _normal(5)],
        {"strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "Gemm": Case("Gemm", [(1, 300)], [_normal(300, 77), _normal(77)]),
    "Gemm of several rows": Case("Gemm", [(5, 30)], [_normal(130, 30)], {"transB": 1, "alpha": 0.5}),
    "Gemm of many columns": Case("Gemm", [(1, 5000)], [_normal(5000, 100), _normal(100)]),
    "MatMul": Case("MatMul", [(4, 20)], [_normal(20, 9)]),
    "MatMul of batches": Case("MatMul", [(2, 4, 20)], [_normal(2, 20, 9)]),
    "MatMul by one matrix": Case("MatMul", [(2, 4, 20)], [_normal(1, 20, 9)]),
    "MatMul of two inputs": Case("MatMul", [(4, 20), (20, 9)]),
    "MaxPool": Case("MaxPool", [IMAGE], attrs={"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}),
    "MaxPool, ceil": Case("MaxPool", [IMAGE], attrs={"kernel_shape": [2, 2], "strides": [2, 2], "ceil_mode": 1}),
    "AveragePool": Case("AveragePool", [IMAGE], attrs={"kernel_shape": [3, 3], "pads": [1, 1, 1, 1]}),
    "AveragePool with padding": Case("AveragePool", [WIDE], attrs={"kernel_shape": [3, 2], "pads": [1, 0, 1, 1],
        "count_include_pad": 1}),
    "GlobalMaxPool": Case("GlobalMaxPool", [WIDE]),
    "GlobalAveragePool": Case("GlobalAveragePool", [WIDE]),
    "BatchNormalization": Case("BatchNormalization", [WIDE], [_normal(150), _normal(150), _normal(150),
        np.abs(_normal(150)) + 0.5]),
    "LRN": Case("LRN", [WIDE], attrs={"size": 5, "alpha": 0.5, "beta": 0.75, "bias": 2.0}),
    "Softmax": Case("Softmax", [(1, 130)], attrs={"axis": -1}),
    "Softmax of channels": Case("Softmax", [IMAGE], attrs={"axis": 1}),
    "Softmax of a batch": Case("Softmax", [(5, 130)]),
    "InstanceNormalization": Case("InstanceNormalization", [WIDE], [_normal(150), _normal(150)]),
    "ReduceMean": Case("ReduceMean", [WIDE], attrs={"axes": [1], "keepdims": 0}),
    "ReduceSum": Case("ReduceSum", [IMAGE], [np.array([2, 3])]),
    "ReduceMax": Case("ReduceMax", [(5, 130)], attrs={"axes": [0]}),
    "ReduceMin": Case("ReduceMin", [(1, 3, 2, 4, 5)], attrs={"axes": [-1, 2]}),
    "Pow": Case("Pow", [IMAGE], [np.array(3.0, np.float32)]),
    "Gather": Case("Gather", [IMAGE], [np.array([[5, 3, 1], [0, 0, -1]])], {"axis": 1}),
    "QuantizeLinear": Case("QuantizeLinear", [IMAGE], [np.array(0.125, np.float32), np.array(7, np.int8)]),
    "PRelu": Case("PRelu", [IMAGE], [_normal(6, 1, 1)]),
    "Add": Case("Add", [IMAGE, IMAGE]),
    "Add a number": Case("Add", [IMAGE], [np.array(1.5, np.float32)]),
    "Add a constant": Case("Add", [IMAGE], [_normal(1, 1, 9, 11)]),
    "Sub": Case("Sub", [IMAGE, IMAGE]),
    "Mul by channels": Case("Mul", [IMAGE, (1, 6, 1, 1)]),
    "Mul by rows": Case("Mul", [IMAGE, (1, 1, 9, 1)]),
    "Mul by a lower rank": Case("Mul", [IMAGE, (9, 11)]),
    "Mul of rank 3": Case("Mul", [(1, 6, 7), (1, 6, 7)]),
    "Mul of rank 5": Case("Mul", [(1, 3, 2, 4, 5), (1, 3, 2, 4, 5)]),
    "Div": Case("Div", [IMAGE, IMAGE], positive=True),
    "Div by a number": Case("Div", [IMAGE], [np.array(3.0, np.float32)]),
    "Max": Case("Max", [IMAGE, IMAGE]),
    "Min": Case("Min", [IMAGE, IMAGE]),
    "Relu": Case("Relu", [(1, 70, 4, 4)]),
    "Clip": Case("Clip", [IMAGE], [np.array(-0.5, np.float32), np.array(0.75, np.float32)]),
    "LeakyRelu": Case("LeakyRelu", [IMAGE], attrs={"alpha": 0.1}),
    "Elu": Case("Elu", [IMAGE], attrs={"alpha": 0.7}),
    "HardSigmoid": Case("HardSigmoid", [IMAGE]),
    "HardSwish": Case("HardSwish", [IMAGE]),
    "Sigmoid": Case("Sigmoid", [IMAGE]),
    "Tanh": Case("Tanh", [IMAGE]),
    "Exp": Case("Exp", [IMAGE]),
    "Erf": Case("Erf", [IMAGE]),
    "Softsign": Case("Softsign", [IMAGE]),
    "Sqrt": Case("Sqrt", [IMAGE], positive=True),
    "Reciprocal": Case("Reciprocal", [IMAGE], positive=True),
    "Neg": Case("Neg", [IMAGE]),
    "Abs": Case("Abs", [IMAGE]),
    "Concat": Case("Concat", [IMAGE, (1, 70, 9, 11), IMAGE], attrs={"axis": 1}),
    "Concat of columns": Case("Concat", [IMAGE, IMAGE], attrs={"axis": 3}),
    "Split": Case("Split", [(1, 70, 4, 4)], [np.array([20, 50])], {"axis": 1}, outputs=2),
    "Slice": Case("Slice", [IMAGE], [np.array([1, 2]), np.array([9, 10]), np.array([2, 3]), np.array([2, 3])]),
    "Pad": Case("Pad", [IMAGE], [np.array([0, 0, 1, 2, 0, 0, 3, 0]), np.array(0.5, np.float32)]),
    "Resize": Case("Resize", [IMAGE], [np.array([], np.float32), np.array([1, 1, 2, 3], np.float32)],
        {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}),
    "Reshape": Case("Reshape", [(2, 6, 4, 5)], [np.array([3, 80])]),
    "Expand": Case("Expand", [(1, 6, 1, 5)], [np.array([1, 6, 3, 5])]),
    "Transpose": Case("Transpose", [IMAGE], attrs={"perm": [0, 2, 3, 1]}),
    "DepthToSpace": Case("DepthToSpace", [(1, 8, 3, 4)], attrs={"blocksize": 2}),
    "SpaceToDepth": Case("SpaceToDepth", [(1, 2, 6, 8)], attrs={"blocksize": 2}),
}  # fmt: skip


def _model(case: Case) -> onnx.ModelProto:
    inputs = [f"x{i}" for i in range(len(case.shapes))]
    constants = [f"c{i}" for i in range(len(case.constants))]
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, [*inputs, *constants], outputs, "node", **case.attrs)
    graph = helper.make_graph(
        [node],
        "one",
        [
            helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)
            for name, shape in zip(inputs, case.shapes, strict=True)
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs],
        [numpy_helper.from_array(value, name) for name, value in zip(constants, case.constants, strict=True)],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    inferred = onnx.shape_inference.infer_shapes(model)
    assert all(each.type.tensor_type.shape.dim for each in inferred.graph.output)
    return inferred


@pytest.mark.parametrize("name", CASES)
def test_an_operator_gives_what_onnxruntime_gives(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    path = tmp_path / "model.onnx"
    onnx.save(_model(case), path)
    feeds = {f"x{i}": _normal(*shape) for i, shape in enumerate(case.shapes)}
    if case.positive:
        feeds = {key: np.abs(value) + 0.1 for key, value in feeds.items()}
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    expected = dict(zip([f"y{i}" for i in range(case.outputs)], session.run(None, feeds), strict=True))
    program = compilation(Request(path, BM1684, Options(precision="fp32"))).program
    found = BM1684.runner(program)({key: value[np.newaxis] for key, value in feeds.items()})
    for output, values in expected.items():
        assert found[output][0].shape == values.shape
        room = 1e-5 * np.abs(values).max()
        np.testing.assert_allclose(found[output][0], values, rtol=0, atol=room)


def test_every_operator_of_the_table_has_a_case() -> None:
    made_by_passes = {"Swish", "Mish", "Gelu", "Identity", "Rescale"}
    made_by_passes |= {"FakeQuantize", "DequantizeLinear"}  # a model of several nodes, in test_random_graphs
    assert {case.op for case in CASES.values()} | made_by_passes >= set(OPERATORS)


def test_samples_follow_one_another(tmp_path: Path) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(_model(CASES["Relu"]), path)
    program = compilation(Request(path, BM1684, Options(precision="fp32"))).program
    x = _normal(3, 1, 70, 4, 4)
    found = running.run_program(program, BM1684, Samples({"x0": x}))
    np.testing.assert_array_equal(found["y0"], np.maximum(x, 0)[:, 0])
