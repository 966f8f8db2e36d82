"""--strict: the host converts inputs and outputs, and does nothing else."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import npuc
from npuc.errors import NpucError
from npuc.target import Options


def _model(nodes: list[onnx.NodeProto], x: list[int], y: list[int], **constants: Any) -> onnx.ModelProto:
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "g",
        [value("x", TensorProto.FLOAT, x)],
        [value("y", TensorProto.FLOAT, y)],
        [numpy_helper.from_array(np.asarray(each), name) for name, each in constants.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def _average() -> onnx.ModelProto:
    """Windows over the border average fewer elements: regions, which Slices cut out of the input."""
    pool = helper.make_node("AveragePool", ["x"], ["y"], "pool", kernel_shape=[3, 3], pads=[1, 1, 1, 1])
    return _model([pool], [1, 8, 6, 6], [1, 8, 6, 6])


def _joined_at_the_end() -> onnx.ModelProto:
    relus = [helper.make_node("Relu", ["x"], ["r"], "relu"), helper.make_node("Abs", ["x"], ["a"], "abs")]
    return _model(
        [*relus, helper.make_node("Concat", ["r", "a"], ["y"], "join", axis=1)], [1, 8, 6, 6], [1, 16, 6, 6]
    )


def _large_parts() -> onnx.ModelProto:
    """A part of a map that no DTCM of the default machine holds."""
    constants = {"s": np.array([1, 1]), "e": np.array([40, 40]), "k": np.array([2, 3])}
    nodes = [
        helper.make_node("Relu", ["x"], ["r"], "relu"),
        helper.make_node("Slice", ["r", "s", "e", "k"], ["p"], "part"),
        helper.make_node("Abs", ["p"], ["y"], "abs"),
    ]
    return _model(nodes, [1, 24, 40, 40], [1, 24, 39, 39], **constants)


@pytest.mark.parametrize("make", [_average, _joined_at_the_end, _large_parts])
def test_parts_and_joints_on_the_host_are_no_conversions(make: Any) -> None:
    steps = npuc.compile(make(), target="easynpu").program.manifest["steps"]
    working = {step["op"] for step in steps if step["kind"] == "host" and not step["conversion"]}
    assert working & {"Slice", "Concat"}
    with pytest.raises(NpucError) as caught:
        npuc.compile(make(), target="easynpu", options=Options(strict=True))
    assert {problem.code for problem in caught.value.problems} == {"E203"}


def test_another_order_of_inputs_and_outputs_is_a_conversion() -> None:
    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], "planes", perm=[0, 3, 1, 2]),
        helper.make_node("Conv", ["t", "w"], ["c"], "conv"),
        helper.make_node("Flatten", ["c"], ["y"], "flat"),
    ]
    w = np.random.default_rng(0).standard_normal((4, 8, 1, 1)).astype(np.float32)
    model = _model(nodes, [1, 3, 5, 8], [1, 60], w=w)
    compiled = npuc.compile(model, target="easynpu", options=Options(strict=True))
    hosts = [step for step in compiled.program.manifest["steps"] if step["kind"] == "host"]
    assert hosts
    assert all(step["conversion"] for step in hosts)
