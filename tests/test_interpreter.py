from __future__ import annotations

import numpy as np
import pytest

from npuc.errors import DataError
from npuc.ir import Graph, Node, TensorType
from npuc.ops import build
from npuc.ops.interpreter import run

X = np.array([[-1.0, 2.0, -3.0]], np.float32)


def diamond() -> Graph:
    """out = relu(x) + relu(x) * two."""
    nodes = [
        Node("Relu", ("x",), ("r",), name="r"),
        Node("Mul", ("r", "two"), ("m",), name="m"),
        Node("Add", ("r", "m"), ("out",), name="a"),
    ]
    return build("g", nodes, {"x": TensorType((1, 3))}, ["out"], {"two": np.array(2, np.float32)})


def test_the_outputs_are_computed() -> None:
    assert run(diamond(), {"x": X})["out"].tolist() == [[0, 6, 0]]


def test_any_tensor_can_be_wanted_in_any_order() -> None:
    found = run(diamond(), {"x": X}, ["m", "x", "two", "r"])
    assert list(found) == ["m", "x", "two", "r"]
    assert found["r"].tolist() == [[0, 2, 0]] and found["x"] is X


def test_a_missing_input_is_refused_by_name() -> None:
    with pytest.raises(DataError) as refused:
        run(diamond(), {"y": X})
    assert refused.value.problems[0].code == "E401" and refused.value.problems[0].tensor == "x"


@pytest.mark.parametrize("value", [X[0], X.astype(np.float64), X.astype(np.int8)])
def test_an_input_of_another_shape_or_type_is_refused(value: np.ndarray) -> None:
    with pytest.raises(DataError, match="the value is") as refused:
        run(diamond(), {"x": value})
    assert refused.value.problems[0].code == "E402"


def test_infinities_arise_silently() -> None:
    graph = build("g", [Node("Reciprocal", ("x",), ("y",))], {"x": TensorType((2,))}, ["y"], {})
    assert run(graph, {"x": np.array([0, -0.0], np.float32)})["y"].tolist() == [np.inf, -np.inf]


def test_the_same_input_gives_the_same_bytes() -> None:
    graph, x = diamond(), np.random.default_rng(0).standard_normal((1, 3)).astype(np.float32)
    assert run(graph, {"x": x})["out"].tobytes() == run(graph, {"x": x})["out"].tobytes()
