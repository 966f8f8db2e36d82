"""Conditions of NVDLA's forms and constraints: where one does not hold, another form is as exact."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npuc.ir import Array, Graph, Node
from npuc.program import as_loaded
from npuc.target import target
from npuc.targets.nvdla.formats.weights import WeightForm
from npuc.targets.nvdla.machine.parameters import FULL, SMALL
from npuc.targets.nvdla.network import support
from npuc.targets.nvdla.network.passes import enlargements_to_interleaves
from npuc.targets.nvdla.operations.tiling import Geometry, kernels_together
from tests.graphs.compiling import Case, compiled_program, verified
from tests.passes.networks import assert_same_meaning, network, node


def weights(*shape: int) -> Array:
    """That keep the variance, and are as many negative as positive."""
    random = np.random.default_rng(5)
    return (random.standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def test_the_mask_of_a_group_of_kernels_lies_in_one_bank() -> None:
    """A bank of 32 KiB has 262,144 bits: of kernels of 18,432 weights it holds 14, so 8 lie together."""
    shape = Geometry(4, 3, 2048, 1, 2, 32, 3, 3, 1, 1, 0)
    assert kernels_together(FULL, shape) == 16
    assert kernels_together(FULL, replace(shape, form=WeightForm(compressed=True))) == 8


FORMS = {
    "dilated": network((1, 32, 12, 12), "y", node("Conv", "x w", "y", dilations=(2, 2), pads=(2, 2, 2, 2)),
        w=weights(16, 32, 3, 3)),
    "grouped": network((1, 32, 12, 12), "y", node("Conv", "x w", "y", group=2, pads=(1, 1, 1, 1)),
        w=weights(32, 16, 3, 3)),
    "part of a tile beside another map": network((1, 32, 11, 11), "y", node("Relu", "x", "a"),
        node("Conv", "a w", "b", pads=(1, 1, 1, 1)), node("Concat", "b a", "y", axis=1), w=weights(32, 32, 3, 3)),
    "part of a tile and an operand per element": network((1, 32, 11, 11), "y", node("Relu", "x", "a"),
        node("Conv", "a w", "b", pads=(1, 1, 1, 1)), node("Add", "b a", "y"), w=weights(32, 32, 3, 3)),
}  # fmt: skip


@pytest.mark.parametrize("name", FORMS)
def test_a_convolution_that_winograd_does_not_compute_is_exact_all_the_same(name: str, tmp_path: Path) -> None:
    report = verified(FORMS[name], Case("nvdla-full", "int8", weights="winograd"), tmp_path)
    assert report["bit_exact"]
    assert report["outputs"][0]["sqnr_db"] > 20


@pytest.mark.parametrize(
    "convolution",
    [
        network((1, 4, 40, 40), "y", node("Conv", "x w", "y", group=2), w=weights(8, 2, 7, 7)),
        network((1, 3, 40, 40), "y", node("Conv", "x w", "y", dilations=(2, 2)), w=weights(8, 3, 7, 7)),
    ],
    ids=["grouped", "dilated"],
)
def test_an_input_that_is_no_image_for_its_convolution_is_a_feature_cube(
    convolution: Graph, tmp_path: Path
) -> None:
    assert verified(convolution, Case("nvdla-full", "int8"), tmp_path)["bit_exact"]


CONV = node("Conv", "x w", "a", pads=(1, 1, 1, 1))
POOL = node("MaxPool", "a", "y", kernel_shape=(2, 2), strides=(2, 2))


@pytest.mark.parametrize("target", ["nvdla-small", "nvdla-full"])
@pytest.mark.parametrize(
    ("outputs", "more"),
    [("y", ()), ("y a", ()), ("y b", (node("Relu", "a", "b"),))],
    ids=["alone", "output", "two"],
)
def test_pooling_on_the_fly_leaves_nothing_out_that_is_read(
    target: str, outputs: str, more: tuple[object, ...], tmp_path: Path
) -> None:
    graph = network((1, 8, 12, 12), outputs, CONV, POOL, *more, w=weights(16, 8, 3, 3))  # type: ignore[arg-type]
    report = verified(graph, Case(target, "int8"), tmp_path)
    assert report["bit_exact"]
    assert all(each["sqnr_db"] > 20 for each in report["outputs"])


def test_every_other_line_of_a_padded_map_begins_in_its_padding(tmp_path: Path) -> None:
    conv = node("Conv", "x w", "y", strides=(2, 2), pads=(1, 1, 0, 0))
    report = verified(
        network((1, 16, 9, 9), "y", conv, w=weights(16, 16, 1, 1)), Case("nvdla-small", "int8"), tmp_path
    )
    assert report["bit_exact"]
    assert report["outputs"][0]["sqnr_db"] > 20


@pytest.mark.parametrize("case", [Case("nvdla-small", "int8"), Case("nvdla-full", "fp16")], ids=str)
@pytest.mark.parametrize("pads", [(0, 40, 0, 0), (0, 80, 0, 75)])
def test_a_convolution_with_more_padding_than_a_field_runs(
    pads: tuple[int, ...], case: Case, tmp_path: Path
) -> None:
    """The field has 5 bits, so 31 columns; copies add the others."""
    conv = node("Conv", "x w", "y", dilations=(1, 20), pads=pads)
    report = verified(network((1, 6, 1, 50), "y", conv, w=weights(8, 6, 1, 3)), case, tmp_path)
    assert report["outputs"][0]["sqnr_db"] > (25 if case.precision == "int8" else 60)
    assert "parts" not in report


@pytest.mark.parametrize(("op", "attributes", "remedy"), [
    ("AveragePool x", {"kernel_shape": (3, 3), "strides": (9, 9), "count_include_pad": 1}, "pool in two steps"),
    ("AveragePool x", {"kernel_shape": (3, 3), "pads": (1,) * 4}, "set count_include_pad = 1"),
    ("Conv x w", {"strides": (9, 9)}, "a smaller stride"),
])  # fmt: skip
def test_a_remedy_is_about_what_is_beyond_the_machine(op: str, attributes: dict[str, Any], remedy: str) -> None:
    """Before, an average of a large stride was to count its padding, a convolution to fold its normalisation."""
    name, *more = op.split()
    graph = network((1, 4, 30, 30), "y", node(name, " ".join(more), "y", **attributes), w=weights(4, 4, 3, 3))
    found = support.refusal(graph, graph.nodes[0], SMALL, "int8")
    assert found is not None
    assert found.remedy == remedy


@pytest.mark.parametrize(("fused", "activation", "count"), [
    ({}, node("LeakyRelu", "d", "l", alpha=0.5), 4), ({"activation": "Relu"}, node("LeakyRelu", "d", "l"), 1),
    ({}, node("PRelu", "d s", "l"), 4), ({}, node("PRelu", "d computed", "l"), 1),
])  # fmt: skip
def test_activations_that_convolutions_can_take_go_before_an_enlargement(
    fused: dict[str, Any], activation: Node, count: int
) -> None:
    ends = node("Abs", "s", "computed"), node("Conv", "l v", "y"), node("Relu", "computed", "z")
    layers = node("Conv", "x w", "a", **fused), node("DepthToSpace", "a", "d", blocksize=2)
    graph = network(
        (1, 3, 4, 4), "y z", *layers, ends[0], activation, *ends[1:], w=(8, 3, 1, 1), v=(2, 2, 1, 1), s=0.5
    )
    found = enlargements_to_interleaves(graph)
    assert [each.op for each in found.nodes].count(activation.op) == count
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(("attributes", "refused"), [
    ({"kernel_shape": (8, 8)}, False), ({"kernel_shape": (9, 1)}, True), ({"kernel_shape": (1, 9)}, True),
    ({"kernel_shape": (2, 2), "strides": (8, 8)}, False), ({"kernel_shape": (2, 2), "strides": (9, 1)}, True),
    ({"kernel_shape": (2, 2), "dilations": (2, 1)}, True), ({"kernel_shape": (8, 8), "pads": (7,) * 4}, False),
])  # fmt: skip
def test_windows_of_pools_have_fields_of_three_bits(attributes: dict[str, Any], refused: bool) -> None:
    graph = network((1, 4, 30, 30), "y", node("MaxPool", "x", "y", **attributes))
    assert bool(support.refusal(graph, graph.nodes[0], SMALL, "int8")) is refused


@pytest.mark.parametrize(("shape", "axis", "refused"), [
    ((1, 4, 6, 5), 2, False), ((1, 4, 6, 5), 3, False), ((1, 4, 6, 5), 1, True), ((2, 4, 6, 5), 2, True),
    ((1, 4, 6), 2, True), ((1, 1, 4096, 1), 2, False), ((1, 1, 4097, 1), 2, True),
])  # fmt: skip
def test_pixels_of_one_map_are_interleaved(shape: tuple[int, ...], axis: int, refused: bool) -> None:
    graph = network(shape, "y", node("Interleave", "x x", "y", axis=axis))
    assert bool(support.interleaving_fields(graph, graph.nodes[0])) is refused


@pytest.mark.parametrize(("attributes", "refused"), [
    ({}, False), ({"beta": 0.0}, False), ({"beta": -0.25}, True), ({"bias": 0.0}, True), ({"alpha": 0.0}, False),
    ({"alpha": -0.25}, True), ({"size": 9}, False), ({"size": 11}, True), ({"size": 4}, True),
])  # fmt: skip
def test_a_normalisation_falls_with_the_squares_of_few_channels(attributes: dict[str, Any], refused: bool) -> None:
    graph = network((1, 16, 4, 4), "y", node("LRN", "x", "y", **{"size": 5, **attributes}))
    assert bool(support.refusal(graph, graph.nodes[0], FULL, "int8")) is refused


@pytest.mark.parametrize(("shape", "found"), [
    ((1, 8192, 1, 1), None), ((1, 8193, 1, 1), "8,193 channels exceed 8,192"),
    ((1, 1, 8193, 1), "8,193 rows exceed 8,192"), ((1, 1, 1, 8193), "8,193 columns exceed 8,192"),
])  # fmt: skip
@pytest.mark.parametrize("operands", ["x c", "c x"])
def test_a_map_beyond_a_field_is_named_with_its_extent(
    shape: tuple[int, ...], found: str | None, operands: str
) -> None:
    graph = network(shape, "y", node("Min", operands, "y"), c=(1,))
    assert support.map_fields(graph, graph.nodes[0]) == found


@pytest.mark.parametrize(("operands", "refused"), [("x small", True), ("small x", False), ("x x", False)])
def test_a_difference_repeats_only_what_is_subtracted_from(operands: str, refused: bool) -> None:
    graph = network((1, 4, 5, 5), "y", node("GlobalMaxPool", "x", "small"), node("Sub", operands, "y"))
    assert bool(support.whole_or_per_channel(graph, graph.nodes[-1])) is refused


@pytest.mark.parametrize(
    ("low", "high", "refused"), [(0.0, 6.0, False), (2.0, 1.0, True), (-1.0, -0.5, True), (-1.0, 1.0, False)]
)
def test_a_clip_has_an_upper_limit_above_zero_and_above_the_lower_one(
    low: float, high: float, refused: bool
) -> None:
    graph = network((1, 4, 5, 5), "y", node("Clip", "x", "y", min=low, max=high))
    assert bool(support.positive_upper_limit(graph, graph.nodes[0])) is refused


@pytest.mark.parametrize("op", ["Min", "Max"])
def test_a_tensor_with_a_zero_point_is_compared_with_itself(op: str, tmp_path: Path) -> None:
    graph = network(
        (1, 3, 4, 4),
        "y",
        node("FakeQuantize", "x", "a", scale=0.03, zero_point=-29, dtype="int8"),
        node("MaxPool", "a", "b", kernel_shape=(2, 2)),
        node(op, "b b", "y"),
    )
    report = verified(graph, Case("nvdla-small", "int8"), tmp_path)
    assert report["bit_exact"]
    assert report["outputs"][0]["sqnr_db"] > 20


@pytest.mark.parametrize(("low", "high"), [(-1.0, 0.5), (-0.5, 1.0), (-1.0, 1.0)])
def test_saturation_is_an_upper_limit_where_it_leaves_the_lower_one(
    low: float, high: float, tmp_path: Path
) -> None:
    graph = network((1, 3, 8, 8), "y", node("Clip", "x", "y", min=low, max=high))
    report = verified(graph, Case("nvdla-small", "int8"), tmp_path)
    assert report["bit_exact"]
    assert report["outputs"][0]["sqnr_db"] > 30


def test_values_that_are_all_at_a_limit_are_kept(tmp_path: Path) -> None:
    graph = network((1, 3, 4, 4), "y", node("Clip", "x", "y", min=0.0, max=1.0))
    values = {"x": np.full((2, 1, 3, 4, 4), 3.0, np.float32)}
    _, program = compiled_program(graph, values, Case("nvdla-large", "int8"), tmp_path)
    found = target("nvdla-large").runner(as_loaded(program), "own")(values)["y"]
    np.testing.assert_allclose(found, np.ones((2, 1, 3, 4, 4)), atol=0.01)


def test_a_zero_point_that_is_larger_than_the_sum_before_it_keeps_32_bits(tmp_path: Path) -> None:
    graph = network((1, 4, 3, 3), "y", node("Mul", "x tenth", "small"), node("Sub", "small half", "a"),
        node("Sub", "small a", "b"), node("QuantizeLinear", "b s zero", "q"),
        node("DequantizeLinear", "q s zero", "y"), tenth=0.1, half=0.05, s=0.0919, zero=np.int8(127))  # fmt: skip
    assert verified(graph, Case("nvdla-small", "int8"), tmp_path)["bit_exact"]


@pytest.mark.parametrize("case", [Case("nvdla-full", "int8"), Case("nvdla-full", "fp16")], ids=str)
@pytest.mark.parametrize("batch", [1, 2])
def test_several_samples_are_not_interleaved_as_one(case: Case, batch: int, tmp_path: Path) -> None:
    """The mean over all axes keeps the batch from being split."""
    enlarged = node("Resize", "a", "b", mode="nearest", scales=(1.0, 1.0, 2.0, 2.0), sizes=(batch, 3, 8, 10))
    mean = node("ReduceMean", "b", "y", axes=(0, 1, 2, 3), keepdims=1)
    report = verified(network((batch, 3, 4, 5), "y", node("Relu", "x", "a"), enlarged, mean), case, tmp_path)
    assert report["outputs"][0]["sqnr_db"] > 25
