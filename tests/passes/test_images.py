"""Tensors of any rank and extent as images."""

from __future__ import annotations

from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuc.ir import Graph, Node, TensorType
from npuc.ops import build
from npuc.ops.interpreter import run
from npuc.passes.expansion import volumes_to_images as module
from npuc.passes.expansion.as_images import AsImages
from npuc.passes.expansion.fold_extents import FoldExtents
from npuc.passes.expansion.products import GemmToConv
from npuc.passes.expansion.volumes_to_images import volumes_to_images
from npuc.targets.nvdla.machine.parameters import MOST_EXTENT
from npuc.targets.nvdla.network.passes import rows_to_maps
from tests.passes.networks import IMAGES, assert_same_meaning, becomes, network, node, operators

CUBE = (3, 4, 5)


@given(st.integers(min_value=1, max_value=100_000))
@settings(deadline=None, derandomize=True)
def test_an_image_holds_every_element_in_at_most_256_channels(elements: int) -> None:
    batch, channels, height, width = IMAGES.image_shape(elements)
    assert batch == 1 and channels <= 256 and height <= width
    assert prod(IMAGES.image_shape(elements)) == elements


@pytest.mark.parametrize("shape", [(3,), (), CUBE, (2, 3, 4, 5), (1, 2, 3, 4, 5), (7, 5), (1, 4, 6), (257,)])
@pytest.mark.parametrize("op", ["Relu", "Sigmoid"])
def test_a_function_computes_on_an_image(op: str, shape: tuple[int, ...]) -> None:
    found = becomes(AsImages(IMAGES), network(shape, "y", node(op, "x", "y")), ["Reshape", op, "Reshape"])
    assert len(found.shape(found.nodes[1].output)) == 4


@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (1, 7)])
def test_a_function_of_an_image_stays(shape: tuple[int, ...]) -> None:
    graph = network(shape, "y", node("Relu", "x", "y"))
    assert AsImages(IMAGES)(graph) is graph


def test_functions_in_a_row_share_an_image() -> None:
    graph = network(CUBE, "y", node("Relu", "x", "a"), node("Tanh", "a", "y"))
    becomes(AsImages(IMAGES), graph, ["Reshape", "Relu", "Tanh", "Reshape"])


def test_the_image_that_a_reader_makes_is_taken() -> None:
    graph = network((6, 10), "y", node("Relu", "x", "a"), node("Reshape", "a", "y", shape=(1, 4, 3, 5)))
    assert operators(AsImages(IMAGES)(graph)) == ["Reshape", "Relu"]


CONSTANTS: tuple[tuple[str, Any], ...] = (
    ("x c", (5,)), ("x c", (4, 1)), ("x c", CUBE), ("c x", (3, 1, 5)), ("c x", 2.0), ("x c", (1,)),
)  # fmt: skip


@pytest.mark.parametrize(("inputs", "constant"), CONSTANTS)
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_arithmetic_with_a_constant_is_a_depthwise_convolution(op: str, inputs: str, constant: Any) -> None:
    graph = network(CUBE, "y", node(op, inputs, "y"), c=constant)
    found = AsImages(IMAGES)(graph)
    assert operators(found) == ["Reshape", "Conv", "Reshape"]
    conv = found.nodes[1]
    assert conv.integer("group") == found.shape(conv.output)[1]
    assert_same_meaning(graph, found)


def test_division_by_a_constant_is_multiplication() -> None:
    becomes(AsImages(IMAGES), network(CUBE, "y", node("Div", "x c", "y"), c=(5,)), ["Reshape", "Conv", "Reshape"])


@pytest.mark.parametrize(("inputs", "constant"), [("c x", 2.0), ("x c", 0.0)])
def test_division_by_a_tensor_or_by_zero_stays(inputs: str, constant: float) -> None:
    graph = network(CUBE, "y", node("Div", inputs, "y"), c=constant)
    assert AsImages(IMAGES)(graph) is graph


def test_a_fused_activation_goes_with_the_convolution() -> None:
    graph = network(CUBE, "y", node("Add", "x c", "y", activation="Clip", min=0.0, max=1.0), c=CUBE)
    becomes(AsImages(IMAGES), graph, ["Reshape", "Conv+Clip", "Reshape"])


def test_axes_are_moved_where_repeated_parameters_would_be_many() -> None:
    graph = network((300, 40, 5), "y", node("Mul", "x c", "y"), c=(5,))
    found = becomes(AsImages(IMAGES), graph, ["Transpose", "Reshape", "Conv", "Reshape", "Transpose"])
    assert found.shape(found.nodes[2].output)[1] == 5


@pytest.mark.parametrize("shape", [(2, 4, 5, 5), (2, 4), (3, 4, 6)])
def test_batch_normalisation_of_a_batch_has_a_channel_per_sample_and_channel(shape: tuple[int, ...]) -> None:
    parameters: dict[str, Any] = dict.fromkeys(("s", "b", "m", "v"), (4,))
    graph = network(shape, "y", node("BatchNormalization", "x s b m v", "y"), **parameters)
    found = AsImages(IMAGES)(graph)
    conv = next(each for each in found.nodes if each.op == "Conv")
    assert found.shape(conv.output)[:2] == (1, shape[0] * 4)
    assert_same_meaning(graph, found)


@pytest.mark.parametrize("slope", [(5,), (4, 1), CUBE, 0.25, (1,)])
def test_prelu_has_a_slope_per_channel_or_one(slope: Any) -> None:
    graph = network(CUBE, "y", node("PRelu", "x c", "y"), c=slope)
    becomes(AsImages(IMAGES), graph, ["Reshape", "PRelu", "Reshape"])


def test_prelu_of_nothing_stays() -> None:
    graph = network((0, 4, 2), "y", node("PRelu", "x c", "y"), c=(0, 1, 1))
    assert AsImages(IMAGES)(graph) is graph


@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_two_tensors_of_one_shape_are_two_images(op: str) -> None:
    graph = network(CUBE, "y", node("Tanh", "x", "a"), node(op, "x a", "y"))
    becomes(AsImages(IMAGES), graph, ["Reshape", "Tanh", op, "Reshape"])


def _reduced(axes: tuple[int, ...], keepdims: int, output: str) -> Node:
    return node("ReduceMax", "x", output, axes=axes, keepdims=keepdims)


@pytest.mark.parametrize(("shape", "axes", "keepdims"), [
    (CUBE, (0,), 0), (CUBE, (1,), 1), (CUBE, (0, 2), 1), (CUBE, (0, 1, 2), 0), ((1, 4, 5, 6), (1,), 1),
])  # fmt: skip
@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_a_repeated_operand_has_a_pixel_per_channel(
    op: str, shape: tuple[int, ...], axes: tuple[int, ...], keepdims: int
) -> None:
    graph = network(shape, "y", _reduced(axes, keepdims, "a"), node(op, "a x", "y"))
    found = AsImages(IMAGES)(graph)
    pair = next(each for each in found.nodes if each.op == op)
    small, large = (found.shape(name) for name in pair.inputs)
    assert small == (*large[:2], 1, 1) and large[0] == 1
    assert_same_meaning(graph, found)


def test_an_operand_that_repeats_rows_of_an_image_stays() -> None:
    graph = network((1, 4, 5, 6), "y", _reduced((2,), 1, "a"), node("Add", "x a", "y"))
    assert AsImages(IMAGES)(graph) is graph


def test_operands_that_repeat_each_other_are_expanded_first() -> None:
    graph = network(CUBE, "y", _reduced((0,), 1, "a"), _reduced((1,), 1, "b"), node("Mul", "a b", "y"))
    found = AsImages(IMAGES)(graph)
    assert "Expand" in operators(found)
    assert_same_meaning(graph, found)


@pytest.mark.parametrize("limit", [(1, 1, 5, 1), (5, 6), (1, 4, 1, 6)])
def test_limits_along_other_axes_than_channels_become_limits_per_element(limit: tuple[int, ...]) -> None:
    graph = network((1, 4, 5, 6), "y", node("Min", "c x", "y"), c=limit)
    found = AsImages(IMAGES)(graph)
    assert [found.shape(name) for name in found.nodes[0].inputs] == [(1, 4, 5, 6)] * 2
    assert_same_meaning(graph, found)
    assert AsImages(IMAGES)(found) is found


@pytest.mark.parametrize("limit", [(1,), (4, 1), (2, 3, 4, 5)])
def test_limits_of_what_is_no_image(limit: tuple[int, ...]) -> None:
    graph = network((2, 3, 4, 5), "y", node("Max", "x c", "y"), c=limit)
    becomes(AsImages(IMAGES), graph, ["Reshape", "Max", "Reshape"])


def test_limits_per_channel_stay() -> None:
    graph = network((1, 4, 5, 6), "y", node("Max", "x c", "y"), c=(4, 1, 1))
    assert AsImages(IMAGES)(graph) is graph


def test_a_difference_becomes_a_sum() -> None:
    graph = network(CUBE, "y", node("Tanh", "x", "a"), node("Sub", "x a", "y"))
    becomes(AsImages(IMAGES), graph, ["Reshape", "Tanh", "Neg", "Add", "Reshape"])


@pytest.mark.parametrize(
    "between",
    [
        node("Tanh", "a", "b"), node("Clip", "a", "b", min=-0.5, max=0.5), node("Max", "a n", "b"),
        node("PRelu", "a slope", "b"), node("Mul", "a a", "b"), node("Add", "a a", "b", activation="Relu"),
    ],
    ids=lambda each: each.op,
)  # fmt: skip
def test_what_stands_between_fully_connected_layers_needs_no_movement(between: Node) -> None:
    constants = {"w": (5, 6), "v": (3, 5), "n": 0.25, "slope": (5,)}
    given = {name: value for name, value in constants.items() if name in "wv" or name in between.inputs}
    before = GemmToConv(IMAGES)(
        network((1, 6), "y", node("Gemm", "x w", "a"), between, node("Gemm", "b v", "y"), **given)
    )
    after = rows_to_maps(before)
    fused = f"{between.op}+Relu" if between.text("activation") else between.op
    assert operators(after) == ["Reshape", "Conv", fused, "Conv", "Reshape"]
    assert_same_meaning(before, after)
    assert rows_to_maps(after) is after


@pytest.mark.parametrize("op", ["Sub", "Min", "Add"])
def test_two_rows_become_two_maps(op: str) -> None:
    before = network((1, 7), "y", node("Neg", "x", "a"), node(op, "a x", "y"))
    after = becomes(rows_to_maps, before, ["Reshape", "Neg", op, "Reshape"])
    assert all(after.shape(name) == (1, 7, 1, 1) for each in after.nodes[1:3] for name in each.inputs)


def test_a_row_of_more_elements_than_a_map_has_channels_is_folded() -> None:
    before = network((1, MOST_EXTENT + 8), "y", node("Relu", "x", "y"))
    after = rows_to_maps(before)
    assert max(after.shape(after.nodes[1].output)) <= MOST_EXTENT
    assert_same_meaning(before, after)


@pytest.mark.parametrize(("shape", "nodes"), [
    ((1, 6, 2, 2), [node("Relu", "x", "y")]),
    ((2, 6), [node("Relu", "x", "y")]),
    ((1, 6), [node("Softmax", "x", "y", axis=1)]),
    ((1, 6), [node("ReduceMax", "x", "a", axes=(1,), keepdims=1), node("Mul", "x a", "y")]),
], ids=["a map", "two rows", "no function of one element", "a row and a number"])  # fmt: skip
def test_what_is_no_elementwise_operator_on_rows_stays(shape: tuple[int, ...], nodes: list[Node]) -> None:
    before = network(shape, "y", *nodes)
    assert rows_to_maps(before) is before


WINDOW: dict[str, Any] = {
    "kernel_shape": (3, 2, 3), "strides": (2, 1, 2), "pads": (1, 0, 2, 2, 1, 1), "dilations": (1, 2, 1)
}  # fmt: skip


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize(("op", "more"), [
    ("MaxPool", {}), ("AveragePool", {"count_include_pad": 0}), ("AveragePool", {"count_include_pad": 1}),
])  # fmt: skip
def test_pooling_goes_over_the_planes_and_then_over_the_depth(
    op: str, more: dict[str, Any], ceil_mode: int
) -> None:
    graph = network((2, 3, 7, 8, 9), "y", node(op, "x", "y", **WINDOW, **more, ceil_mode=ceil_mode))
    becomes(volumes_to_images, graph, ["Reshape", op, "Reshape", op, "Reshape"])


def test_a_window_without_depth_leaves_one_pooling() -> None:
    graph = network((1, 3, 4, 8, 8), "y", node("MaxPool", "x", "y", kernel_shape=(1, 2, 2)))
    assert operators(volumes_to_images(graph)) == ["Reshape", "MaxPool", "Reshape"]


@pytest.mark.parametrize("op", ["GlobalMaxPool", "GlobalAveragePool"])
def test_global_pooling_of_a_volume_is_that_of_an_image(op: str) -> None:
    becomes(volumes_to_images, network((2, 3, 4, 5, 6), "y", node(op, "x", "y")), ["Reshape", op, "Reshape"])


CONV: dict[str, Any] = {"strides": (2, 1, 2), "pads": (1, 0, 2, 2, 1, 1), "dilations": (2, 1, 1)}


@pytest.mark.parametrize(("op", "attrs", "w", "b"), [
    ("Conv", {**CONV, "activation": "Relu"}, (6, 4, 3, 2, 3), (6,)),
    ("Conv", {"group": 2}, (6, 2, 3, 2, 3), None),
    ("Conv", {"group": 4}, (4, 1, 3, 2, 3), (4,)),
    ("ConvTranspose", {**CONV, "output_padding": (1, 0, 1)}, (4, 3, 3, 2, 3), (3,)),
    ("ConvTranspose", {"group": 2, "strides": (2, 2, 2)}, (4, 3, 2, 2, 2), None),
])  # fmt: skip
def test_a_convolution_has_the_depth_in_its_channels(op: str, attrs: dict[str, Any], w: Any, b: Any) -> None:
    inputs = "x w b" if b else "x w"
    constants = {"w": w, "b": b} if b else {"w": w}
    graph = network((2, 4, 5, 6, 7), "y", node(op, inputs, "y", **attrs), **constants)
    found = volumes_to_images(graph)
    assert [each.split("+")[0] for each in operators(found)] == ["Reshape", op, "Reshape"]
    assert len(found.shape(found.nodes[1].inputs[1])) == 4
    assert_same_meaning(graph, found)
    assert volumes_to_images(found).nodes == found.nodes


def test_a_convolution_whose_kernel_would_be_too_large_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network((1, 4, 5, 6, 7), "y", node("Conv", "x w", "y"), w=(6, 4, 3, 2, 3))
    monkeypatch.setattr(module, "MOST_WEIGHTS", 1000)
    assert volumes_to_images(graph) is graph


fold_extents = FoldExtents(64)


def conv(shape: tuple[int, ...], kernel: tuple[int, int] = (1, 1), group: int = 1, **attrs: Any) -> Graph:
    w = np.random.default_rng(0).normal(0.1, 1, (4, shape[1] // group, *kernel)).astype(np.float32)
    node = Node("Conv", ("x", "w"), ("y",), {"activation": "Relu", "group": group, **attrs}, "n", ("n",))
    return build("g", [node], {"x": TensorType(shape)}, ["y"], {"w": w})


def pair(op: str, left: tuple[int, ...], right: tuple[int, ...]) -> Graph:
    node = Node(op, ("x", "z"), ("y",), {}, "n", ("n",))
    return build("g", [node], {"x": TensorType(left), "z": TensorType(right)}, ["y"], {})


def function(op: str, shape: tuple[int, ...]) -> Graph:
    return build("g", [Node(op, ("x",), ("y",), {}, "n", ("n",))], {"x": TensorType(shape)}, ["y"], {})


def normalisation(shape: tuple[int, ...]) -> Graph:
    scale = np.random.default_rng(0).uniform(0.5, 2, (2, shape[1])).astype(np.float32)
    node = Node("InstanceNormalization", ("x", "s", "b"), ("y",), {}, "n", ("n",))
    return build("g", [node], {"x": TensorType(shape)}, ["y"], {"s": scale[0], "b": scale[1]})


@pytest.mark.parametrize(("before", "folded"), [
    (normalisation((1, 4, 1, 100)), (10, 10)), (normalisation((1, 4, 8, 8)), None), (conv((1, 4, 1, 65)), (5, 13)),
    (conv((1, 4, 4, 100)), (20, 20)), (conv((2, 4, 90, 1)), (9, 10)), (conv((1, 4, 65, 65)), None),
    (conv((1, 4, 1, 64 * 64), group=4), (64, 64)), (conv((1, 4, 1, 64)), None), (conv((1, 4, 1, 67)), None),
    (conv((1, 4, 1, 64 * 65)), None), (conv((1, 4, 1, 100), (1, 2)), None),
    (conv((1, 4, 1, 100), strides=(1, 2)), None), (conv((1, 4, 1, 100), pads=(0, 0, 0, 1)), None),
    (function("Sigmoid", (1, 4, 2, 100)), (10, 20)), (function("Sigmoid", (1, 4, 100)), None),
    (function("Sigmoid", (1, 4, 0, 100)), None), (pair("Mul", (1, 4, 1, 100), (1, 4, 1, 100)), (10, 10)),
    (pair("Add", (1, 4, 1, 100), (1, 4, 1, 1)), None),
])  # fmt: skip
def test_a_map_is_folded_where_pixels_do_not_meet(before: Graph, folded: tuple[int, int] | None) -> None:
    after = fold_extents(before)
    if folded is None:
        assert after is before
        return
    assert [node.op for node in after.nodes if node.op != "Reshape"] == [before.nodes[0].op]
    (inner,) = (node for node in after.nodes if node.op != "Reshape")
    assert after.shape(inner.output)[2:] == folded
    random = np.random.default_rng(1)
    feeds = {name: random.normal(0.3, 1, before.shape(name)).astype(np.float32) for name in before.inputs}
    np.testing.assert_array_equal(run(after, feeds)["y"], run(before, feeds)["y"])
    assert fold_extents(after) is after


def test_maps_of_a_chain_stay_folded() -> None:
    w = np.random.default_rng(0).normal(0.1, 1, (4, 4, 1, 1)).astype(np.float32)
    nodes = [
        Node("Conv", ("x", "w"), ("a",), {}, "m", ("m",)),
        Node("Sigmoid", ("a",), ("b",), {}, "n", ("n",)),
        Node("Mul", ("a", "b"), ("y",), {}, "o", ("o",)),
    ]
    after = fold_extents(build("g", nodes, {"x": TensorType((1, 4, 1, 100))}, ["y"], {"w": w}))
    assert [node.op for node in after.nodes] == ["Reshape", "Conv", "Sigmoid", "Mul", "Reshape"]
