"""Operators as several: permuted channels, batches, powers, slopes, differences."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from npuc.ir import Array, Graph, Node, TensorType
from npuc.ops import build
from npuc.ops.interpreter import run
from npuc.passes.expansion.batches import SplitBatch, batch_to_channels
from npuc.passes.expansion.functions import expand_powers, expand_prelu
from npuc.passes.expansion.moves_to_convs import PermuteChannelsByConv
from npuc.reference import graph_session
from npuc.targets.easynpu.network.passes import expand_groups, subtract_by_adding
from tests.passes.networks import IMAGES, assert_same_meaning, becomes, network, node, operators, sources

permute_channels_by_conv = PermuteChannelsByConv(16)


def shuffle(x: str, y: str, groups: int, channels: int, height: int = 3, width: int = 4) -> tuple[Node, ...]:
    """Channel c moves from group c // n to place c % n, n = channels / groups."""
    split = (1, groups, channels // groups, height, width)
    return (
        node("Reshape", x, f"{y}r", shape=split),
        node("Transpose", f"{y}r", f"{y}t", perm=(0, 2, 1, 3, 4)),
        node("Reshape", f"{y}t", y, shape=(1, channels, height, width)),
    )


def cut(x: str, y: str, start: int, end: int) -> Node:
    return node("Slice", x, y, axes=(1,), starts=(start,), ends=(end,), steps=(1,))


def assert_rewritten(graph: Graph, *expected: str) -> Graph:
    found = permute_channels_by_conv(graph)
    assert sorted(operators(found)) == sorted(expected)
    assert_same_meaning(graph, found)
    assert permute_channels_by_conv(found) is found
    return found


def test_a_shuffle_between_functions_is_a_convolution_with_a_permutation() -> None:
    graph = network((1, 6, 3, 4), "y", node("Relu", "x", "a"), *shuffle("a", "b", 2, 6), node("Sigmoid", "b", "y"))
    found = assert_rewritten(graph, "Relu", "Conv", "Sigmoid")
    weight = found.constants[found.nodes[1].inputs[1]][:, :, 0, 0]
    assert weight.argmax(axis=1).tolist() == [0, 3, 1, 4, 2, 5]
    assert weight.sum() == 6
    assert sources(found, "b") == ("br", "bt", "b")


def test_a_convolution_that_only_the_shuffle_reads_gives_the_channels_in_its_order() -> None:
    conv = node("Conv", "x w k", "a", activation="Relu", kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    graph = network(
        (1, 2, 3, 4), "y", conv, *shuffle("a", "b", 3, 6), node("Abs", "b", "y"), w=(6, 2, 3, 3), k=(6,)
    )
    found = assert_rewritten(graph, "Conv+Relu", "Abs")
    assert np.array_equal(found.constants[found.nodes[0].inputs[2]], graph.constants["k"][[0, 2, 4, 1, 3, 5]])
    assert sources(found, "b") == ("a", "br", "bt", "b")


def test_a_convolution_behind_the_shuffle_reads_the_channels_where_they_are() -> None:
    conv = node("Conv", "b w", "y", kernel_shape=(3, 3), pads=(1, 1, 1, 1))
    graph = network((1, 6, 3, 4), "y", node("Relu", "x", "a"), *shuffle("a", "b", 3, 6), conv, w=(2, 6, 3, 3))
    found = assert_rewritten(graph, "Relu", "Conv")
    assert sources(found, "y") == ("br", "bt", "b", "y")


def test_depthwise_and_grouped_convolutions_do_not_take_a_shuffle() -> None:
    before = node("Conv", "x w", "a", group=2)
    after = node("Conv", "b v", "y", group=4)
    graph = network((1, 4, 3, 4), "y", before, *shuffle("a", "b", 2, 4), after, w=(4, 2, 1, 1), v=(4, 1, 1, 1))
    assert_rewritten(graph, "Conv", "Conv", "Conv")


@pytest.mark.parametrize(("kernel", "convs"), [(1, 2), (2, 3), (3, 3)])
def test_a_convolution_in_blocks_takes_a_shuffle_only_with_one_tap(kernel: int, convs: int) -> None:
    """Another order fills the blocks: with 4 taps that costs more than a convolution that permutes."""
    conv = node("Conv", "x w", "a", group=2)
    after = node("Conv", "b v", "y", group=4)
    height, width = 4 - kernel, 5 - kernel
    graph = network((1, 4, 3, 4), "y", conv, *shuffle("a", "b", 2, 4, height, width), after,
        w=(4, 2, kernel, kernel), v=(4, 1, 1, 1))  # fmt: skip
    found = permute_channels_by_conv(expand_groups(graph))
    assert operators(found) == ["Conv"] * convs
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(("outputs", "reader"), [("y", node("Mul", "c d", "y")), ("y d", node("Abs", "c", "y"))])
def test_a_shuffle_before_an_aligned_split_is_two_selections(outputs: str, reader: Node) -> None:
    split = *shuffle("a", "b", 2, 32), node("Split", "b", "c d", axis=1, split=(16, 16))
    graph = network((1, 32, 3, 4), outputs, node("Relu", "x", "a"), *split, reader)
    assert_rewritten(graph, "Relu", "Conv", "Conv", reader.op)


def test_a_unit_of_shufflenet_moves_no_data() -> None:
    """Split -> (identity, Conv) -> Concat -> shuffle -> Split -> ..: 10 channels, halves of 5."""
    graph = network((1, 10, 3, 4), "y", node("Relu", "x", "a"), node("Split", "a", "b c", axis=1, split=(5, 5)),
        node("Conv", "c w", "d", activation="Relu"), node("Concat", "b d", "e", axis=1), *shuffle("e", "f", 2, 10),
        node("Split", "f", "g h", axis=1, split=(5, 5)), node("Conv", "h v", "i"),
        node("Concat", "g i", "j", axis=1), node("Abs", "j", "y"), w=(5, 5, 1, 1), v=(5, 5, 1, 1))  # fmt: skip
    found = permute_channels_by_conv(graph)
    assert {"Reshape", "Transpose", "Split"}.isdisjoint(operators(found))
    assert operators(found).count("Slice") == 1  # the first half begins with a word
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(
    ("start", "end", "expected"), [(16, 20, ["Relu", "Slice", "Abs"]), (15, 20, ["Relu", "Conv", "Abs"])]
)
def test_a_slice_from_the_start_of_a_word_stays_and_others_select(
    start: int, end: int, expected: list[str]
) -> None:
    moved = replace(cut("a", "b", start, end), name="cut")
    graph = network((1, 32, 3, 4), "y", node("Relu", "x", "a"), moved, node("Abs", "b", "y"))
    assert assert_rewritten(graph, *expected).nodes[1].name == "cut"


def test_reversed_channels_of_an_image_become_weights() -> None:
    flip = node("Gather", "x i", "b", axis=1)
    graph = network((1, 3, 3, 4), "y", flip, node("Conv", "b w", "y"), w=(2, 3, 1, 1), i=np.array([2, 1, 0]))
    found = assert_rewritten(graph, "Conv")
    assert np.array_equal(found.constants[found.nodes[0].inputs[1]], graph.constants["w"][:, ::-1])


def test_few_channels_of_many_are_selected_once_for_a_large_kernel() -> None:
    conv = node("Conv", "b w", "y", kernel_shape=(3, 3))
    graph = network((1, 64, 3, 4), "y", node("Relu", "x", "a"), cut("a", "b", 3, 11), conv, w=(16, 8, 3, 3))
    assert_rewritten(graph, "Relu", "Conv", "Conv")


def test_a_channel_taken_twice_is_weighted_by_the_sum() -> None:
    twice = node("Gather", "x i", "b", axis=1)
    graph = network((1, 3, 3, 4), "y", twice, node("Conv", "b w", "y"), w=(2, 4, 1, 1), i=np.array([2, 1, 2, 0]))
    assert_rewritten(graph, "Conv")


@pytest.mark.parametrize("moves", [
    (node("Transpose", "a", "b", perm=(0, 1, 3, 2)),),
    (node("Slice", "a", "b", axes=(2,), starts=(1,), ends=(3,), steps=(1,)),),
    (node("Reshape", "a", "c", shape=(1, 2, 3, 4, 4)), node("Transpose", "c", "d", perm=(0, 1, 3, 2, 4)),
     node("Reshape", "d", "b", shape=(1, 6, 4, 4))),
])  # fmt: skip
def test_moved_pixels_stay(moves: tuple[Node, ...]) -> None:
    graph = network((1, 6, 4, 4), "y", node("Relu", "x", "a"), *moves, node("Abs", "b", "y"))
    assert permute_channels_by_conv(graph) is graph


def test_movement_before_an_output_stays() -> None:
    graph = network((1, 6, 3, 4), "y", node("Relu", "x", "a"), *shuffle("a", "y", 2, 6))
    assert permute_channels_by_conv(graph) is graph


def test_channels_of_an_input_are_not_selected_by_a_convolution() -> None:
    graph = network((1, 24, 3, 4), "y", cut("x", "b", 3, 11), node("Abs", "b", "y"))
    assert permute_channels_by_conv(graph) is graph


BATCH = (2, 3, 8, 8)


def test_a_convolution_on_a_batch_is_one_per_image() -> None:
    graph = network(BATCH, "y", node("Conv", "x w", "y", pads=(1, 1, 1, 1)), w=(4, 3, 3, 3))
    becomes(SplitBatch(IMAGES), graph, ["Slice", "Slice", "Conv", "Conv", "Concat"])


def test_slices_and_concat_stand_at_the_border_of_the_network() -> None:
    graph = network(BATCH, "y", node("Relu", "x", "a"), node("Conv", "a w", "b", pads=(1, 1, 1, 1),
        activation="Relu"), node("Add", "b a", "c"), node("MaxPool", "c", "d", kernel_shape=(2, 2),
        strides=(2, 2)), node("Reshape", "d", "e", shape=(2, 48)), node("Gemm", "e v", "f"),
        node("Softmax", "f", "y", axis=1), w=(3, 3, 3, 3), v=(5, 48))  # fmt: skip
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
    becomes(SplitBatch(IMAGES), graph, ["Slice", "Slice", op, op, "Conv", "Conv", "Concat"])


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
    found = becomes(batch_to_channels, graph, ["Reshape", layer.op, "Reshape"])
    assert found.shape(found.nodes[1].output)[:2] == (1, 6)


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


def power(exponent: Array, shape: tuple[int, ...] = (2, 3)) -> Graph:
    nodes = [Node("Abs", ("x",), ("a",), {}, "m", ("m",)), Node("Pow", ("a", "e"), ("y",), {}, "n", ("n",))]
    return build("g", nodes, {"x": TensorType(shape)}, ["y"], {"e": exponent})


@pytest.mark.parametrize(("exponent", "operators"), [
    (np.float32(1), []), (np.array([2], np.float32), ["Mul"]), (np.array([[3]], np.float32), ["Mul", "Mul"]),
    (np.int64(2), ["Mul"]), (np.float32(4), ["Mul", "Mul"]), (np.float32(0.5), ["Sqrt"]),
])  # fmt: skip
def test_a_power_with_a_small_exponent_is_expanded(exponent: Array, operators: list[str]) -> None:
    before = power(np.asarray(exponent))
    after = expand_powers(before)
    assert [node.op for node in after.nodes] == ["Abs", *operators]
    assert after.outputs == before.outputs
    x = np.array([[0.0, -1.5, 3.25], [80.0, -0.001, 1.0]], np.float32)
    (wanted,) = graph_session(before, ["y"]).run(None, {"x": x})
    np.testing.assert_allclose(run(after, {"x": x})["y"], wanted, rtol=1e-6)
    assert expand_powers(after) is after


@pytest.mark.parametrize("exponent", [0.0, -1.0, -0.5, 1.7, 2.0000002, 5.0, np.nan, [2.0, 2.0, 2.0], [[[2.0]]]])
def test_other_powers_stay(exponent: float | list[float]) -> None:
    before = power(np.asarray(exponent, np.float32))
    assert expand_powers(before) is before


def test_an_exponent_at_run_time_stays() -> None:
    node = Node("Pow", ("x", "e"), ("y",), {}, "n", ("n",))
    before = build("g", [node], {"x": TensorType((2, 3)), "e": TensorType((2, 3))}, ["y"], {})
    assert expand_powers(before) is before


SLOPES = np.linspace(-1.2, 1.7, 4, dtype=np.float32)


def test_a_convolution_gives_both_signs_and_another_weighs_them() -> None:
    conv = node("Conv", "x w b", "a", pads=(1, 1, 1, 1), strides=(2, 2))
    graph = network(
        (1, 3, 6, 6), "y", conv, node("PRelu", "a s", "y"), w=(4, 3, 3, 3), b=(4,), s=SLOPES[:, None, None]
    )
    found = becomes(expand_prelu, graph, ["Conv+Relu", "Conv"])
    assert found.shape(found.nodes[0].output) == (1, 8, 3, 3)
    assert sources(found, found.nodes[0].output) == ("a", "y")


@pytest.mark.parametrize("shape", [(1, 4, 5, 5), (1, 4)])
def test_without_a_convolution_before_it_one_is_put_there(shape: tuple[int, ...]) -> None:
    slopes = SLOPES.reshape(4, *(1,) * (len(shape) - 2))
    graph = network(shape, "y", node("PRelu", "x s", "y"), s=slopes)
    found = expand_prelu(graph)
    assert [each for each in operators(found) if each != "Reshape"] == ["Conv+Relu", "Conv"]
    assert_same_meaning(graph, found)


@pytest.mark.parametrize("before", [
    (node("Conv", "x w", "a", group=4),), (node("Conv", "x v", "a", activation="Relu"),),
    (node("Abs", "v", "u"), node("Conv", "x u", "a")), (node("Mul", "x v", "a"),),
], ids=["depthwise", "with_relu", "weights computed", "no convolution"])  # fmt: skip
def test_a_producer_that_cannot_double_its_outputs_stays(before: tuple[Node, ...]) -> None:
    rest = {"w": (4, 1, 1, 1), "v": (4, 4, 1, 1), "s": SLOPES[:, None, None]}
    graph = network((1, 4, 5, 5), "y", *before, node("PRelu", "a s", "y"), **rest)
    found = expand_prelu(graph)
    assert operators(found) == [*operators(graph)[:-1], "Conv+Relu", "Conv"]
    assert_same_meaning(graph, found)


def test_a_convolution_with_another_reader_stays() -> None:
    graph = network((1, 4, 5, 5), "y a", node("Conv", "x w", "a"), node("PRelu", "a s", "y"), w=(4, 4, 1, 1),
        s=SLOPES[:, None, None])  # fmt: skip
    becomes(expand_prelu, graph, ["Conv", "Conv+Relu", "Conv"])


@pytest.mark.parametrize(
    "slope",
    [0.1, np.full((4, 1, 1), 0.1), np.ones((4, 5, 5)) * [1, 2, 3, 4, 5], np.reshape([1, 2, np.inf, 3], (4, 1, 1))],
)
def test_one_slope_a_slope_per_pixel_or_an_infinite_one_stays(slope: np.ndarray) -> None:
    graph = network((1, 4, 5, 5), "y", node("PRelu", "x s", "y"), s=np.asarray(slope, np.float32))
    assert expand_prelu(graph) is graph


@pytest.mark.parametrize("shape", [(1, 3, 4, 4), (1, 6)])
def test_a_difference_is_a_sum_with_the_negative(shape: tuple[int, ...]) -> None:
    graph = network(shape, "y", node("Relu", "x", "a"), node("Abs", "x", "b"), node("Sub", "a b", "y"))
    found = becomes(subtract_by_adding, graph, ["Relu", "Abs", "BatchNormalization", "Add"])
    assert sources(found, "y") == ("y",)


def test_weights_before_the_second_operand_take_the_sign() -> None:
    conv = node("Conv", "x w k", "b", pads=(1, 1, 1, 1), kernel_shape=(3, 3))
    graph = network((1, 3, 4, 4), "y", conv, node("Sub", "x b", "y"), w=(3, 3, 3, 3), k=(3,))
    found = becomes(subtract_by_adding, graph, ["Conv", "Add"])
    assert np.array_equal(found.constants[found.nodes[0].inputs[1]], -graph.constants["w"])
    assert sources(found, found.nodes[0].output) == ("b", "y")


@pytest.mark.parametrize(
    "before",
    [
        (node("Conv", "x w", "b", activation="Relu"), node("Sub", "x b", "y")),
        (node("Conv", "x w", "b"), node("Relu", "b", "c"), node("Sub", "c b", "y")),
    ],
)
def test_weights_with_an_activation_or_another_reader_do_not(before) -> None:
    graph = network((1, 3, 4, 4), "y", *before, w=(3, 3, 1, 1))
    found = subtract_by_adding(graph)
    assert operators(found)[-2:] == ["BatchNormalization", "Add"]
    assert_same_meaning(graph, found)


@pytest.mark.parametrize("order", ["x m", "m x"])
def test_a_repeated_operand_stays_repeated(order: str) -> None:
    mean = node("GlobalAveragePool", "x", "m")
    graph = network((1, 3, 4, 4), "y", mean, node("Sub", order, "y"))
    becomes(subtract_by_adding, graph, ["GlobalAveragePool", "BatchNormalization", "Add"])


def test_differences_with_constants_and_of_other_ranks_stay() -> None:
    constant = network((1, 3, 4, 4), "y", node("Sub", "x c", "y"), c=(4, 4))
    assert subtract_by_adding(constant) is constant
    vector = network((4,), "y", node("Abs", "x", "a"), node("Sub", "x a", "y"))
    assert subtract_by_adding(vector) is vector
