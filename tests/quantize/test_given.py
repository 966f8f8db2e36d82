"""Scales that a model gives, zero points, and what is written as QDQ."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuc.ir import Array, Graph, Node, TensorType
from npuc.onnx_files.export import to_onnx
from npuc.ops import build
from npuc.ops.interpreter import run
from npuc.quantize.arithmetic.weights import average_taps, quantise_weights, sum_factors
from npuc.quantize.improvement.levels import LEVELS
from npuc.quantize.improvement.search import Recipe, TrialNetwork, best_network
from npuc.quantize.network.build import quantiser
from npuc.quantize.qdq import qdq_graph, qdq_model
from npuc.quantize.scales.constraints import equal_scales, integer_nodes, tensors_of
from npuc.quantize.scales.model_scales import Steps, given_steps, integers_of, reaches, steps_of
from npuc.reference import session
from npuc.samples.loading import Samples
from npuc.targets.easynpu.layers.rewrites import border_weights
from npuc.targets.easynpu.layers.tables import best_table
from tests.passes.networks import network, node
from tests.quantize.test_improvement import PADS, residual, samples, weights


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


OPS = ("Conv", "Relu", "Add", "AveragePool", "HardSwish", "GlobalAveragePool", "Sigmoid", "Mul")
RECIPE = Recipe(lambda graph: integer_nodes(graph, lambda each: each.op in OPS), quantiser(best_table))


def gated() -> Graph:
    """A squeeze-excite block: pool, two layers, a gate."""
    return network(
        (1, 4, 8, 8), "y",
        node("Conv", "x w", "a", pads=PADS), node("HardSwish", "a", "h"), node("GlobalAveragePool", "h", "p"),
        node("Conv", "p v", "q", activation="Relu"), node("Conv", "q t", "r"), node("Sigmoid", "r", "g"),
        node("Mul", "h g", "m"), node("Conv", "m t", "y"),
        w=weights(8, 4, 3, 3), v=weights(8, 8, 1, 1), t=weights(8, 8, 1, 1),
    )  # fmt: skip


@pytest.mark.parametrize("level", ["0", "1"])
@pytest.mark.parametrize("build", [residual, gated])
def test_every_tensor_is_at_most_a_step_a_layer_from_the_integers(build: Any, level: str) -> None:
    graph = build()
    data = samples(graph)
    found, _ = best_network(graph, RECIPE, data, LEVELS[level])
    qdq, integer = qdq_graph(found), found.quantised.graph
    scale = found.quantised.scales["y/int8"]
    first, second = session(to_onnx(qdq, ["y/exact"])), session(to_onnx(integer, ["y/int8"]))
    steps = []
    for feed in data.feeds():
        exact = np.clip(np.rint(first.run(None, feed)[0] / scale), -128, 127)
        steps.append(np.abs(exact - second.run(None, feed)[0]))
    # rounding to even or up, averages' taps and tables: a step here and there, more of them layer by layer
    assert np.mean(np.stack(steps) == 0) > 0.8
    assert np.max(steps) <= 5


def test_the_model_has_int8_weights_with_a_scale_per_channel_and_int32_biases() -> None:
    graph = residual()
    found, _ = best_network(graph, RECIPE, samples(graph), LEVELS["1"])
    model = onnx.load_model_from_string(qdq_model(found))
    onnx.checker.check_model(model, full_check=True)
    assert qdq_model(found) == qdq_model(found)
    held = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    w, scale = held["e/w/integers"], held["e/w/scale"]
    assert (w.dtype, w.shape, scale.shape) == (np.int8, (8, 1, 3, 3), (8,))
    assert held["e/b/integers"].dtype == np.int32
    x = found.quantised.scales["s/int8"]
    # the ONNX convention: a bias has the scale of the input times that of the weights
    assert np.allclose(held["e/b/scale"], scale * x, rtol=1e-6)


def test_weights_are_near_the_float_ones() -> None:
    graph = residual()
    found: TrialNetwork
    found, _ = best_network(graph, RECIPE, samples(graph), LEVELS["0"])
    model = onnx.load_model_from_string(qdq_model(found))
    held = {each.name: onnx.numpy_helper.to_array(each) for each in model.graph.initializer}
    back = held["a/w/integers"] * held["a/w/scale"].reshape(-1, 1, 1, 1)
    exact = graph.constants["w"]
    largest = np.abs(exact).max(axis=(1, 2, 3), keepdims=True)
    assert (np.abs(back - exact) / largest).max() < 1 / 63  # half a step of 63 or more to the largest weight


def test_inputs_are_rounded_in_their_order() -> None:
    """Their order was that of a set, another in every process: the same network gave other bytes."""
    names = "fcaedb"
    convolutions = [node("Conv", f"{name} w", f"{name}c") for name in names]
    joined = node("Concat", " ".join(f"{name}c" for name in names), "y", axis=1)
    inputs = {name: TensorType((1, 4, 6, 6)) for name in names}
    whole = build("test", [*convolutions, joined], inputs, ["y"], {"w": weights(4, 4, 1, 1)})
    data = Samples({name: np.ones((2, 1, 4, 6, 6), np.float32) for name in names})
    found, _ = best_network(whole, RECIPE, data, LEVELS["0"])
    written = [each.inputs[0] for each in qdq_graph(found).nodes if each.op == "QuantizeLinear"]
    assert [name for name in written if name in names] == list(whole.inputs)


def test_names_that_the_model_has_already_are_not_written_again() -> None:
    graph = network(
        (1, 4, 6, 6), "x/exact",
        node("Conv", "x w", "x/rounded", pads=PADS), node("HardSwish", "x/rounded", "x/steps"),
        node("Conv", "x/steps v", "x/scale"), node("Relu", "x/scale", "x/exact"),
        w=weights(8, 4, 3, 3), v=weights(8, 8, 1, 1),
    )  # fmt: skip
    found, _ = best_network(graph, RECIPE, samples(graph), LEVELS["0"])
    onnx.checker.check_model(onnx.load_model_from_string(qdq_model(found)), full_check=True)


Reference = Callable[[onnx.ModelProto, Mapping[str, Array]], dict[str, Array]]
ZEROS = st.integers(-128, 127)


@settings(max_examples=50, deadline=None)
@given(SEEDS, ZEROS, ZEROS)
def test_a_bias_takes_both_zero_points_exactly(seed: int, x_zero: int, y_zero: int) -> None:
    random = np.random.default_rng(seed)
    w, bias = random.standard_normal((3, 8)).astype(np.float32), random.standard_normal(3).astype(np.float32)
    found = quantise_weights(w, bias, 0.1, 0.2, x_zero, y_zero)
    x, factors, power = random.integers(-128, 128, (20, 8)), found.w.T.astype(np.int64), np.exp2(found.shift)
    steps = (x @ factors + found.bias) / power
    expected = (x - x_zero) @ factors / power + bias / 0.2 + y_zero
    assert np.abs(steps - expected).max() <= 0.5 / power.min() + 1e-6 * np.abs(expected).max()


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.integers(1, 200), st.booleans())
def test_words_over_a_constant_map_take_back_exactly_the_weights(seed: int, channels: int, dense: bool) -> None:
    w = np.random.default_rng(seed).integers(-128, 128, (4, channels if dense else 1, 3, 3)).astype(np.int8)
    parts = border_weights(w, dense=dense)
    total = sum(each.astype(np.int64).sum(axis=1) for each in parts)
    np.testing.assert_array_equal(total, -w.astype(np.int64).sum(axis=1))
    assert dense or all(each.shape[1] == 1 for each in parts)


@pytest.mark.parametrize("ratio", [1.0, 0.37, 1.9, 20.0, 1e-4])
@pytest.mark.parametrize("kernel", [(1, 1), (2, 2), (3, 3), (25, 5)])
def test_taps_of_an_average_sum_to_the_ratio_of_the_scales(kernel: tuple[int, int], ratio: float) -> None:
    taps, exponent = average_taps(kernel, ratio)
    assert taps.dtype == np.int8
    assert np.ptp(taps) <= 1
    assert abs(taps.sum(dtype=np.int64) / 2.0**exponent / ratio - 1) < 0.01


@given(st.floats(1e-3, 127), st.floats(1e-3, 127))
def test_factors_of_a_sum_are_the_ratios_to_8_bits(left: float, right: float) -> None:
    first, second, shift = sum_factors(left, right)
    assert 63 <= max(first, second) <= 127
    for factor, ratio in ((first, left), (second, right)):
        assert abs(factor - ratio * 2.0**shift) <= 0.5


def test_a_window_over_a_map_surrounded_by_its_zero_point_is_what_onnxruntime_computes(
    onnxruntime_values: Reference,
) -> None:
    random = np.random.default_rng(0)
    constants = {
        "w": random.integers(-127, 128, (3, 2, 3, 3)).astype(np.int8),
        "b": random.integers(-1000, 1000, 3).astype(np.int32),
        "s": np.full(3, 8, np.int8),
    }
    conv = node("IntConv", "x w b s", "y", pads=(1, 1, 0, 1), padding=-77)
    _assert_exported(conv, {"x": (1, 2, 5, 6)}, constants, onnxruntime_values)


def test_a_sum_with_factors_is_what_onnxruntime_computes(onnxruntime_values: Reference) -> None:
    constants = {"w": np.array([-3, 100], np.int8), "b": np.array(-5000, np.int32)}
    for relu in (0, 1):
        summed = node("IntSum", "x z w b", "y", shift=6, relu=relu)
        _assert_exported(summed, {"x": (1, 4, 5, 6), "z": (1, 4, 1, 6)}, constants, onnxruntime_values)


def _assert_exported(
    made: Node, shapes: Mapping[str, tuple[int, ...]], constants: Mapping[str, Array], reference: Reference
) -> None:
    """numpy's meaning of an integer node is that of its ONNX form under onnxruntime."""
    random = np.random.default_rng(1)
    feeds = {name: random.integers(-128, 128, shape).astype(np.int8) for name, shape in shapes.items()}
    types = {name: TensorType(shape, "int8") for name, shape in shapes.items()}
    graph = build("test", [made], types, ["y"], constants)
    model = to_onnx(graph, ["y"])
    np.testing.assert_array_equal(reference(model, feeds)["y"], run(graph, feeds)["y"])
