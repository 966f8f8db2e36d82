"""Steps that a model gives, and the integers behind float weights."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuc.ir import Graph, Node, TensorType
from npuc.ops import build
from npuc.quantize.scales.constraints import equal_scales, integer_nodes, tensors_of
from npuc.quantize.scales.model_scales import Steps, given_steps, integers_of, reaches, steps_of
from tests.passes.networks import network, node


def _rounded(x: str, y: str, scale: float, zero: int = 0, dtype: str = "int8") -> Node:
    return node("FakeQuantize", x, y, scale=scale, zero_point=zero, dtype=dtype)


def _given(graph: Graph) -> dict[str, Steps]:
    nodes = integer_nodes(graph, lambda each: each.op in ("Conv", "Add", "MaxPool"))
    return given_steps(graph, tensors_of(nodes), equal_scales(graph, nodes))


def test_an_unsigned_integer_counts_less_128() -> None:
    graph = network((1, 4, 3, 3), "y", _rounded("x", "y", 0.5, 130, "uint8"))
    assert steps_of(graph, graph.nodes[0]) == Steps(0.5, 2)


@pytest.mark.parametrize(("zero", "reach"), [(0, 64.0), (-128, 127.5), (127, 127.5), (10, 69.0)])
def test_the_reach_is_the_largest_magnitude(zero: int, reach: float) -> None:
    assert Steps(0.5, zero).reach == reach


def test_both_sides_of_a_rounding_share_its_steps_and_a_pool_hands_them_on() -> None:
    pool = node("MaxPool", "b", "y", kernel_shape=(1, 1), strides=(1, 1))
    graph = network((1, 4, 3, 3), "y", node("Conv", "x w", "a"), _rounded("a", "b", 0.5, 3), pool, w=(4, 4, 1, 1))
    assert {name: found for name, found in _given(graph).items() if name != "x"} == dict.fromkeys(
        "aby", Steps(0.5, 3)
    )


def test_where_two_roundings_meet_each_side_keeps_its_own() -> None:
    second = _rounded("p", "y", 0.25, -128)
    pool = node("MaxPool", "b", "p", kernel_shape=(1, 1), strides=(1, 1))
    nodes = (node("Conv", "x w", "a"), _rounded("a", "b", 0.5, 3), pool, second, node("Conv", "y w", "z"))
    found = _given(network((1, 4, 3, 3), "z", *nodes, w=(4, 4, 1, 1)))
    assert (found["a"], found["b"], found["p"], found["y"]) == (*(Steps(0.5, 3),) * 3, Steps(0.25, -128))


@pytest.mark.parametrize("op", ["Neg", "Abs"])
def test_what_is_computed_of_a_tensor_and_joins_its_relu_keeps_the_tensor_from_the_steps_of_both(op: str) -> None:
    """All of relu(a) and -a share the steps 0..127.5 of what follows, which a does not fit."""
    nodes = (
        node("Conv", "x w", "a"),
        node("Relu", "a", "r"),
        node(op, "a", "n"),
        node("Concat", "r n", "c", axis=1),
    )
    graph = network((1, 4, 3, 3), "y", *nodes, _rounded("c", "y", 0.5, -128), w=(4, 4, 1, 1))
    integer = integer_nodes(graph, lambda _: True)
    found = given_steps(graph, tensors_of(integer), equal_scales(graph, integer))
    assert "a" not in found


def test_a_tensor_beside_a_rescale_has_the_reach_of_the_other_side() -> None:
    scaled = [node("Rescale", "a", "b"), node("Rescale", "c", "d")]
    assert reaches(scaled, {"a": Steps(0.5), "d": Steps(1.0, -128)}) == {"b": 64.0, "c": 255.0}


def test_what_the_model_dequantises_is_moved_as_integers() -> None:
    nodes = [
        Node("DequantizeLinear", ("x", "scale", "zero"), ("d",), {"axis": 0}),
        node("Reshape", "d", "r", shape=(1, 1, 6, 2)),
        node("Conv", "r w", "y"),
    ]
    constants = {
        "scale": np.array(0.5, np.float32),
        "zero": np.array(83, np.int8),
        "w": np.ones((1, 1, 1, 1), np.float32),
    }
    graph = build("g", nodes, {"x": TensorType((1, 12), "int8")}, ["y"], constants)
    assert [each.op for each in integer_nodes(graph, lambda each: each.op == "Conv")] == ["Reshape", "Conv"]
    assert {name: _given(graph)[name] for name in "dr"} == dict.fromkeys("dr", Steps(0.5, 83))


SEEDS = st.integers(0, 10_000)


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.integers(2, 255))
def test_the_integers_behind_weights_are_found_from_their_values(seed: int, most: int) -> None:
    random = np.random.default_rng(seed)
    integers = random.integers(-most, most + 1, (5, 3, 3, 2))
    integers[:, 0, 0] = [most, 1]  # no coarser grid holds both
    scales = np.exp2(random.uniform(-12, 3, 5)).astype(np.float32)
    found = integers_of(integers.astype(np.float32) * scales[:, None, None, None])
    assert found is not None
    np.testing.assert_array_equal(found[0], integers)
    np.testing.assert_array_equal(
        found[1].astype(np.float32) * integers[:, 0, 0, 0], scales * integers[:, 0, 0, 0]
    )
    np.testing.assert_allclose(found[1], scales, rtol=1e-7)


def test_a_channel_of_zeros_is_on_every_grid() -> None:
    found = integers_of(np.zeros((2, 3), np.float32))
    assert found is not None
    assert not found[0].any()


def test_weights_that_were_never_integers_have_none() -> None:
    assert integers_of(np.random.default_rng(0).standard_normal((4, 64)).astype(np.float32)) is None
