"""Conditions of quantisation: which tensors get a zero point, share a scale, or have limits of their own."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import npuc
from npuc.ir import Array, Graph, Node, TensorType
from npuc.onnx_files.export import to_onnx
from npuc.ops import build
from npuc.quantize.calibration.histograms import histograms
from npuc.quantize.network.build import quantise
from npuc.quantize.scales.constraints import integer_nodes, selects, tensors_of
from npuc.quantize.scales.model_scales import steps_of
from npuc.quantize.scales.zero_points import by_biases, offset_inputs, offset_results
from npuc.reference import session
from tests.graphs.compiling import Case, verified
from tests.passes.networks import network, node

CONV = node("Conv", "x w", "y", pads=(0, 0, 0, 0))
GRAPH = network((1, 2, 4, 4), "y", CONV, w=(2, 2, 1, 1))


def images(low: float, high: float, *, whole: bool = False) -> list[dict[str, Array]]:
    """Two samples that reach both limits."""
    values = np.random.default_rng(0).uniform(low, high, (2, 1, 2, 4, 4)).astype(np.float32)
    values[:, 0, 0, 0, 0], values[:, 0, 0, 0, 1] = low, high
    return [{"x": np.rint(each) if whole else each} for each in values]


def test_an_input_with_negative_values_has_no_zero_point_at_its_least_integer() -> None:
    assert not offset_inputs(GRAPH, GRAPH.nodes, images(-0.5, 1), anyway=True)
    assert offset_inputs(GRAPH, GRAPH.nodes, images(0, 1), anyway=True)["x"].zero == -128


def test_an_input_with_a_few_negative_values_is_not_cut_at_zero(tmp_path: Path) -> None:
    """Relu(-x) shows the negative values alone."""
    graph = network(
        (1, 4, 6, 6),
        "y",
        node("Conv", "x w", "a", pads=(0, 0, 0, 0)),
        node("Relu", "a", "y"),
        w=-np.eye(4, dtype=np.float32)[..., None, None],
    )
    for case in (Case("easynpu", "int8"), Case("nvdla-small", "int8")):
        report = verified(graph, case, tmp_path)
        assert report["bit_exact"]
        assert report["outputs"][0]["sqnr_db"] > 25


@pytest.mark.parametrize(
    ("largest", "whole", "scale"), [(250, True, 1), (250, False, 250 / 255), (100, True, 100 / 255)]
)
def test_only_whole_numbers_of_8_bits_keep_their_values(largest: float, whole: bool, scale: float) -> None:
    found = offset_inputs(GRAPH, GRAPH.nodes, images(0, largest, whole=whole), anyway=True)
    assert found["x"].scale == pytest.approx(scale)


def test_an_input_that_is_an_output_has_no_zero_point() -> None:
    graph = network((1, 2, 4, 4), "y x", CONV, w=(2, 2, 1, 1))
    assert not offset_inputs(graph, graph.nodes, images(0, 1), anyway=True)


def test_a_result_that_is_an_output_has_no_zero_point() -> None:
    first, second = node("Conv", "x w", "a", activation="Relu"), node("Conv", "a w", "y", pads=(0, 0, 0, 0))
    for outputs, expected in (("y", {"a"}), ("y a", set[str]())):
        graph = network((1, 2, 4, 4), outputs, first, second, w=(2, 2, 1, 1))
        found = offset_results(graph, graph.nodes, histograms(graph, images(-1, 1), tensors_of(graph.nodes)))
        assert found.keys() == expected


@pytest.mark.parametrize(("conv", "anyway", "taken"), [
    (node("Conv", "x w", "y", pads=(0, 0, 0, 0)), False, True),
    (node("Conv", "x w", "y", pads=(0, 1, 0, 0)), False, False),
    (node("Conv", "x w", "y", pads=(0, 1, 0, 0)), True, True),
    (node("Conv", "x w", "y", pads=(0, 0, 0, 0), selects=1), True, False),
    (node("Relu", "x", "y"), True, False),
])  # fmt: skip
def test_a_bias_takes_a_zero_point_where_no_padding_surrounds_the_map(
    conv: Node, anyway: bool, taken: bool
) -> None:
    assert by_biases(conv, anyway) is taken


ONE = np.eye(2, dtype=np.float32)[..., None, None]


@pytest.mark.parametrize(("weights", "selecting"), [
    (ONE, True), (ONE[::-1].copy(), True), (2 * ONE, False), (-ONE, False),
    (np.ones((2, 2, 1, 1), np.float32), False), (0 * ONE, False),
])  # fmt: skip
def test_a_selection_has_one_tap_of_1_for_each_result(weights: Array, selecting: bool) -> None:
    graph = network((1, 2, 4, 4), "y", node("Conv", "x w", "y"), w=weights)
    assert selects(graph, graph.nodes[0]) is selecting


def test_a_selection_has_no_bias() -> None:
    graph = network((1, 2, 4, 4), "y", node("Conv", "x w b", "y"), w=ONE, b=(2,))
    assert not selects(graph, graph.nodes[0])


@pytest.mark.parametrize(
    ("scales", "zeros", "known"),
    [((0.1,), (3,), True), ((0.1, 0.1), (3, 3), True), ((0.1, 0.2), (3, 3), False), ((0.1, 0.1), (3, 4), False)],
)
def test_scales_that_differ_along_an_axis_are_no_steps(
    scales: tuple[float, ...], zeros: tuple[int, ...], known: bool
) -> None:
    graph = network((1, 2, 4, 4), "y", node("QuantizeLinear", "x s z", "q", axis=1),
        node("DequantizeLinear", "q s z", "y", axis=1), s=np.array(scales, np.float32),
        z=np.array(zeros, np.int8))  # fmt: skip
    assert (steps_of(graph, graph.nodes[0]) is not None) is known


def test_a_limit_within_the_given_steps_limits(tmp_path: Path) -> None:
    """Steps of 0.1 reach 12.7; Clip ends at 2."""
    graph = network((1, 4, 6, 6), "y", node("Conv", "x w", "a", pads=(0, 0, 0, 0)),
        node("Clip", "a", "b", min=0.0, max=2.0), node("QuantizeLinear", "b s z", "q"),
        node("DequantizeLinear", "q s z", "y"), w=4 * ONE.repeat(2, 0).repeat(2, 1) / 2, s=0.1,
        z=np.int8(0))  # fmt: skip
    for case in (Case("easynpu", "int8"), Case("nvdla-small", "int8"), Case("nvdla-full", "int8")):
        report = verified(graph, case, tmp_path)
        assert report["bit_exact"]
        assert report["outputs"][0]["max_abs_error"] <= 0.21


def test_steps_that_follow_other_steps_are_rounded_to(tmp_path: Path) -> None:
    """Rounded to 0.5 behind 0.01: the difference of the two roundings would be lost otherwise."""
    graph = network((1, 4, 6, 6), "y", node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "a"), node("QuantizeLinear", "a t z", "r"),
        node("DequantizeLinear", "r t z", "y"), s=0.03, t=0.5, z=np.int8(5))  # fmt: skip
    for case in (Case("easynpu", "int8"), Case("nvdla-small", "int8")):
        report = verified(graph, case, tmp_path)
        assert report["bit_exact"]
        assert report["outputs"][0]["sqnr_db"] is None or report["outputs"][0]["sqnr_db"] > 25


@pytest.mark.parametrize("target", ["easynpu", "nvdla-small"])
def test_steps_between_layers_that_follow_other_steps_are_rounded_to(target: str, tmp_path: Path) -> None:
    """Half of the values that steps of 0.02 tell apart are one in steps of 0.5."""
    graph = network((1, 4, 6, 6), "y", node("Conv", "x w", "a", pads=(0, 0, 0, 0)),
        node("FakeQuantize", "a", "b", scale=0.02, zero_point=0, dtype="int8"),
        node("FakeQuantize", "b", "c", scale=0.5, zero_point=0, dtype="int8"),
        node("Conv", "c v", "d", pads=(0, 0, 0, 0)), node("FakeQuantize", "d", "y", scale=0.02, zero_point=0,
        dtype="int8"), w=0.7 * np.eye(4, dtype=np.float32)[..., None, None],
        v=np.eye(4, dtype=np.float32)[::-1, :, None, None].copy())  # fmt: skip
    report = verified(graph, Case(target, "int8"), tmp_path)
    assert report["bit_exact"]
    assert report["outputs"][0]["max_abs_error"] < 0.1


@pytest.mark.parametrize("target", ["easynpu", "nvdla-small", "nvdla-full"])
def test_steps_that_one_reader_rounds_to_do_not_limit_what_another_reads(target: str, tmp_path: Path) -> None:
    """Steps of 0.005 reach 0.64; Relu reads all of the values, up to about 3."""
    graph = network((1, 4, 6, 6), "y z", node("QuantizeLinear", "x s zero", "q"),
        node("DequantizeLinear", "q s zero", "z"), node("Relu", "x", "y"), s=0.005, zero=np.int8(3))  # fmt: skip
    report = verified(graph, Case(target, "int8"), tmp_path)
    assert report["bit_exact"]
    assert next(each for each in report["outputs"] if each["name"] == "y")["sqnr_db"] > 25


@pytest.mark.parametrize("target", ["easynpu", "nvdla-small"])
def test_steps_of_what_a_tensor_is_moved_to_do_not_limit_an_output(target: str, tmp_path: Path) -> None:
    """Steps whose largest integer is 0 keep nothing of a ReLU, whose result is also read as it is."""
    graph = network((1, 4, 6, 6), "y z", node("Relu", "x", "y"), node("MaxPool", "y", "a", kernel_shape=(2, 2),
        strides=(2, 2)), node("QuantizeLinear", "a s zero", "q"), node("DequantizeLinear", "q s zero", "z"),
        s=0.05, zero=np.uint8(255))  # fmt: skip
    report = verified(graph, Case(target, "int8"), tmp_path)
    assert report["bit_exact"]
    assert next(each for each in report["outputs"] if each["name"] == "y")["sqnr_db"] > 25


def test_a_result_is_no_finer_than_8_bit_weights_allow() -> None:
    """Its values lie close together although its weights are large: they cancel."""
    w = np.array([[100, -100.001]], np.float32)[..., None, None]
    graph: Graph = network((1, 2, 4, 4), "y", CONV, w=w)
    alike = np.random.default_rng(0).uniform(0.5, 1, (4, 1, 1, 4, 4)).astype(np.float32).repeat(2, axis=2)
    nodes = integer_nodes(graph, lambda each: each.op == "Conv")
    known = histograms(graph, [{"x": each} for each in alike], tensors_of(nodes))
    quantised = quantise(graph, nodes, known)
    assert quantised.scales["y/int8"] >= quantised.scales["x/int8"] * 100.001 / 127.5


@pytest.mark.parametrize("target", ["easynpu", "nvdla-small"])
@pytest.mark.parametrize("op", ["Concat", "Min"])
def test_given_steps_do_not_limit_what_is_concatenated_with_them(op: str, target: str, tmp_path: Path) -> None:
    """The steps have no negative values; what stands beside them has, and is read by a convolution."""
    together = node("Concat", "a b", "c", axis=1) if op == "Concat" else node("Min", "a b", "c")
    random = np.random.default_rng(2)
    graph = network((1, 4, 6, 6), "y", node("QuantizeLinear", "x s zero", "q"),
        node("DequantizeLinear", "q s zero", "a"), node("Conv", "x w", "b"), together, node("Conv", "c v", "y"),
        s=0.05, zero=np.uint8(0), w=random.standard_normal((4, 4, 1, 1)).astype(np.float32) / 2,
        v=random.standard_normal((3, 8 if op == "Concat" else 4, 1, 1)).astype(np.float32) / 2)  # fmt: skip
    report = verified(graph, Case(target, "int8"), tmp_path)
    assert report["bit_exact"]
    assert report["outputs"][0]["sqnr_db"] > 25


@pytest.mark.parametrize("target", ["easynpu", "nvdla-small", "bm1684"])
@pytest.mark.parametrize(("zero", "other"), [(0, 0), (-128, 3)])
def test_integer_inputs_with_different_steps_fit_into_what_they_share(target: str, zero: int, other: int) -> None:
    """The first input has the finer steps."""
    random = np.random.default_rng(2)
    nodes = (
        node("DequantizeLinear", "x s zero", "a"),
        node("DequantizeLinear", "z t other", "b"),
        node("Concat", "a b", "c", axis=1),
        node("Conv", "c v", "y"),
    )
    v = random.standard_normal((3, 8, 1, 1)).astype(np.float32) / 2
    steps = {"s": np.float32(0.02), "t": np.float32(0.06), "zero": np.int8(zero), "other": np.int8(other)}
    constants = {"v": v, **{name: np.asarray(value) for name, value in steps.items()}}
    types = dict.fromkeys("xz", TensorType((1, 4, 6, 6), "int8"))
    graph = build("g", nodes, types, ["y"], constants)
    model = to_onnx(graph)
    x = {name: random.integers(-128, 128, (6, 1, 4, 6, 6)).astype(np.int8) for name in "xz"}
    program = npuc.compile(model, target, precision="int8", calibration=x)
    wanted = np.stack([session(model).run(None, {name: x[name][at] for name in "xz"})[0] for at in range(6)])
    error = program.run(x)["y"].reshape(wanted.shape) - wanted
    assert np.square(error).sum() < 0.01 * np.square(wanted).sum()


FAINT = {
    "Add": (node("Add", "x s", "y"),),
    "Sub": (node("Sub", "s x", "y"),),
    "Mul": (node("Mul", "x s", "y"),),
    "a map of one pixel": (node("GlobalAveragePool", "s", "p"), node("Add", "x p", "y")),
    "a convolution's own": (node("Conv", "x w", "c", pads=(0, 0, 0, 0)), node("Add", "c s", "y")),
}


@pytest.mark.parametrize("name", FAINT)
@pytest.mark.parametrize(("target", "faint"), [("easynpu", 1e-5), ("nvdla-full", 1e-9)])
def test_a_faint_operand_does_not_take_the_scale_from_the_other(
    name: str, faint: float, target: str, tmp_path: Path
) -> None:
    """Its values are below any step of the sum; a product is as exact as that of large operands."""
    first = node("Mul", "x f", "s")
    graph = network((1, 4, 6, 6), "y", first, *FAINT[name], w=(4, 4, 1, 1), f=np.full((1,), faint, np.float32))
    report = verified(graph, Case(target, "int8"), tmp_path)
    assert report["bit_exact"]
    assert report["outputs"][0]["sqnr_db"] > 25


@pytest.mark.parametrize("target", ["easynpu", "nvdla-large"])
def test_a_clip_that_gives_zero_on_all_samples_leaves_the_sum_behind_it_as_it_is(
    target: str, tmp_path: Path
) -> None:
    nodes = (node("Clip", "n", "s", min=0.0, max=1.0), node("Add", "s x", "y"))
    graph = network((1, 4, 6, 6), "y", node("Abs", "x", "a"), node("Neg", "a", "n"), *nodes)
    report = verified(graph, Case(target, "int8"), tmp_path)
    assert report["outputs"][0]["sqnr_db"] > 25
