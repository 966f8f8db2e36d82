"""Pairs of QuantizeLinear and DequantizeLinear, and what stands between and around them."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.interpreter import run
from npuc.ir import Array, Graph, Node
from npuc.passes.recognition.recognise_quantisation import recognise_quantisation
from tests.passes.networks import network, node

SCALE, ZERO = np.float32(0.1), np.int8(-5)
X = np.linspace(-16, 16, 48, dtype=np.float32).reshape(1, 3, 4, 4)


def _quantize(x: str, y: str) -> Node:
    return node("QuantizeLinear", f"{x} scale zero", y)


def _dequantize(x: str, y: str) -> Node:
    return node("DequantizeLinear", f"{x} scale zero", y)


def _network(*nodes: Node, outputs: tuple[str, ...] = ("y",), **constants: Array) -> Graph:
    given = {"scale": np.asarray(SCALE), "zero": np.asarray(ZERO), **constants}
    return network(X.shape, " ".join(outputs), *nodes, **given)


def _ops(graph: Graph) -> list[str]:
    return [each.op for each in graph.nodes]


def _same(graph: Graph) -> Graph:
    found = recognise_quantisation(graph)
    for before, after in zip(run(graph, {"x": X}).values(), run(found, {"x": X}).values(), strict=True):
        np.testing.assert_allclose(after, before, rtol=1e-6, atol=1e-6)
    assert recognise_quantisation(found).nodes == found.nodes
    return found


def test_a_pair_becomes_one_node_with_its_scale_zero_point_and_type() -> None:
    found = _same(_network(_quantize("x", "q"), _dequantize("q", "y")))
    (only,) = found.nodes
    assert (only.op, only.inputs, only.outputs) == ("FakeQuantize", ("x",), ("y",))
    assert dict(only.attrs) == {"scale": float(SCALE), "zero_point": -5, "dtype": "int8"}


@pytest.mark.parametrize(
    "moves",
    [
        node("Transpose", "q", "m", perm=(0, 2, 3, 1)),
        node("Reshape", "q", "m", shape=(1, 48)),
        node("MaxPool", "q", "m", kernel_shape=(2, 2), strides=(2, 2)),
        node("Concat", "q q", "m", axis=1),
        node("Pad", "q", "m", pads=(0, 0, 1, 1, 0, 0, 1, 1), value=-5.0),
    ],
    ids=lambda each: each.op,
)
def test_integers_that_only_move_between_the_two_move_as_floats(moves: Node) -> None:
    found = _same(_network(_quantize("x", "q"), moves, _dequantize("m", "y")))
    assert set(_ops(found)) == {"FakeQuantize", moves.op}
    assert {each.dtype for each in found.tensors.values()} == {"float32"}


def test_both_halves_of_a_split_are_dequantised_before_it() -> None:
    split = Node("Split", ("q",), ("a", "b"), {"axis": 2, "split": (2, 2)}, "split")
    graph = _network(_quantize("x", "q"), split, _dequantize("a", "y"), _dequantize("b", "z"), outputs=("y", "z"))
    assert {each.dtype for each in _same(graph).tensors.values()} == {"float32"}


def test_rounding_again_to_the_same_steps_is_left_out() -> None:
    again = (_quantize("p", "r"), _dequantize("r", "y"))
    pool = node("MaxPool", "d", "p", kernel_shape=(2, 2), strides=(2, 2))
    found = _same(_network(_quantize("x", "q"), _dequantize("q", "d"), pool, *again))
    assert sorted(_ops(found)) == ["FakeQuantize", "MaxPool"]


def test_an_average_is_rounded_again() -> None:
    again = (_quantize("p", "r"), _dequantize("r", "y"))
    pool = node("GlobalAveragePool", "d", "p")
    found = _same(_network(_quantize("x", "q"), _dequantize("q", "d"), pool, *again))
    assert _ops(found) == ["FakeQuantize", "GlobalAveragePool", "FakeQuantize"]


def test_integers_read_with_another_scale_are_multiplied_and_shifted() -> None:
    other = node("DequantizeLinear", "q other none", "y")
    found = _same(
        _network(_quantize("x", "q"), other, other=np.asarray(np.float32(1)), none=np.asarray(np.int8(0)))
    )
    assert _ops(found) == ["FakeQuantize", "Mul", "Add"]


def test_a_movement_of_integers_to_an_output_happens_before_they_are_made() -> None:
    found = _same(_network(_quantize("x", "q"), node("Transpose", "q", "y", perm=(0, 2, 3, 1))))
    assert _ops(found) == ["Transpose", "QuantizeLinear"]


def test_scales_per_channel_stay() -> None:
    scales = {"scale": np.array([0.1, 0.2, 0.3], np.float32), "zero": np.zeros(3, np.int8)}
    graph = _network(
        node("QuantizeLinear", "x scale zero", "q", axis=1),
        node("DequantizeLinear", "q scale zero", "y", axis=1),
        **scales,
    )
    assert recognise_quantisation(graph) is graph


def test_a_product_of_integers_stays_float_on_its_way_to_floats() -> None:
    whole = node("Cast", "w", "i", to="int32", whole=1)
    found = _same(_network(node("Round", "x", "w"), whole, node("Cast", "i", "y", to="float32")))
    assert {each.dtype for each in found.tensors.values()} == {"float32"}
