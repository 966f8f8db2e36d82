"""split_batch, batch_to_channels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npuc.passes.expansion.batch_to_channels import batch_to_channels
from npuc.passes.expansion.split_batch import SplitBatch
from tests.passes.networks import IMAGES, assert_same_meaning, network, node, operators

BATCH = (2, 3, 8, 8)


def test_a_convolution_on_a_batch_is_one_per_image() -> None:
    graph = network(BATCH, "y", node("Conv", "x w", "y", pads=(1, 1, 1, 1)), w=(4, 3, 3, 3))
    found = SplitBatch(IMAGES)(graph)
    assert operators(found) == ["Slice", "Slice", "Conv", "Conv", "Concat"]
    assert_same_meaning(graph, found)
    assert SplitBatch(IMAGES)(found) is found


def test_slices_and_concat_stand_at_the_border_of_the_network() -> None:
    graph = network(
        BATCH,
        "y",
        node("Relu", "x", "a"),
        node("Conv", "a w", "b", pads=(1, 1, 1, 1), activation="Relu"),
        node("Add", "b a", "c"),
        node("MaxPool", "c", "d", kernel_shape=(2, 2), strides=(2, 2)),
        node("Reshape", "d", "e", shape=(2, 48)),
        node("Gemm", "e v", "f"),
        node("Softmax", "f", "y", axis=1),
        w=(3, 3, 3, 3),
        v=(5, 48),
    )
    found = SplitBatch(IMAGES)(graph)
    once = ["Relu", "Conv+Relu", "Add", "MaxPool", "Reshape", "Gemm"]
    assert operators(found) == ["Slice", "Slice", *(op for op in once for _ in range(2)), "Concat", "Softmax"]
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(("op", "attrs", "shape"), [
    ("Resize", {"mode": "nearest", "sizes": (2, 3, 16, 16), "scales": (1.0, 1.0, 2.0, 2.0)}, (2, 3, 16, 16)),
    ("Slice", {"axes": (1,), "starts": (1,), "ends": (3,), "steps": (1,)}, (2, 2, 8, 8)),
    ("Transpose", {"perm": (0, 1, 3, 2)}, BATCH),
    ("Pad", {"pads": (0, 0, 1, 1, 0, 0, 1, 1)}, (2, 3, 10, 10)),
    ("DepthToSpace", {"blocksize": 1}, BATCH),
])  # fmt: skip
def test_operators_that_treat_samples_apart_are_in_the_region(
    op: str, attrs: dict[str, Any], shape: tuple[int, ...]
) -> None:
    graph = network(BATCH, "y", node(op, "x", "a", **attrs), node("Conv", "a w", "y"), w=(2, shape[1], 3, 3))
    found = SplitBatch(IMAGES)(graph)
    assert operators(found) == ["Slice", "Slice", op, op, "Conv", "Conv", "Concat"]
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(("op", "attrs"), [
    ("Slice", {"axes": (0,), "starts": (1,), "ends": (3,), "steps": (1,)}),
    ("Transpose", {"perm": (1, 0, 2, 3)}),
    ("Concat", {"axis": 0}),
])  # fmt: skip
def test_operators_that_mix_samples_end_the_region(op: str, attrs: dict[str, Any]) -> None:
    graph = network((3, 3, 8, 8), "y", node("Conv", "x w", "a"), node(op, "a", "y", **attrs), w=(4, 3, 3, 3))
    found = SplitBatch(IMAGES)(graph)
    assert operators(found)[-2:] == ["Concat", op]
    assert_same_meaning(graph, found)


def test_a_tensor_that_is_read_outside_too_is_put_together() -> None:
    graph = network(BATCH, "y a", node("Conv", "x w", "a"), node("ReduceMax", "a", "y", axes=(0,)), w=(4, 3, 3, 3))
    found = SplitBatch(IMAGES)(graph)
    assert operators(found).count("Concat") == 1
    assert_same_meaning(graph, found)


STACKED = SplitBatch(IMAGES, most_lines=8)
FEATURES = node("Conv", "x w", "a", pads=(1, 1, 1, 1))
FLAT = (node("Reshape", "a", "r", shape=(2, 256)), node("Gemm", "r v b", "g", activation="Relu"))
WEIGHTS: dict[str, Any] = {"w": (4, 3, 3, 3), "v": (5, 256), "b": (5,), "u": (6, 5)}


def test_fully_connected_layers_take_all_samples_at_once() -> None:
    graph = network(BATCH, "y", FEATURES, *FLAT, node("Tanh", "g", "t"), node("Gemm", "t u", "y"), **WEIGHTS)
    found = STACKED(graph)
    at_once = ["Concat", "Conv+Relu", "Tanh", "Conv", "Transpose", "Reshape"]
    assert operators(found) == ["Slice", "Slice", "Conv", "Conv", *at_once]
    joined, layer, _, last = found.nodes[4:8]
    assert found.shape(joined.output) == (1, 4, 16, 8)
    assert (layer.integers("strides"), last.integers("strides")) == ((8, 1), (1, 1))
    assert_same_meaning(graph, found)
    assert STACKED(found) is found


@pytest.mark.parametrize(("behind", "count"), [
    ((node("Slice", "g", "y", axes=(1,), starts=(1,), ends=(3,), steps=(1,)),), 2 + 2 + 2),
    ((node("Add", "g row", "y"),), 2),
    ((node("Reshape", "g", "p", shape=(2, 5, 1, 1)), node("Conv", "p k", "y")), 2 + 1 + 1),
    ((node("Mul", "g two", "h"), node("Add", "g h", "y")), 1),
])  # fmt: skip
def test_what_reads_stacked_samples_is_computed_at_once_or_one_by_one(behind: tuple[Any, ...], count: int) -> None:
    constants = {"row": (1, 5), "k": (2, 5, 1, 1), "two": np.float32(2)}
    graph = network(BATCH, "y g", FEATURES, *FLAT, *behind, **WEIGHTS, **constants)
    found = STACKED(graph)
    assert [each.op for each in found.nodes].count(behind[-1].op) == count
    assert_same_meaning(graph, found)


@pytest.mark.parametrize("kernel", [(2, 4, 8, 8), (2, 4, 8, 1), (2, 4, 7, 8)])
def test_a_convolution_that_covers_its_map_is_a_fully_connected_layer(kernel: tuple[int, ...]) -> None:
    graph = network(BATCH, "y", FEATURES, node("Conv", "a k", "y"), w=(4, 3, 3, 3), k=kernel)
    found = STACKED(graph)
    assert operators(found).count("Conv") == (3 if kernel[2:] == (8, 8) else 4)
    assert_same_meaning(graph, found)


def test_a_row_that_was_no_map_is_stacked_as_pixels() -> None:
    layers = node("Reshape", "a", "r", shape=(2, 256)), node("Relu", "r", "q"), node("Gemm", "q v", "y")
    graph = network(BATCH, "y", FEATURES, *layers, w=(4, 3, 3, 3), v=(5, 256))
    found = STACKED(graph)
    assert operators(found).count("Conv") == 3
    assert_same_meaning(graph, found)


def test_a_map_of_many_lines_is_not_stacked() -> None:
    graph = network(BATCH, "y", FEATURES, *FLAT, node("Tanh", "g", "y"), **WEIGHTS)
    found = SplitBatch(IMAGES, most_lines=7)(graph)
    assert operators(found).count("Gemm+Relu") == 2
    assert_same_meaning(graph, found)


@pytest.mark.parametrize("shape", [(1, 3, 8, 8), (65, 3, 4, 4)])
def test_one_image_and_a_large_batch_stay(shape: tuple[int, ...]) -> None:
    graph = network(shape, "y", node("Conv", "x w", "y"), w=(4, 3, 3, 3))
    assert SplitBatch(IMAGES)(graph) is graph


@pytest.mark.parametrize("layer", [
    node("MaxPool", "x", "y", kernel_shape=(2, 2)),
    node("AveragePool", "x", "y", kernel_shape=(2, 2), pads=(1, 1, 0, 0)),
    node("GlobalAveragePool", "x", "y"),
    node("Conv", "x w b", "y", group=3),
])  # fmt: skip
def test_what_treats_channels_apart_takes_samples_as_channels(layer: Any) -> None:
    graph = network(BATCH, "y", layer, w=(3, 1, 2, 2), b=(3,))
    assert SplitBatch(IMAGES)(graph) is graph
    found = batch_to_channels(graph)
    assert operators(found) == ["Reshape", layer.op, "Reshape"]
    assert found.shape(found.nodes[1].output)[:2] == (1, 6)
    assert_same_meaning(graph, found)
    assert batch_to_channels(found).nodes == found.nodes


def test_pooling_in_a_row_shares_the_image() -> None:
    pools = [node("MaxPool", x, y, kernel_shape=(2, 2)) for x, y in ("xa", "ay")]
    found = batch_to_channels(network(BATCH, "y", *pools))
    assert operators(found) == ["Reshape", "MaxPool", "MaxPool", "Reshape"]


def test_a_dense_convolution_does_not_take_samples_as_channels() -> None:
    graph = network(BATCH, "y", node("Conv", "x w", "y"), w=(3, 3, 2, 2))
    assert batch_to_channels(graph) is graph


@pytest.mark.parametrize("op", ["MaxPool", "Conv"])
def test_no_samples_are_no_channels(op: str) -> None:
    layer = node(
        op, "x w" if op == "Conv" else "x", "y", kernel_shape=(2, 2), **({"group": 3} if op == "Conv" else {})
    )
    graph = network((0, 3, 6, 7), "y", layer, w=(3, 1, 2, 2))
    assert batch_to_channels(graph) is graph
