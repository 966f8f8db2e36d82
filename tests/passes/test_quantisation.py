"""A model's own integers and their scales: recognised, and finer where they would be coarse."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npuc.ir import Array, Graph, Node
from npuc.ops.interpreter import run
from npuc.passes.recognition.recognise_quantisation import recognise_quantisation
from npuc.passes.scales import RescaleCoarseOperands, RescaleMixedConcats
from npuc.quantize.calibration.histograms import histograms
from npuc.quantize.scales.constraints import constraints_of, tensors_of
from npuc.quantize.scales.model_scales import Steps
from tests.graphs.compiling import Case, verified
from tests.passes.networks import IMAGES, assert_same_meaning, becomes, network, node, operators

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


@pytest.mark.parametrize("moves", [
    node("Transpose", "q", "m", perm=(0, 2, 3, 1)),
    node("Reshape", "q", "m", shape=(1, 48)),
    node("MaxPool", "q", "m", kernel_shape=(2, 2), strides=(2, 2)),
    node("Concat", "q q", "m", axis=1),
    node("Pad", "q", "m", pads=(0, 0, 1, 1, 0, 0, 1, 1), value=-5.0),
], ids=lambda each: each.op)  # fmt: skip
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


GAIN = np.eye(4, dtype=np.float32)[..., None, None]


def _network_of_rescale_coarse_operands(gain: float, *tail: Node) -> Graph:
    """t = tanh(x), b = t * gain by a convolution, and what follows."""
    return network((1, 4, 5, 5), "y", node("Tanh", "x", "t"), node("Conv", "t w", "b"), *tail, w=GAIN * gain)


def _copied(graph: Graph) -> Graph:
    x = np.linspace(-3, 5, 100, dtype=np.float32).reshape(1, 4, 5, 5)
    nodes = tuple(graph.nodes)
    found = histograms(graph, [{"x": x}], tensors_of(nodes))
    copies = RescaleCoarseOperands(
        found,
        lambda each: tuple(each.nodes),
        lambda each, some, free: constraints_of(each, some, (), free),
        IMAGES,
    )
    after = copies(graph)
    assert_same_meaning(graph, after)
    return after


SUM, JOINED = node("Add", "t b", "y"), node("Concat", "t b", "y", axis=1)


@pytest.mark.parametrize("tail", [(SUM,), (JOINED,)])
def test_what_a_convolution_reads_keeps_its_steps_beside_a_result_sixty_four_times_as_large(
    tail: tuple[Node],
) -> None:
    after = _copied(_network_of_rescale_coarse_operands(64, *tail))
    assert operators(after) == ["Tanh", "Conv", "Rescale", tail[0].op]
    assert after.nodes[1].inputs[0] == "t" and after.nodes[2].inputs == ("t",)


@pytest.mark.parametrize("tail", [(SUM,), (JOINED,)])
def test_beside_a_result_eight_times_as_large_sixteen_steps_are_left(tail: tuple[Node]) -> None:
    graph = _network_of_rescale_coarse_operands(8, *tail)
    assert _copied(graph) is graph


def test_a_move_in_between_is_of_the_same_tensor() -> None:
    moved = node("Reshape", "t", "r", shape=(1, 4, 25, 1)), node("Reshape", "b", "s", shape=(1, 4, 25, 1))
    after = _copied(_network_of_rescale_coarse_operands(64, *moved, node("Add", "r s", "y")))
    assert operators(after) == ["Tanh", "Conv", "Reshape", "Reshape", "Rescale", "Add"]


def test_where_only_the_sum_reads_an_operand_nothing_is_gained() -> None:
    tail = node("Tanh", "x", "u"), node("Add", "u b", "y")
    graph = _network_of_rescale_coarse_operands(64, *tail)
    assert _copied(graph) is graph


def test_a_result_as_coarse_gains_nothing_from_a_copy() -> None:
    """The smaller of two is as small as the operand, and shares the scale of both."""
    pool = (
        node("Concat", "t b", "c", axis=2),
        node("Slice", "c", "y", starts=(0,), ends=(5,), axes=(2,), steps=(1,)),
    )
    graph = _network_of_rescale_coarse_operands(64, *pool)
    assert _copied(graph) is graph


@pytest.mark.parametrize("join", ["Max", "Add", "Sub"])
def test_an_exponential_has_the_steps_of_its_input(join: str, tmp_path: Path) -> None:
    """exp(2.5 x) reaches into the thousands where x is 3."""
    nodes = node("Mul", "x k", "t"), node("Exp", "t", "e"), node(join, "e t", "y")
    graph = network((1, 4, 5, 5), "y", *nodes, k=np.float32(2.5))
    report = verified(graph, Case("easynpu", "int8"), tmp_path)
    assert report["bit_exact"] and report["outputs"][0]["sqnr_db"] > 18


@pytest.mark.parametrize("target", ["easynpu", "bm1684"])
def test_a_convolution_has_the_steps_of_its_input(target: str, tmp_path: Path) -> None:
    graph = network(
        (1, 4, 5, 5), "y", node("Conv", "x v", "t"), node("Conv", "t w", "b"), JOINED, v=GAIN / 2, w=GAIN * 400
    )
    report = verified(graph, Case(target, "int8"), tmp_path)
    assert report["bit_exact"] and report["outputs"][0]["sqnr_db"] > 25


STEPS = {"scale": 0.05, "zero_point": 0, "dtype": "int8"}


@pytest.mark.parametrize(("shape", "axis", "ops"), [
    ((1, 4, 3, 3), 1, "Rescale"), ((1, 4), 1, "Rescale"), ((2, 4, 3, 3), 1, "Reshape Rescale Reshape"),
    ((2, 4, 2), 0, "Reshape Rescale Reshape"), ((4,), 0, "Reshape Rescale Reshape"), ((2, 0, 3), 2, "Rescale"),
])  # fmt: skip
def test_given_steps_are_rescaled_on_an_image(shape: tuple[int, ...], axis: int, ops: str) -> None:
    given = (node("Tanh", "x", "t"), node("FakeQuantize", "t", "q", **STEPS))
    graph = network(shape, "y", *given, node("Concat", "q x", "y", axis=axis))
    becomes(RescaleMixedConcats(IMAGES), graph, ["Tanh", "FakeQuantize", *ops.split(), "Concat"])


def test_a_concat_of_given_steps_alone_stays() -> None:
    given = (node("FakeQuantize", "x", "q", **STEPS), node("FakeQuantize", "x", "r", **STEPS))
    graph = network((2, 4, 2), "y", *given, node("Concat", "q r", "y", axis=0))
    assert RescaleMixedConcats(IMAGES)(graph) is graph


@pytest.mark.parametrize(("steps", "rescaled"), [((0.1, 0.1, 0.1), 0), ((0.1, 0.2, 0.1), 2), ((0.1, 0.1, 0.2), 2)])
def test_a_concat_stays_where_a_table_gives_all_the_same_steps(steps: tuple[float, ...], rescaled: int) -> None:
    branches = node("Tanh", "x", "q"), node("Sigmoid", "x", "r")
    graph = network((1, 4, 2, 2), "y", *branches, node("Concat", "q r", "y", axis=1))
    table = {name: Steps(scale, 0) for name, scale in zip("qry", steps, strict=True)}
    found = RescaleMixedConcats(IMAGES, table)(graph)
    assert len(found.nodes) - len(graph.nodes) == rescaled
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(("value", "kept"), [(0.0, 1), (1.0, 2)])
def test_padding_with_zeros_stays_on_the_grid(value: float, kept: int) -> None:
    pad = node("Pad", "q", "p", pads=(0, 0, 1, 1, 0, 0, 1, 1), value=value)
    grids = node("FakeQuantize", "x", "q", **STEPS), pad, node("FakeQuantize", "p", "g", **STEPS)
    found = recognise_quantisation(network((1, 2, 3, 3), "y", *grids, node("Abs", "g", "y")))
    assert _ops(found).count("FakeQuantize") == kept
