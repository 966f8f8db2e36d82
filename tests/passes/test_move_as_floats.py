"""Moves of a model's own integers beside its QuantizeLinear and DequantizeLinear."""

import numpy as np

from npuc.ir import TensorType
from npuc.ops import build
from npuc.passes.cleanup.move_as_floats import move_as_floats
from tests.passes.networks import assert_same_meaning, network, node, operators

STEPS = {"s": np.float32(0.05), "z": np.int8(-7)}


def test_moves_stand_outside_of_steps() -> None:
    graph = network(
        (1, 2, 3, 4),
        "y",
        node("QuantizeLinear", "x s z", "q"),
        node("Transpose", "q", "t", perm=(0, 2, 3, 1)),
        node("DequantizeLinear", "t s z", "f"),
        node("Relu", "f", "r"),
        node("QuantizeLinear", "r s z", "o"),
        node("Reshape", "o", "y", shape=(1, 24)),
        **STEPS,
    )
    found = move_as_floats(graph)
    assert operators(found) == [
        *("Transpose", "QuantizeLinear", "DequantizeLinear", "Relu", "Reshape", "QuantizeLinear"),
    ]
    assert_same_meaning(graph, found)
    assert move_as_floats(found) is found


def test_integers_of_an_input_are_dequantised_before_they_are_moved() -> None:
    nodes = (node("Transpose", "x", "t", perm=(0, 2, 3, 1)), node("DequantizeLinear", "t s z", "y"))
    constants = {name: np.asarray(value) for name, value in STEPS.items()}
    graph = build("test", nodes, {"x": TensorType((1, 2, 3, 4), "int8")}, ["y"], constants)
    found = move_as_floats(graph)
    assert operators(found) == ["DequantizeLinear", "Transpose"]
    assert_same_meaning(graph, found)


def test_integers_that_something_else_reads_and_scales_of_channels_stay() -> None:
    read_twice = network(
        (1, 2, 3, 4),
        "y t",
        node("QuantizeLinear", "x s z", "q"),
        node("Relu", "x", "r"),
        node("QuantizeLinear", "r s z", "p"),
        node("Transpose", "p", "t", perm=(0, 2, 3, 1)),
        node("DequantizeLinear", "t s z", "y"),
        **STEPS,
    )
    assert operators(move_as_floats(read_twice))[-1] == "DequantizeLinear"
    channels = network(
        (1, 2, 3, 4),
        "y",
        node("QuantizeLinear", "x two zeros", "q", axis=1),
        node("Transpose", "q", "t", perm=(0, 2, 3, 1)),
        node("DequantizeLinear", "t two zeros", "y", axis=3),
        two=np.array([0.1, 0.2], np.float32),
        zeros=np.zeros(2, np.int8),
    )
    assert move_as_floats(channels) is channels
