"""permute_channels_by_conv: channel shuffles and unaligned slices."""

import numpy as np
import pytest

from npuc.ir import Graph, Node
from npuc.passes.expansion.permute_channels_by_conv import PermuteChannelsByConv
from npuc.targets.easynpu.network.passes import expand_groups
from tests.passes.networks import assert_same_meaning, network, node, operators, sources

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


@pytest.mark.parametrize(("kernel", "convs"), [(1, 2), (3, 3)])
def test_a_convolution_in_blocks_takes_a_shuffle_only_with_one_tap(kernel: int, convs: int) -> None:
    """Another order fills the blocks: with 9 taps that costs more than a convolution that permutes."""
    conv = node("Conv", "x w", "a", group=2)
    after = node("Conv", "b v", "y", group=4)
    height, width = 4 - kernel, 5 - kernel
    graph = network(
        (1, 4, 3, 4),
        "y",
        conv,
        *shuffle("a", "b", 2, 4, height, width),
        after,
        w=(4, 2, kernel, kernel),
        v=(4, 1, 1, 1),
    )
    found = permute_channels_by_conv(expand_groups(graph))
    assert operators(found) == ["Conv"] * convs
    assert_same_meaning(graph, found)


def test_a_shuffle_before_an_aligned_split_is_two_selections() -> None:
    split = node("Split", "b", "c d", axis=1, split=(16, 16))
    graph = network(
        (1, 32, 3, 4),
        "y",
        node("Relu", "x", "a"),
        *shuffle("a", "b", 2, 32),
        split,
        node("Mul", "c d", "y"),
    )
    assert_rewritten(graph, "Relu", "Conv", "Conv", "Mul")


def test_a_unit_of_shufflenet_moves_no_data() -> None:
    """Split -> (identity, Conv) -> Concat -> shuffle -> Split -> ..: 10 channels, halves of 5."""
    graph = network(
        (1, 10, 3, 4),
        "y",
        node("Relu", "x", "a"),
        node("Split", "a", "b c", axis=1, split=(5, 5)),
        node("Conv", "c w", "d", activation="Relu"),
        node("Concat", "b d", "e", axis=1),
        *shuffle("e", "f", 2, 10),
        node("Split", "f", "g h", axis=1, split=(5, 5)),
        node("Conv", "h v", "i"),
        node("Concat", "g i", "j", axis=1),
        node("Abs", "j", "y"),
        w=(5, 5, 1, 1),
        v=(5, 5, 1, 1),
    )
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
    graph = network((1, 32, 3, 4), "y", node("Relu", "x", "a"), cut("a", "b", start, end), node("Abs", "b", "y"))
    assert_rewritten(graph, *expected)


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


@pytest.mark.parametrize(
    "moves",
    [
        (node("Transpose", "a", "b", perm=(0, 1, 3, 2)),),
        (node("Slice", "a", "b", axes=(2,), starts=(1,), ends=(3,), steps=(1,)),),
        (
            node("Reshape", "a", "c", shape=(1, 2, 3, 4, 4)),
            node("Transpose", "c", "d", perm=(0, 1, 3, 2, 4)),
            node("Reshape", "d", "b", shape=(1, 6, 4, 4)),
        ),
    ],
)
def test_moved_pixels_stay(moves: tuple[Node, ...]) -> None:
    graph = network((1, 6, 4, 4), "y", node("Relu", "x", "a"), *moves, node("Abs", "b", "y"))
    assert permute_channels_by_conv(graph) is graph


def test_movement_before_an_output_stays() -> None:
    graph = network((1, 6, 3, 4), "y", node("Relu", "x", "a"), *shuffle("a", "y", 2, 6))
    assert permute_channels_by_conv(graph) is graph


def test_channels_of_an_input_are_not_selected_by_a_convolution() -> None:
    graph = network((1, 24, 3, 4), "y", cut("x", "b", 3, 11), node("Abs", "b", "y"))
    assert permute_channels_by_conv(graph) is graph
