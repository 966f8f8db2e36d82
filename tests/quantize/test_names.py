"""A model's tensors may have the names that npuc would give to tensors of its own."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx
import pytest
from numpy.typing import NDArray
from onnx import helper, numpy_helper

import npuc


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
    ports = [helper.make_tensor_value_info(name(each), 1, (1, n, 8, 8)) for each, n in (("x", 3), ("y", 8))]
    held = [numpy_helper.from_array(each, name(key)) for key, each in (("w", weights(8, 3)), ("v", weights(8, 8)))]
    graph = helper.make_graph(nodes, "names", ports[:1], ports[1:], held)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


TAKEN = {
    "forms of the input": {"y": "x/int8", "b": "x/int8/w", "s": "x/int8_2"},
    "forms of a result": {"x": "b/int8", "y": "b/int8/w", "c": "b/int8_2"},
    "constants": {"w": "s/int8/w", "v": "y/int8/shift", "b": "x/scale", "s": "y/zero"},
    "equalised": {"x": "b/equalised", "y": "y/equalised", "c": "b/equalised/int8", "s": "b/equalised_w"},
    "both ends": {"x": "p/equalised", "b": "p/equalised/equalised", "c": "p/equalised_w", "y": "p", "s": "p/int8"},
    "channels": {"x": "y/channels", "s": "x/channels", "c": "y/channels/factors", "b": "s/padded1_1_1_1_-128"},
}


@pytest.mark.parametrize("names", TAKEN.values(), ids=TAKEN)
@pytest.mark.parametrize(
    ("target", "level"), [("easynpu", "1"), ("easynpu", "2"), ("nvdla-full", "1"), ("bm1684", "1")]
)
def test_any_name_compiles_to_an_exact_program(names: Mapping[str, str], target: str, level: str) -> None:
    made, x = model(names), np.random.default_rng(1).normal(0.2, 1, (9, 3, 8, 8)).astype(np.float32)
    data = {made.graph.input[0].name: x}
    program = npuc.compile(made, target, calibration=data, level=level, precision="int8")
    found = npuc.verify(made, program, data)
    assert found["status"] == "ok"
    assert found["bit_exact"] in (True, None)
