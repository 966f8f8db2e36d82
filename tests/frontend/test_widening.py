"""Networks whose weights are in half precision, as PyTorch's `half()` exports them: they run on the NPU."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npuc.api import compile as compiled
from npuc.frontend.widening import is_half, widened
from npuc.ir import Array
from npuc.reference import session
from npuc.regions.artefact import is_composite
from npuc.target import Options
from tests.compiled import checked, program_of
from tests.onnx_models import parse

FLOAT16, BFLOAT16 = TensorProto.FLOAT16, TensorProto.BFLOAT16
STORED: dict[int, np.dtype[Any]] = {each: helper.tensor_dtype_to_np_dtype(each) for each in (FLOAT16, BFLOAT16)}
TARGETS = ("easynpu", "nvdla-full", "bm1684")


def _model(half: int = FLOAT16, shape: tuple[int, int] = (8, 4), ir_version: int = 8) -> onnx.ModelProto:
    """relu(conv(x)) * 2 + 0.5 in half precision; 2 is a Constant node, 0.5 the result of a Cast."""
    random = np.random.default_rng(3)
    w = random.normal(0.02, 0.2, (*shape, 3, 3)).astype(STORED[half])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"], kernel_shape=[3, 3], pads=[1, 1, 1, 1]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Constant", [], ["two"], value=numpy_helper.from_array(np.full((), 2, STORED[half]))),
        helper.make_node("Mul", ["b", "two"], ["c"]),
        helper.make_node("Cast", ["s"], ["offset"], to=half),
        helper.make_node("Add", ["c", "offset"], ["y"]),
    ]
    port = helper.make_tensor_value_info
    inputs = [port("x", half, [1, shape[1], 6, 6])]
    if ir_version < 4:
        inputs.append(port("w", half, w.shape))
    constants = [numpy_helper.from_array(w, "w"), numpy_helper.from_array(np.full((), 0.5, np.float32), "s")]
    graph = helper.make_graph(nodes, "half", inputs, [port("y", half, [1, shape[0], 6, 6])], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=ir_version)


def _images() -> Array:
    return np.random.default_rng(4).normal(0.4, 1, (4, 4, 6, 6)).astype(np.float16)


def _decibels(wanted: Array, got: Array) -> float:
    noise = np.square(wanted.astype(float) - got).sum()
    return float(10 * np.log10(np.square(wanted.astype(float)).sum() / noise))


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("ir_version", [3, 8])
def test_a_network_in_float16_runs_on_the_npu_as_onnxruntime_runs_it(target: str, ir_version: int) -> None:
    model, images = _model(ir_version=ir_version), _images()
    found = compiled(model, target, calibration=images)
    assert not is_composite(found.program)
    assert [port.dtype for port in (*found.program.inputs, *found.program.outputs)] == ["float32", "float32"]
    wanted = np.concatenate([session(model).run(["y"], {"x": each[None]})[0] for each in images])
    assert _decibels(wanted, found.run(images)["y"]) > (60 if target == "bm1684" else 35)


@pytest.mark.parametrize("target", TARGETS)
def test_a_network_in_bfloat16_runs_though_onnxruntime_refuses_it(target: str, tmp_path: Path) -> None:
    program = program_of(_model(BFLOAT16), tmp_path, target)
    assert not is_composite(program)
    assert checked(program, tmp_path)["status"] == "ok"


OF_BFLOAT16 = {
    "an input": ("bfloat16", "y = Tanh(x)", np.tanh),
    "an input that is cast": ("bfloat16", "a = Cast<to = 1>(x)\n b = Tanh(a)\n y = Cast<to = 16>(b)", np.tanh),
    "nodes inside": ("float", "a = Cast<to = 16>(x)\n b = Tanh(a)\n y = Cast<to = 1>(b)", np.tanh),
}


@pytest.mark.parametrize(("dtype", "body", "wanted"), OF_BFLOAT16.values(), ids=OF_BFLOAT16)
@pytest.mark.parametrize("target", TARGETS)
def test_what_computes_in_bfloat16_without_such_weights_runs(
    target: str, dtype: str, body: str, wanted: Callable[[Array], Array]
) -> None:
    model = parse(f"g ({dtype}[1,4,6,6] x) => ({dtype}[1,4,6,6] y) {{ {body} }}")
    onnx.checker.check_model(model, full_check=True)
    images = _images().astype(np.float32)
    found = compiled(model, target, calibration=images)
    assert not is_composite(found.program)
    assert _decibels(wanted(images), found.run(images)["y"]) > (60 if target == "bm1684" else 35)


@pytest.mark.parametrize("external", [False, True])
def test_heavy_weights_in_float16_stay_in_their_file(external: bool, tmp_path: Path) -> None:
    path = tmp_path / "heavy.onnx"
    images = np.random.default_rng(4).normal(0.4, 1, (1, 128, 6, 6)).astype(np.float16)
    onnx.save(_model(shape=(512, 128)), path, save_as_external_data=external, location="heavy.bin")
    (wanted,) = session(path).run(["y"], {"x": images})
    found = compiled(path, "bm1684", options=Options(precision="fp32"))
    assert not is_composite(found.program)
    assert _decibels(wanted, found.run(images)["y"]) > 60


def test_branches_and_functions_are_widened_too() -> None:
    x, y = (helper.make_tensor_value_info(name, FLOAT16, [2]) for name in "xy")
    one = helper.make_node("Constant", [], ["one"], value=numpy_helper.from_array(np.ones(2, np.float16)))
    branches = [
        helper.make_graph([one, helper.make_node(op, ["x", "one"], ["y"])], op, [], [y]) for op in ("Add", "Sub")
    ]
    body = [one, helper.make_node("Mul", ["a", "one"], ["b"])]
    function = helper.make_function("own", "f", ["a"], ["b"], body, [helper.make_opsetid("", 17)])
    nodes = [
        helper.make_node("Add", ["x", "w"], ["a"]),
        helper.make_node("f", ["a"], ["b"], domain="own"),
        helper.make_node("If", ["condition"], ["c"], then_branch=branches[0], else_branch=branches[1]),
        helper.make_node("Add", ["b", "c"], ["y"]),
    ]
    condition = helper.make_tensor_value_info("condition", TensorProto.BOOL, [])
    constants = [numpy_helper.from_array(np.array([1, 2], np.float16), "w")]
    graph = helper.make_graph(nodes, "nested", [x, condition], [y], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    model = helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=8)
    made = widened(model)
    onnx.checker.check_model(made, full_check=True)
    feeds = {"x": np.array([0.5, 3], np.float16), "condition": np.array(False)}
    (wanted,), (got,) = (
        session(model).run(["y"], feeds),
        session(made).run(["y"], {**feeds, "x": feeds["x"].astype(np.float32)}),
    )
    assert got.dtype == np.float32
    assert got.tolist() == wanted.tolist() == [1, 7]


@pytest.mark.parametrize("half", [FLOAT16, BFLOAT16])
def test_a_deliberate_rounding_to_half_precision_stays(half: int) -> None:
    nodes = [
        helper.make_node("Cast", ["x"], ["h"], to=half),
        helper.make_node("Cast", ["h"], ["f"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["f", "w"], ["y"]),
    ]
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [2]) for name in "xy")
    graph = helper.make_graph(
        nodes, "rounded", [x], [y], [numpy_helper.from_array(np.array([1, 2], np.float32), "w")]
    )
    model = helper.make_model(graph)
    assert not is_half(model)
    assert widened(model) is model
