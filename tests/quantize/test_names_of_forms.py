"""Tensors that a model calls as npuc calls the integer forms of others: the program is that of any other names."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import npuc

SHAPES = {"w": (4, 3, 3, 3), "b": (4,), "v": (4, 4, 1, 1)}


def _model(names: Mapping[str, str], outputs: str = "yz") -> onnx.ModelProto:
    """Two convolutions around a maximum and a sine, which the host computes."""

    def node(op: str, inputs: str, output: str) -> onnx.NodeProto:
        given = [names.get(each, each) for each in inputs.split()]
        attributes = {"kernel_shape": [2, 2]} if op == "MaxPool" else {}
        return helper.make_node(op, given, [names.get(output, output)], name=output, **attributes)

    random = np.random.default_rng(0)
    constants = [
        numpy_helper.from_array(random.normal(0.02, 0.3, shape).astype(np.float32), names.get(name, name))
        for name, shape in SHAPES.items()
    ]
    graph = helper.make_graph(
        [node("Conv", "x w b", "a"), node("MaxPool", "a", "m"), node("Conv", "m v", "y"), node("Sin", "a", "z")],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (1, 3, 6, 6))],
        [helper.make_tensor_value_info(names.get(name, name), TensorProto.FLOAT, None) for name in outputs],
        constants,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


@pytest.mark.parametrize(
    "names",
    [{"b": "x/int8"}, {"v": "a/int8"}, {"v": "a/int8/w"}, {"m": "a/int8"}, {"y": "m/int8"}, {"z": "a/int8"}],
    ids=str,
)
def test_names_of_integer_forms_change_no_program(names: Mapping[str, str]) -> None:
    x = np.random.default_rng(1).normal(0.2, 1, (3, 3, 6, 6)).astype(np.float32)
    plain, other = (npuc.compile(_model(each), "easynpu", calibration=x, level=0) for each in ({}, names))
    assert [each["place"] for each in other.report["partitions"]] == ["npu", "host"]
    found = other.run(x)
    for name, values in plain.run(x).items():
        np.testing.assert_array_equal(found[names.get(name, name)], values)


def test_an_output_called_as_the_form_of_another_has_its_own_values() -> None:
    """It was the other's integers, as floats."""
    x = np.random.default_rng(1).normal(0.2, 1, (3, 3, 6, 6)).astype(np.float32)
    plain, other = (
        npuc.compile(_model(each, "my"), "easynpu", calibration=x, level=0) for each in ({}, {"y": "m/int8"})
    )
    wanted = plain.run(x)["y"]
    assert np.abs(other.run(x)["m/int8"] - wanted).max() < 0.1 * np.abs(wanted).max()
