"""as_images, and what the images of tensors are."""

from __future__ import annotations

from math import prod
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuc.ir import Node
from npuc.passes.expansion.as_images import AsImages
from tests.passes.networks import IMAGES, assert_same_meaning, network, node, operators

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
    graph = network(shape, "y", node(op, "x", "y"))
    found = AsImages(IMAGES)(graph)
    assert operators(found) == ["Reshape", op, "Reshape"]
    assert len(found.shape(found.nodes[1].output)) == 4
    assert_same_meaning(graph, found)
    assert AsImages(IMAGES)(found).nodes == found.nodes


@pytest.mark.parametrize("shape", [(1, 3, 4, 5), (1, 7)])
def test_a_function_of_an_image_stays(shape: tuple[int, ...]) -> None:
    graph = network(shape, "y", node("Relu", "x", "y"))
    assert AsImages(IMAGES)(graph) is graph


def test_functions_in_a_row_share_an_image() -> None:
    graph = network(CUBE, "y", node("Relu", "x", "a"), node("Tanh", "a", "y"))
    found = AsImages(IMAGES)(graph)
    assert operators(found) == ["Reshape", "Relu", "Tanh", "Reshape"]
    assert_same_meaning(graph, found)


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
    graph = network(CUBE, "y", node("Div", "x c", "y"), c=(5,))
    found = AsImages(IMAGES)(graph)
    assert operators(found) == ["Reshape", "Conv", "Reshape"]
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(("inputs", "constant"), [("c x", 2.0), ("x c", 0.0)])
def test_division_by_a_tensor_or_by_zero_stays(inputs: str, constant: float) -> None:
    graph = network(CUBE, "y", node("Div", inputs, "y"), c=constant)
    assert AsImages(IMAGES)(graph) is graph


def test_a_fused_activation_goes_with_the_convolution() -> None:
    graph = network(CUBE, "y", node("Add", "x c", "y", activation="Clip", min=0.0, max=1.0), c=CUBE)
    found = AsImages(IMAGES)(graph)
    assert operators(found) == ["Reshape", "Conv+Clip", "Reshape"]
    assert_same_meaning(graph, found)


def test_axes_are_moved_where_repeated_parameters_would_be_many() -> None:
    graph = network((300, 40, 5), "y", node("Mul", "x c", "y"), c=(5,))
    found = AsImages(IMAGES)(graph)
    assert operators(found) == ["Transpose", "Reshape", "Conv", "Reshape", "Transpose"]
    assert found.shape(found.nodes[2].output)[1] == 5
    assert_same_meaning(graph, found)


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
    found = AsImages(IMAGES)(graph)
    assert operators(found) == ["Reshape", "PRelu", "Reshape"]
    assert_same_meaning(graph, found)


def test_prelu_of_nothing_stays() -> None:
    graph = network((0, 4, 2), "y", node("PRelu", "x c", "y"), c=(0, 1, 1))
    assert AsImages(IMAGES)(graph) is graph


@pytest.mark.parametrize("op", ["Add", "Mul"])
def test_two_tensors_of_one_shape_are_two_images(op: str) -> None:
    graph = network(CUBE, "y", node("Tanh", "x", "a"), node(op, "x a", "y"))
    found = AsImages(IMAGES)(graph)
    assert operators(found) == ["Reshape", "Tanh", op, "Reshape"]
    assert_same_meaning(graph, found)


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
    found = AsImages(IMAGES)(graph)
    assert operators(found) == ["Reshape", "Max", "Reshape"]
    assert_same_meaning(graph, found)


def test_limits_per_channel_stay() -> None:
    graph = network((1, 4, 5, 6), "y", node("Max", "x c", "y"), c=(4, 1, 1))
    assert AsImages(IMAGES)(graph) is graph


def test_a_difference_becomes_a_sum() -> None:
    graph = network(CUBE, "y", node("Tanh", "x", "a"), node("Sub", "x a", "y"))
    found = AsImages(IMAGES)(graph)
    assert operators(found) == ["Reshape", "Tanh", "Neg", "Add", "Reshape"]
    assert_same_meaning(graph, found)
    assert AsImages(IMAGES)(found).nodes == found.nodes
