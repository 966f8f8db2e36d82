"""Windows within a machine's limits: pads, pools, their borders and parts."""

from __future__ import annotations

from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuc.ir import Attr, Graph, Node, TensorType
from npuc.onnx_files.export import to_onnx
from npuc.ops import build
from npuc.ops.interpreter import run
from npuc.ops.windows import window_of
from npuc.passes.cleanup.pads import merge_pads
from npuc.passes.expansion.averages import AverageLimits, PadLongAverages, SplitAveragePool
from npuc.passes.expansion.maxima_to_pools import MaximaToPools
from npuc.passes.expansion.reductions_to_pools import reductions_to_pools
from npuc.passes.expansion.split_max_pool import AxisPool, division, split_max_pool
from npuc.passes.recognition.canonical_forms import lift_to_2d, unify_pooling
from tests.conftest import Reference
from tests.passes.networks import IMAGES, assert_same_meaning, becomes, feeds, network, node, operators, sources

AROUND = (0, 0, 1, 0, 0, 0, 2, 1)


def test_zeros_before_a_convolution_become_its_padding() -> None:
    graph = network(
        (1, 3, 6, 6),
        "y",
        node("Pad", "x", "p", pads=AROUND),
        node("Conv", "p w", "y", pads=(1, 1, 0, 0), kernel_shape=(3, 3)),
        w=(4, 3, 3, 3),
    )
    found = becomes(merge_pads, graph, ["Conv"])
    assert found.nodes[0].integers("pads") == (2, 1, 2, 1)
    assert sources(found, "y") == ("p", "y")


@pytest.mark.parametrize("pad", [
    node("Pad", "x", "p", pads=AROUND, value=1.0), node("Pad", "x", "p", pads=AROUND, mode="reflect"),
    node("Pad", "x", "p", pads=AROUND, mode="edge"), node("Pad", "x", "p", pads=(0, 0, 1, 0, 0, 0, -1, 0)),
    node("Pad", "x", "p", pads=(1, 0, 1, 0, 0, 0, 0, 0)),
])  # fmt: skip
def test_padding_that_is_not_zeros_around_the_image_stays(pad) -> None:
    graph = network((1, 3, 6, 6), "y", pad, node("Conv", "p w", "y"), w=(4, 3, 3, 3))
    assert merge_pads(graph) is graph


def test_padding_of_channels_stays() -> None:
    graph = network(
        (1, 2, 6, 6),
        "y",
        node("Pad", "x", "p", pads=(0, 1, 0, 0, 0, 0, 0, 0)),
        node("Conv", "p w", "y"),
        w=(4, 3, 3, 3),
    )
    assert merge_pads(graph) is graph


def test_padding_with_a_second_reader_stays_for_it() -> None:
    graph = network(
        (1, 3, 6, 6), "y p", node("Pad", "x", "p", pads=AROUND), node("Conv", "p w", "y"), w=(4, 3, 3, 3)
    )
    found = becomes(merge_pads, graph, ["Pad", "Conv"])
    assert found.nodes[1].inputs[0] == "x"


@pytest.mark.parametrize(
    ("own", "merged"),
    [
        ({}, True),
        ({"pads": (1, 0, 0, 0), "count_include_pad": 1}, True),
        ({"pads": (1, 0, 0, 0), "count_include_pad": 0}, False),
        ({"ceil_mode": 1}, False),
        ({"kernel_shape": (2, 2)}, False),  # as much padding as window
        ({"kernel_shape": (2, 2), "dilations": (2, 2)}, False),  # onnxruntime counts taps, not what they span
        ({"kernel_shape": (3, 3), "dilations": (2, 2)}, True),
    ],
)
def test_zeros_before_an_average_are_merged_if_every_window_counts_its_padding(
    own: dict[str, Attr], merged: bool
) -> None:
    attrs: dict[str, Attr] = {"kernel_shape": (4, 4), **own}
    graph = network((1, 3, 8, 8), "y", node("Pad", "x", "p", pads=AROUND), node("AveragePool", "p", "y", **attrs))
    becomes(merge_pads, graph, ["AveragePool"] if merged else ["Pad", "AveragePool"])


@pytest.mark.parametrize(("before", "value", "merged"), [
    (node("Neg", "x", "a"), -inf, True), (node("Neg", "x", "a"), -3.4028235e38, True),
    (node("Neg", "x", "a"), 0.0, False), (node("Relu", "x", "a"), 0.0, True),
    (node("Sigmoid", "x", "a"), 0.0, True), (node("Clip", "x", "a", min=-1.0, max=1.0), 0.0, False),
    (node("Clip", "x", "a", min=-1.0, max=1.0), -1.0, True),
])  # fmt: skip
def test_padding_before_a_maximum_is_merged_if_it_never_wins(before, value: float, merged: bool) -> None:
    pool = node("MaxPool", "p", "y", kernel_shape=(3, 3), strides=(2, 2))
    graph = network((1, 3, 8, 8), "y", before, node("Pad", "a", "p", pads=AROUND, value=value), pool)
    found = merge_pads(graph)
    assert ("Pad" in operators(found)) is not merged
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(("pool", "expected"), [
    (node("ReduceMean", "x", "y", axes=(2, 3), keepdims=1), ["GlobalAveragePool"]),
    (node("ReduceMean", "x", "y", axes=(3, 2), keepdims=0), ["GlobalAveragePool", "Reshape"]),
    (node("ReduceMax", "x", "y", axes=(2, 3), keepdims=1), ["GlobalMaxPool"]),
    (node("ReduceMean", "x", "y", axes=(2,), keepdims=1), ["AveragePool"]),
    (node("ReduceMax", "x", "y", axes=(3,), keepdims=0), ["MaxPool", "Reshape"]),
    (node("AveragePool", "x", "y", kernel_shape=(4, 5)), ["GlobalAveragePool"]),
    (node("MaxPool", "x", "y", kernel_shape=(4, 5), strides=(2, 2)), ["GlobalMaxPool"]),
    (node("AveragePool", "x", "y", kernel_shape=(4, 4)), ["AveragePool"]),
    (node("AveragePool", "x", "y", kernel_shape=(4, 5), pads=(0, 1, 0, 0)), ["AveragePool"]),
    (node("ReduceMean", "x", "y", axes=(1,), keepdims=1), ["ReduceMean"]),
    (node("ReduceMean", "x", "y", axes=(1, 2, 3), keepdims=1), ["ReduceMean"]),
    (node("ReduceSum", "x", "y", axes=(2, 3), keepdims=1), ["ReduceSum"]),
])  # fmt: skip
def test_pooling_over_the_image_has_one_spelling(pool, expected: list[str]) -> None:
    becomes(unify_pooling, network((2, 3, 4, 5), "y", pool), expected)


@pytest.mark.parametrize(("axes", "expected"), [((5,), "ReduceMean"), ((2, 3, 4, 5), "GlobalAveragePool")])
def test_a_mean_over_one_of_four_spatial_axes_is_no_window(axes: tuple[int, ...], expected: str) -> None:
    graph = network((1, 2, 3, 1, 4, 5), "y", node("ReduceMean", "x", "y", axes=axes, keepdims=1))
    becomes(unify_pooling, graph, [expected])


def test_a_mean_over_a_flattened_image_is_global_pooling() -> None:
    flat = node("Reshape", "x", "f", shape=(2, 3, 20))
    graph = network((2, 3, 4, 5), "y", flat, node("ReduceMean", "f", "y", axes=(2,), keepdims=0))
    becomes(unify_pooling, graph, ["GlobalAveragePool", "Reshape", "Reshape"])


def test_pooling_of_one_pixel_goes() -> None:
    graph = network(
        (2, 3, 1, 1), "y", node("Relu", "x", "a"), node("GlobalAveragePool", "a", "b"), node("Neg", "b", "y")
    )
    assert operators(unify_pooling(graph)) == ["Relu", "Neg"]


def test_a_one_dimensional_network_becomes_images_of_height_one() -> None:
    graph = network((1, 3, 16), "y", node("Conv", "x w b", "a", pads=(1, 2), strides=(2,), kernel_shape=(3,)),
        node("BatchNormalization", "a c c c c", "n"), node("Relu", "n", "r"), node("Mul", "r k", "m"),
        node("Concat", "m r", "j", axis=1), node("MaxPool", "j", "p", kernel_shape=(2,), strides=(2,)),
        node("ConvTranspose", "p v", "t", strides=(2,), output_padding=(1,), dilations=(2,)),
        node("AveragePool", "t", "g", kernel_shape=(3,), pads=(1, 1)), node("GlobalAveragePool", "g", "h"),
        node("Reshape", "h", "y", shape=(1, 2)), w=(4, 3, 3), b=(4,), c=(4,), k=(4, 1), v=(8, 2, 2))  # fmt: skip
    found = lift_to_2d(graph)
    kept = ["Conv", "BatchNormalization", "Relu", "Mul", "Concat", "MaxPool", "ConvTranspose", "AveragePool"]
    assert operators(found) == ["Reshape", *kept, "GlobalAveragePool", "Reshape"]
    assert all(len(found.shape(each.output)) == 4 for each in found.nodes[:-1])
    assert_same_meaning(graph, found)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel", "pytorch_half_pixel", "align_corners"])
@pytest.mark.parametrize(("scale", "size"), [(2.0, 32), (1.7, 27), (0.5, 8)])
def test_interpolation_along_one_axis_becomes_that_of_an_image(
    mode: str, coordinates: str, scale: float, size: int
) -> None:
    attrs = {"scales": (1.0, 1.0, scale), "sizes": (1, 3, size), "mode": mode}
    resize = node("Resize", "x", "y", coordinate_transformation_mode=coordinates, **attrs)
    becomes(lift_to_2d, network((1, 3, 16), "y", resize), ["Reshape", "Resize", "Reshape"])


@pytest.mark.parametrize("sizes", [(3, 3, 16), (4, 2, 16), (3, 5, 8)])
def test_interpolation_of_samples_or_channels_is_not_lifted(sizes: tuple[int, ...]) -> None:
    scales = tuple(to / of for to, of in zip(sizes, (4, 3, 16), strict=True))
    resize = node("Resize", "x", "y", scales=scales, sizes=sizes, mode="nearest")
    graph = network((4, 3, 16), "y", resize)
    assert lift_to_2d(graph) is graph


def test_padding_in_front_of_a_one_dimensional_window_is_merged_before_it_is_lifted() -> None:
    graph = network(
        (1, 3, 16), "y", node("Pad", "x", "p", pads=(0, 0, 2, 0, 0, 0)), node("Conv", "p w", "y"), w=(4, 3, 3)
    )
    found = becomes(lift_to_2d, graph, ["Reshape", "Conv", "Reshape"])
    assert found.nodes[1].integers("pads") == (0, 2, 0, 0)


def test_an_integer_weight_keeps_its_scale_when_lifted() -> None:
    graph = network((1, 2, 8), "y", node("DequantizeLinear", "q s z", "w", axis=0), node("Conv", "x w", "y"),
        q=np.arange(12, dtype=np.int8).reshape(2, 2, 3), s=np.float32([0.5, 0.25]), z=np.int8([0, 0]))  # fmt: skip
    found = lift_to_2d(graph)
    assert sorted(operators(found)) == ["Conv", "DequantizeLinear", "Reshape", "Reshape"]
    assert_same_meaning(graph, found)


def test_images_are_left() -> None:
    graph = network((1, 3, 4, 4), "y", node("Conv", "x w", "y"), w=(4, 3, 3, 3))
    assert lift_to_2d(graph) is graph


CUBE = (3, 4, 5)
AXES = ((0,), (1,), (2,), (0, 2), (1, 2), (0, 1, 2))
COMPUTED = {
    "ReduceMean": ["GlobalAveragePool"],
    "ReduceMax": ["GlobalMaxPool"],
    "ReduceMin": ["Neg", "GlobalMaxPool", "Neg"],
    "ReduceSum": ["Conv"],
}
MOVES = ("Reshape", "Transpose", "Expand", "Concat")


def computing(names: list[str]) -> list[str]:
    return [name for name in names if name not in MOVES]


@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("op", COMPUTED)
def test_a_reduction_is_pooling_of_an_image(op: str, axes: tuple[int, ...], keepdims: int) -> None:
    graph = network(CUBE, "y", node(op, "x", "y", axes=axes, keepdims=keepdims))
    found = reductions_to_pools(graph)
    assert computing(operators(found)) == COMPUTED[op]
    assert_same_meaning(graph, found)
    assert reductions_to_pools(found).nodes == found.nodes


def test_trailing_axes_are_reduced_without_transposition() -> None:
    graph = network((2, 3, 4, 5), "y", node("ReduceMax", "x", "y", axes=(2, 3)))
    assert operators(reductions_to_pools(graph)) == ["Reshape", "GlobalMaxPool", "Reshape"]


@pytest.mark.parametrize("op", ["ReduceMean", "ReduceSum"])
def test_channels_of_an_image_are_added_up_by_a_convolution(op: str) -> None:
    becomes(reductions_to_pools, network((1, 6, 4, 5), "y", node(op, "x", "y", axes=(1,), keepdims=1)), ["Conv"])


@pytest.mark.parametrize(("op", "expected"), [("Max", ["MaxPool"]), ("Min", ["Neg", "Neg", "MaxPool", "Neg"])])
@pytest.mark.parametrize("axes", [(), (0,), (1,)])
def test_of_two_tensors_pooling_takes_the_larger(op: str, expected: list[str], axes: tuple[int, ...]) -> None:
    small = node("ReduceMean", "x", "a", axes=axes, keepdims=1) if axes else node("Tanh", "x", "a")
    graph = network(CUBE, "y", small, node(op, "x a", "y"))
    found = MaximaToPools(IMAGES)(graph)
    assert computing(operators(found))[1:] == expected
    assert_same_meaning(graph, found)
    assert MaximaToPools(IMAGES)(found).nodes == found.nodes


def test_the_larger_of_a_tensor_and_itself_is_the_tensor() -> None:
    graph = network(CUBE, "y", node("Max", "x x", "y"))
    assert_same_meaning(graph, MaximaToPools(IMAGES)(graph))


@pytest.mark.parametrize(("inputs", "constant"), [("x c", (4, 5)), ("c x", CUBE), ("x c", (4, 1))])
@pytest.mark.parametrize(("op", "count"), [("Max", 3), ("Min", 5)])
def test_the_larger_of_a_tensor_and_a_constant_is_rectified(
    op: str, count: int, inputs: str, constant: Any
) -> None:
    graph = network(CUBE, "y", node(op, inputs, "y"), c=constant)
    found = MaximaToPools(IMAGES)(graph)
    assert len(found.nodes) == count and "Relu" in operators(found)
    assert_same_meaning(graph, found)


pad_long_averages = PadLongAverages(AverageLimits(positions=64, extent=32, stride=8))


@pytest.mark.parametrize(("shape", "found"), [
    ((1, 3, 1, 61), ["AveragePool", "Conv"]), ((1, 3, 197, 1), ["AveragePool", "Conv"]),
    ((1, 3, 5, 43), ["AveragePool", "Conv", "AveragePool"]),
    ((1, 2, 37, 41), ["AveragePool", "Conv", "AveragePool", "Conv"]),
    ((1, 2, 2, 99), ["AveragePool", "Conv", "AveragePool"]),
    ((1, 2, 1, 2003), ["AveragePool", "AveragePool", "Conv"]),
    ((1, 2, 1, 2000), ["AveragePool", "AveragePool", "Conv"]),
])  # fmt: skip
def test_the_mean_of_pieces_is_that_of_all_elements(shape: tuple[int, ...], found: list[str]) -> None:
    before = network(shape, "y", node("GlobalAveragePool", "x", "y"))
    after = pad_long_averages(before)
    assert operators(after) == found
    for each in after.nodes:
        kernel = each.integers("kernel_shape", after.shape(each.inputs[1])[2:] if each.op == "Conv" else ())
        assert max(kernel) <= (37 if each is after.nodes[-1] else 32)
    assert_same_meaning(before, after)
    assert pad_long_averages(after) is after


@pytest.mark.parametrize(("shape", "attrs"), [
    ((1, 3, 24, 24), {"kernel_shape": (24, 24)}),
    ((1, 3, 64, 64), {"kernel_shape": (64, 64)}),
    ((1, 3, 1, 61), {"kernel_shape": (1, 59)}),
    ((1, 3, 1, 61), {"kernel_shape": (1, 63), "pads": (0, 1, 0, 1)}),
], ids=["small", "equal pieces", "more windows", "padded"])  # fmt: skip
def test_other_averages_stay(shape: tuple[int, ...], attrs: dict[str, Attr]) -> None:
    before = network(shape, "y", node("AveragePool", "x", "y", **attrs))
    assert pad_long_averages(before) is before


split_average_pool = SplitAveragePool()


def pool(op: str, shape: tuple[int, ...], **attrs: Attr) -> Graph:
    return build("pool", [Node(op, ("x",), ("y",), attrs, "n")], {"x": TensorType(shape)}, ["y"], {})


@pytest.mark.parametrize("graph", [
    pool("AveragePool", (1, 3, 25, 5), kernel_shape=(25, 5)),
    pool("AveragePool", (1, 3, 30, 21), kernel_shape=(9, 8), strides=(3, 2)),
    pool("GlobalAveragePool", (1, 2, 11, 13)),
], ids=["whole map", "strided", "global"])  # fmt: skip
def test_two_stages_give_the_same_average(graph: Graph) -> None:
    after = split_average_pool(graph)
    assert [node.op for node in after.nodes] == ["AveragePool", "AveragePool"]
    x = np.random.default_rng(0).standard_normal(graph.shape("x")).astype(np.float32)
    np.testing.assert_allclose(run(after, {"x": x})["y"], run(graph, {"x": x})["y"], rtol=1e-4, atol=1e-6)
    assert split_average_pool(after) is after


@pytest.mark.parametrize(("graph", "stages"), [
    (pool("GlobalAveragePool", (1, 2, 112, 112)), 4),
    (pool("AveragePool", (1, 2, 150, 3), kernel_shape=(150, 1)), 2),
    (pool("AveragePool", (1, 2, 280, 5), kernel_shape=(140, 5), strides=(140, 1)), 2),
    (pool("GlobalAveragePool", (1, 2, 12, 96)), 2),
    (pool("AveragePool", (1, 2, 40, 3), kernel_shape=(20, 1), strides=(20, 1)), 2),
    (pool("AveragePool", (1, 2, 134, 131), kernel_shape=(66, 2), strides=(66, 1)), 2),
], ids=["both axes", "one axis", "two windows", "blocks", "wide stride", "blocks of one axis"])  # fmt: skip
def test_longer_axes_take_as_many_stages_as_are_allowed(graph: Graph, stages: int) -> None:
    after = SplitAveragePool(None)(graph)
    assert [node.op for node in after.nodes] == ["AveragePool"] * stages
    assert all(np.prod(node.integers("kernel_shape")) <= 64 for node in after.nodes)
    assert all(max(node.integers("strides")) <= 15 for node in after.nodes[:-1])
    x = np.random.default_rng(0).standard_normal(graph.shape("x")).astype(np.float32)
    np.testing.assert_allclose(run(after, {"x": x})["y"], run(graph, {"x": x})["y"], rtol=1e-4, atol=1e-6)
    assert (split_average_pool(graph) is graph) == (stages > 2)


def test_blocks_are_no_longer_than_an_average_may_be() -> None:
    graph = pool("GlobalAveragePool", (1, 2, 1, 99))
    after = SplitAveragePool(3, AverageLimits(positions=64, extent=32, stride=8))(graph)
    assert [node.integers("kernel_shape") for node in after.nodes] == [(1, 3), (1, 3), (1, 11)]


@pytest.mark.parametrize("graph", [
    pool("AveragePool", (1, 3, 8, 8), kernel_shape=(8, 8)),
    pool("AveragePool", (1, 3, 12, 12), kernel_shape=(9, 9), pads=(1, 1, 1, 1)),
    pool("AveragePool", (1, 3, 71, 1), kernel_shape=(71, 1)),
], ids=["small", "padded", "a prime"])  # fmt: skip
def test_other_averages_stay_in_split_average_pool(graph: Graph) -> None:
    assert split_average_pool(graph) is graph


def pooled(shape: tuple[int, int], **attrs: Attr) -> Graph:
    return network((1, 2, *shape), "y", node("MaxPool", "x", "y", **attrs))


def assert_small(graph: Graph) -> None:
    for each in graph.nodes:
        window = window_of(each, each.integers("kernel_shape"))
        assert window.reach[0] * window.reach[1] <= 64
        assert max(window.strides) <= 15
        assert max(window.dilations) <= 16


def assert_equal_to(expected: np.ndarray, graph: Graph) -> None:
    np.testing.assert_array_equal(run(graph, feeds(graph))["y"], expected)


@pytest.mark.parametrize(("shape", "attrs", "pools"), [
    ((9, 9), {"kernel_shape": (9, 9)}, 2), ((20, 20), {"kernel_shape": (9, 9), "pads": (4, 4, 4, 4)}, 2),
    ((20, 20), {"kernel_shape": (13, 5), "strides": (3, 2), "pads": (6, 0, 1, 4), "ceil_mode": 1}, 2),
    ((30, 30), {"kernel_shape": (3, 3), "dilations": (4, 5), "strides": (1, 2)}, 2),
    ((100, 3), {"kernel_shape": (100, 3)}, 3), ((140, 1), {"kernel_shape": (67, 1)}, 2),
    ((200, 2), {"kernel_shape": (70, 1), "strides": (35, 1)}, 2),
    ((90, 80), {"kernel_shape": (66, 66), "pads": (1, 0, 2, 3)}, 4),
    ((64, 64), {"kernel_shape": (32, 32), "strides": (32, 32)}, 4),
    ((128, 1), {"kernel_shape": (70, 1), "strides": (20, 1), "pads": (8, 0, 7, 0), "ceil_mode": 1}, 2),
])  # fmt: skip
def test_a_large_window_is_divided_exactly(
    shape: tuple[int, int], attrs: dict[str, Attr], pools: int, onnxruntime_values: Reference
) -> None:
    graph = pooled(shape, **attrs)
    found = split_max_pool(graph)
    assert operators(found) == ["MaxPool"] * pools
    assert_small(found)
    assert_equal_to(onnxruntime_values(to_onnx(graph), feeds(graph))["y"], found)
    assert split_max_pool(found) is found
    assert sources(found, "y") == ("y",)


@pytest.mark.parametrize("shape", [(14, 14), (65, 1), (1, 113), (101, 67), (16, 4), (1, 5000), (9, 9)])
def test_global_maxima_of_any_length_are_divided(shape: tuple[int, int]) -> None:
    graph = network((1, 2, *shape), "y", node("GlobalMaxPool", "x", "y"))
    found = split_max_pool(graph)
    if shape == (16, 4):
        assert found is graph
        return
    assert_small(found)
    assert_equal_to(run(graph, feeds(graph))["y"], found)
    assert split_max_pool(found) is found


def test_rows_come_before_columns() -> None:
    found = split_max_pool(pooled((20, 20), kernel_shape=(9, 11), strides=(2, 3), pads=(1, 2, 3, 4)))
    windows = [{key: each.integers(key) for key in ("kernel_shape", "strides", "pads")} for each in found.nodes]
    assert windows == [
        {"kernel_shape": (9, 1), "strides": (2, 1), "pads": (1, 0, 2, 0)},
        {"kernel_shape": (1, 11), "strides": (1, 3), "pads": (0, 2, 0, 4)},
    ]


@pytest.mark.parametrize("attrs", [
    {"kernel_shape": (8, 8)}, {"kernel_shape": (3, 3), "dilations": (3, 4)}, {"kernel_shape": (140, 1)},
    {"kernel_shape": (3, 1), "dilations": (40, 1)}, {"kernel_shape": (9, 9), "strides": (17, 1)},
])  # fmt: skip
def test_small_windows_and_those_without_a_division_stay(attrs: dict[str, Attr]) -> None:
    graph = pooled((150, 20), **attrs)
    assert split_max_pool(graph) is graph


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(1, 300), st.integers(0, 40), st.integers(0, 30), st.integers(0, 30), st.integers(0, 40))
def test_a_division_has_the_windows_of_the_whole(
    kernel: int, stride: int, begin: int, end: int, more: int
) -> None:
    begin, end = min(begin, kernel - 1), min(end, kernel - 1)
    steps = division(AxisPool(kernel, stride, 1, begin, end))
    if steps is None:
        return
    extent = max(kernel - begin - end, 1) if stride == 0 else kernel + more
    if extent + begin + end < kernel:
        return
    x = [{at} if 0 <= at < extent else set[int]() for at in range(-begin, extent + end)]
    y = x if len(x) == kernel or stride else x[:kernel]
    assert all(step.fits(split_max_pool.limits) for step in steps)
    for number, step in enumerate(steps):
        assert number == 0 or step.begin == step.end == 0
        assert max(step.begin, step.end) < step.kernel
        starts = range(0, len(y) - step.reach + 1, step.stride or 1)
        y = [set[int]().union(*(y[at + k * step.dilation] for k in range(step.kernel))) for at in starts]
    wanted = [set[int]().union(*x[at : at + kernel]) for at in range(0, len(x) - kernel + 1, stride or len(x))]
    assert y == wanted
