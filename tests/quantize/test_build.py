"""From float graph to integer graph: where int8 begins and ends, and how near the results stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npuc.errors import UnsupportedOperator
from npuc.ir import Array, Graph, Node, TensorType
from npuc.ops import build
from npuc.ops.interpreter import run
from npuc.quantize.calibration.histograms import histograms
from npuc.quantize.network.build import quantise
from npuc.quantize.network.construction import Quantised
from npuc.quantize.scales.constraints import integer_nodes, tensors_of
from npuc.quantize.scales.model_scales import Steps
from npuc.targets.easynpu.layers.tables import best_table

RANDOM = np.random.default_rng(0)
ARRAY_OPS = ("Conv", "Relu", "Clip", "Add", "Mul", "MaxPool", "AveragePool", "GlobalAveragePool", "GlobalMaxPool")


def _weights(*shape: int) -> Array:
    return (RANDOM.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def _graph(nodes: list[Node], shape: tuple[int, ...] = (1, 8, 8, 8), outputs: tuple[str, ...] = ("y",)) -> Graph:
    constants = {"w": _weights(8, 8, 3, 3), "v": _weights(8, 8, 1, 1), "b": _weights(8, 1).ravel()}
    used = {name for node in nodes for name in node.inputs}
    held = {name: value for name, value in constants.items() if name in used}
    return build("g", nodes, {"x": TensorType(shape)}, outputs, held)


def _quantised(graph: Graph, method: str = "mse", count: int = 6) -> tuple[Quantised, list[dict[str, Array]]]:
    random = np.random.default_rng(1)
    samples = [{"x": random.standard_normal(graph.shape("x")).astype(np.float32)} for _ in range(count)]
    nodes = integer_nodes(graph, lambda node: node.op in ARRAY_OPS)
    return quantise(graph, nodes, histograms(graph, samples, tensors_of(nodes)), method), samples


def _sqnr(graph: Graph, found: Quantised, samples: list[dict[str, Array]]) -> float:
    signal = noise = 0.0
    for feeds in samples:
        exact, result = run(graph, feeds), run(found.graph, feeds)
        for name in graph.outputs:
            signal += float((exact[name].astype(np.float64) ** 2).sum())
            noise += float(((exact[name] - result[name]).astype(np.float64) ** 2).sum())
    return 10 * np.log10(signal / noise)


def conv(x: str, y: str, w: str = "w", **attrs: Any) -> Node:
    pads = (1, 1, 1, 1) if w == "w" else (0, 0, 0, 0)
    return Node("Conv", (x, w, "b"), (y,), {"pads": pads, **attrs}, y, (y,))


NETWORKS = {
    "convolutions": [conv("x", "a", activation="Relu"), conv("a", "y", "v")],
    "residual": [conv("x", "a"), Node("Add", ("a", "x"), ("y",), {"activation": "Relu"}, "y")],
    "pools": [conv("x", "a"), Node("MaxPool", ("a",), ("m",), {"kernel_shape": (2, 2), "strides": (2, 2)}, "m"),
     Node("AveragePool", ("m",), ("y",), {"kernel_shape": (2, 2), "strides": (1, 1)}, "y")],
    "global": [conv("x", "a"), Node("GlobalAveragePool", ("a",), ("y",), {}, "y")],
    "clipped": [conv("x", "a", activation="Clip", min=0.0, max=1.0), conv("a", "y", "v")],
    "moved": [conv("x", "a"), conv("x", "c", "v"), Node("Concat", ("a", "c"), ("d",), {"axis": 1}, "d"),
     Node("MaxPool", ("d",), ("y",), {"kernel_shape": (2, 2), "strides": (2, 2)}, "y")],
}  # fmt: skip


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize(("method", "least"), [("mse", 28), ("minmax", 24)])
def test_the_integer_network_stays_near_the_float_network(name: str, method: str, least: float) -> None:
    graph = _graph(NETWORKS[name])
    found, samples = _quantised(graph, method)
    assert _sqnr(graph, found, samples) > least


def test_int8_begins_and_ends_at_the_border_of_the_integer_nodes() -> None:
    nodes = [conv("x", "a"), Node("Softmax", ("a",), ("s",), {"axis": 1}, "s"), conv("s", "y", "v")]
    found, _ = _quantised(_graph(nodes))
    written = [(node.op, node.output) for node in found.graph.nodes]
    assert written == [
        ("QuantizeLinear", "x/int8"),
        ("IntConv", "a/int8"),
        ("DequantizeLinear", "a"),
        ("Softmax", "s"),
        ("QuantizeLinear", "s/int8"),
        ("IntConv", "y/int8"),
        ("DequantizeLinear", "y"),
    ]
    assert found.floats == {"x/int8": "x", "a/int8": "a", "s/int8": "s", "y/int8": "y"}


def test_a_movement_is_integer_only_between_integer_nodes() -> None:
    turn = {"perm": (0, 1, 3, 2)}
    nodes = [
        Node("Transpose", ("x",), ("first",), turn, "first"),
        conv("first", "a"),
        Node("Transpose", ("a",), ("between",), turn, "between"),
        conv("between", "c"),
        Node("Transpose", ("c",), ("y",), turn, "last"),
    ]
    graph = _graph(nodes)
    chosen = integer_nodes(graph, lambda node: node.op == "Conv")
    assert [node.output for node in chosen] == ["a", "between", "c"]
    found, samples = _quantised(graph)
    assert found.scales["a/int8"] == found.scales["between/int8"]
    assert _sqnr(graph, found, samples) > 25


@pytest.mark.parametrize("between", ["a", "x/zero"])
def test_a_tensor_called_as_the_scale_of_another_keeps_its_value(between: str) -> None:
    """The scale of x took the place of the model's own constant: the quotient was wrong."""
    nodes = [conv("x", between), Node("Div", (between, "x/scale"), ("y",), {}, "y")]
    constants = {"w": _weights(8, 8, 3, 3), "b": _weights(8, 1).ravel(), "x/scale": np.array(2, np.float32)}
    graph = build("g", nodes, {"x": TensorType((1, 8, 8, 8))}, ["y"], constants)
    found, samples = _quantised(graph)
    assert _sqnr(graph, found, samples) > 28


def test_a_tensor_that_both_worlds_read_exists_in_both() -> None:
    nodes = [conv("x", "a"), Node("Exp", ("a",), ("e",), {}, "e"), conv("a", "y", "v")]
    found, _ = _quantised(_graph(nodes, outputs=("y", "e", "a")))
    assert sum(node.output == "a" for node in found.graph.nodes) == 1
    assert found.graph.outputs == ("y", "e", "a")


def test_operators_without_weights_keep_the_scale() -> None:
    found, _ = _quantised(_graph(NETWORKS["moved"]))
    assert len({found.scales[f"{name}/int8"] for name in "acdy"}) == 1


def test_the_operands_of_a_sum_share_a_scale_and_its_shift_is_the_ratio_of_the_result() -> None:
    found, _ = _quantised(_graph(NETWORKS["residual"]))
    (node,) = (node for node in found.graph.nodes if node.op == "IntAdd")
    assert found.scales["a/int8"] == found.scales["x/int8"]
    assert found.scales["y/int8"] == found.scales["a/int8"] * 2 ** node.integer("shift")
    assert node.integer("relu") == 1


def test_the_shift_of_an_average_makes_up_for_its_taps() -> None:
    found, _ = _quantised(_graph(NETWORKS["global"]))
    (node,) = (node for node in found.graph.nodes if node.integer("average"))
    taps, shift = found.graph.constants[node.inputs[1]], found.graph.constants[node.inputs[3]]
    assert (taps.astype(int).reshape(8, -1).sum(axis=1) == 1 << 12).all()  # 64 taps of 64
    assert (found.scales["y/int8"] / found.scales["a/int8"] == 2.0 ** (shift - 12.0)).all()


def _average(power: int) -> tuple[Graph, Quantised]:
    """The average of a map in steps of 2^-5, in steps of another power of two."""
    graph = _graph([Node("GlobalAveragePool", ("x",), ("y",), {}, "p")])
    given = {"x": Steps(2.0**-5, 3), "y": Steps(2.0**power, -7)}
    return graph, quantise(graph, graph.nodes, {}, given=given)


@pytest.mark.parametrize("power", [-40, -18])
def test_an_average_in_steps_too_fine_for_its_taps_is_refused(power: int) -> None:
    with pytest.raises(UnsupportedOperator, match="E205"):
        _average(power)


@pytest.mark.parametrize("power", [-17, -5, 12, 14, 40])
def test_an_average_takes_any_other_steps(power: int) -> None:
    graph, found = _average(power)
    (node,) = (node for node in found.graph.nodes if node.integer("average"))
    assert set(found.graph.constants[node.inputs[3]].tolist()) <= set(range(32))
    x = np.random.default_rng(0).integers(-30, 50, graph.shape("x")).astype(np.float32) * np.float32(2.0**-5)
    steps = 2.0**power
    exact = np.clip(run(graph, {"x": x})["y"], steps * (7 - 128), steps * (7 + 127))
    np.testing.assert_allclose(run(found.graph, {"x": x})["y"], exact, atol=0.51 * steps)


def test_saturation_does_the_work_of_a_clip() -> None:
    graph = _graph(NETWORKS["clipped"])
    found, samples = _quantised(graph)
    assert found.scales["a/int8"] * 127 <= 1.0 + 1e-6
    top = max(float(run(found.graph, feeds, ["a/int8"])["a/int8"].max()) for feeds in samples)
    assert top * found.scales["a/int8"] <= 1.0 + 1e-6


@pytest.mark.parametrize("layer", [
    conv("x", "y", activation="Clip", min=0.0, max=2.0), conv("x", "y", activation="Clip", min=0.0, max=20.0),
    Node("Clip", ("x",), ("y",), {"min": -2.0, "max": 20.0}, "y"),
    Node("Clip", ("x",), ("y",), {"min": 0.0, "max": 2.0}, "y"),
])  # fmt: skip
def test_limits_that_given_steps_exceed_are_kept(layer: Node) -> None:
    graph = _graph([layer])
    nodes = integer_nodes(graph, lambda node: node.op in ARRAY_OPS)
    x = {"x": (RANDOM.integers(-60, 61, graph.shape("x")) / 10).astype(np.float32)}
    steps = {name: Steps(0.1, 0) for name in "xy"}
    found = quantise(graph, nodes, histograms(graph, [x], tensors_of(nodes)), "mse", steps, tabulate=best_table)
    np.testing.assert_allclose(run(found.graph, x)["y"], run(graph, x)["y"], rtol=0, atol=0.2)


def test_scales_are_32_bit_floats() -> None:
    found, _ = _quantised(_graph(NETWORKS["pools"]))
    assert all(float(np.float32(scale)) == scale for scale in found.scales.values())


def test_a_node_without_an_integer_form_is_refused() -> None:
    graph = _graph([Node("Softmax", ("x",), ("y",), {"axis": 1}, "s")])
    samples = [{"x": np.ones(graph.shape("x"), np.float32)}]
    with pytest.raises(UnsupportedOperator) as caught:
        quantise(graph, graph.nodes, histograms(graph, samples, tensors_of(graph.nodes)))
    assert caught.value.problems[0].code == "E205"


def test_weights_that_a_limit_of_the_result_would_saturate_are_refused() -> None:
    # x reaches about 4 in 127 steps, y 0.0001: one step of x is 40,000 of y for a weight of 1
    attrs = {"activation": "Clip", "min": 0.0, "max": 1e-4}
    graph = _graph([conv("x", "y", **attrs)])
    with pytest.raises(UnsupportedOperator) as caught:
        _quantised(graph)
    problem = caught.value.problems[0]
    assert (problem.code, problem.node, problem.tensor) == ("E205", "y", "y")
    assert "steps of the result" in problem.reason


def test_the_result_of_a_map_that_shares_the_scale_of_a_larger_one_is_coarse_enough_for_the_weights() -> None:
    """`a` is around 1, but one step of it about 300, as it lies beside `big`: y = a cannot have steps of 0.01."""
    nodes = [
        conv("x", "a"),
        Node("Concat", ("a", "big"), ("c",), {"axis": 1}, "c"),
        Node("Conv", ("a", "v"), ("y",), {}, "y", ("y",)),
    ]
    types = {"x": TensorType((1, 8, 8, 8)), "big": TensorType((1, 8, 8, 8))}
    constants = {"w": _weights(8, 8, 3, 3), "b": _weights(8, 1).ravel(), "v": _weights(8, 8, 1, 1)}
    graph = build("g", nodes, types, ("y", "c"), constants)
    random = np.random.default_rng(1)
    feeds = {"x": random.standard_normal((1, 8, 8, 8)), "big": 1e4 * random.standard_normal((1, 8, 8, 8))}
    sample = {name: value.astype(np.float32) for name, value in feeds.items()}
    quantised = quantise(graph, graph.nodes, histograms(graph, [sample], tensors_of(graph.nodes)))
    ratio = quantised.scales["a/int8"] / quantised.scales["y/int8"]
    assert 100 < np.abs(constants["v"]).max() * ratio <= 127.5


def test_an_all_zero_tensor_is_quantised_without_complaint() -> None:
    graph = _graph([conv("x", "a"), Node("Relu", ("a",), ("y",), {}, "y")])
    nodes = integer_nodes(graph, lambda node: node.op in ARRAY_OPS)
    zeros = [{"x": np.zeros(graph.shape("x"), np.float32)}]
    found = quantise(graph, nodes, histograms(graph, zeros, tensors_of(nodes)))
    assert run(found.graph, zeros[0])["y"].shape == graph.shape("y")


def test_outputs_and_what_is_moved_to_them_hold_their_largest_value() -> None:
    nodes = [
        conv("x", "a"),
        Node("MaxPool", ("a",), ("m",), {"kernel_shape": (2, 2)}, "m"),
        Node("Reshape", ("m",), ("y",), {"shape": (8, 49)}, "y"),
    ]
    graph = _graph(nodes)
    found, samples = _quantised(graph, count=60)
    largest = max(float(np.abs(run(graph, feeds, ["m"])["m"]).max()) for feeds in samples)
    assert found.scales["m/int8"] * 127.5 > largest


def test_steps_are_not_finer_than_the_error_that_the_input_brings() -> None:
    w = np.ones((1, 2, 1, 1), np.float32)
    graph = build("g", [Node("Conv", ("x", "w"), ("y",))], {"x": TensorType((1, 2, 1, 1))}, ["y"], {"w": w})
    nodes = integer_nodes(graph, lambda _: True)
    sample = np.array([127.0, -126.9], np.float32).reshape(1, 2, 1, 1)  # they cancel: the sum is 0.1
    found = quantise(graph, nodes, histograms(graph, [{"x": sample}], tensors_of(nodes)), "minmax")
    assert found.scales["x/int8"] == pytest.approx(1, rel=0.05)
    assert found.scales["y/int8"] >= np.sqrt(2 / 12)  # two roundings, evenly spread, deviate by this


def test_a_negation_keeps_the_scale_and_is_exact() -> None:
    graph = _graph([Node("Neg", ("x",), ("a",)), Node("MaxPool", ("a",), ("m",), {"kernel_shape": (8, 8)}),
                    Node("Neg", ("m",), ("y",))])  # fmt: skip
    nodes = integer_nodes(graph, lambda _: True)
    samples = [{"x": RANDOM.standard_normal((1, 8, 8, 8)).astype(np.float32)}]
    found = quantise(graph, nodes, histograms(graph, samples, tensors_of(nodes)), tabulate=best_table)
    assert len(set(found.scales.values())) == 1


def test_a_concatenation_with_a_constant_is_integer() -> None:
    nodes = [conv("x", "a"), Node("Concat", ("a", "c"), ("t",), {"axis": 1}), conv("t", "y", "u")]
    constants = {"c": np.full((1, 2, 8, 8), 0.5, np.float32), "u": _weights(8, 10, 1, 1)}
    graph = build("g", nodes, {"x": TensorType((1, 8, 8, 8))}, ["y"],
                  {**constants, "w": _weights(8, 8, 3, 3), "b": _weights(8, 1).ravel()})  # fmt: skip
    found, samples = _quantised(graph)
    assert found.graph.tensors["t/int8"].dtype == "int8"
    assert _sqnr(graph, found, samples) > 25
