"""Names of the model: no name of a tensor changes a program."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper

import npuc
from tests.onnx_models import network


def model(names: Mapping[str, str]) -> onnx.ModelProto:
    """Three convolutions and a sum, with channels of different magnitudes, whose tensors have these names."""
    random = np.random.default_rng(0)

    def name(tensor: str) -> str:
        return names.get(tensor, tensor)

    def weights(count: int, channels: int) -> NDArray[np.float32]:
        spread = np.exp2(random.uniform(-4, 4, (count, 1, 1, 1)))
        return np.asarray(random.normal(size=(count, channels, 3, 3)) * spread, np.float32)

    def conv(x: str, y: str, w: str) -> onnx.NodeProto:
        return helper.make_node("Conv", [name(x), name(w)], [name(y)], y, pads=[1, 1, 1, 1])

    nodes = [
        conv("x", "a", "w"),
        helper.make_node("Relu", [name("a")], [name("b")], "relu"),
        conv("b", "c", "v"),
        helper.make_node("Add", [name("c"), name("b")], [name("s")], "sum"),
        conv("s", "y", "v"),
    ]
    held = {name("w"): weights(8, 3), name("v"): weights(8, 8)}
    made = network(nodes, {name("x"): (1, 3, 8, 8)}, held)
    made.graph.output[0].name = name("y")
    return made


TAKEN = {
    "forms of the input": {"y": "x/int8", "b": "x/int8/w", "s": "x/int8_2"},
    "forms of a result": {"x": "b/int8", "y": "b/int8/w", "c": "b/int8_2"},
    "constants": {"w": "s/int8/w", "v": "y/int8/shift", "b": "x/scale", "s": "y/zero"},
    "equalised": {"x": "b/equalised", "y": "y/equalised", "c": "b/equalised/int8", "s": "b/equalised_w"},
    "both ends": {"x": "p/equalised", "b": "p/equalised/equalised", "c": "p/equalised_w", "y": "p", "s": "p/int8"},
    "channels": {"x": "y/channels", "s": "x/channels", "c": "y/channels/factors", "b": "s/padded1_1_1_1_-128"},
}


@pytest.mark.parametrize("names", TAKEN.values(), ids=TAKEN)
@pytest.mark.parametrize(("target", "level"), [("easynpu", "2"), ("nvdla-full", "1"), ("bm1684", "1")])
def test_any_name_compiles_to_an_exact_program(names: Mapping[str, str], target: str, level: str) -> None:
    made, x = model(names), np.random.default_rng(1).normal(0.2, 1, (9, 3, 8, 8)).astype(np.float32)
    data = {made.graph.input[0].name: x}
    program = npuc.compile(made, target, calibration=data, level=level, precision="int8")
    found = npuc.verify(made, program, data)
    assert found["status"] == "ok"
    assert found["bit_exact"] in (True, None)


SHAPES = {"w": (4, 3, 3, 3), "b": (4,), "v": (4, 4, 1, 1)}


def _model(names: Mapping[str, str], outputs: str = "yz") -> onnx.ModelProto:
    """Two convolutions around a maximum and a sine, which the host computes."""

    def node(op: str, inputs: str, output: str) -> onnx.NodeProto:
        given = [names.get(each, each) for each in inputs.split()]
        attributes = {"kernel_shape": [2, 2]} if op == "MaxPool" else {}
        return helper.make_node(op, given, [names.get(output, output)], name=output, **attributes)

    random = np.random.default_rng(0)
    held = {names.get(name, name): random.normal(0.02, 0.3, shape) for name, shape in SHAPES.items()}
    nodes = [
        node("Conv", "x w b", "a"),
        node("MaxPool", "a", "m"),
        node("Conv", "m v", "y"),
        node("Sin", "a", "z"),
    ]
    made = network(nodes, (1, 3, 6, 6), held, " ".join(outputs))
    for port in made.graph.output:
        port.name = names.get(port.name, port.name)
    return made


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
