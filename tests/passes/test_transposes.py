"""Transposes, Reshapes and shuffles: eliminate_transposes, sink_reshapes, sink_shuffles."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.ir import Graph, Node
from npuc.passes.cleanup.eliminate_transposes import eliminate_transposes
from npuc.passes.cleanup.sink_reshapes import sink_reshapes
from npuc.passes.expansion.moves_to_convs import PermuteChannelsByConv
from npuc.rewrites import rewrites
from npuc.targets.easynpu.network.passes import expand_groups, sink_shuffles
from tests.passes.networks import assert_same_meaning, becomes, network, node, operators, sources
from tests.passes.test_expansion import shuffle

LAST, FIRST = (0, 2, 3, 1), (0, 3, 1, 2)


def to_last(x: str, y: str) -> Node:
    return node("Transpose", x, y, perm=LAST)


def to_first(x: str, y: str) -> Node:
    return node("Transpose", x, y, perm=FIRST)


def test_a_pair_that_cancels_goes() -> None:
    graph = network(
        (1, 2, 3, 4), "y", node("Relu", "x", "r"), to_last("r", "a"), to_first("a", "b"), node("Neg", "b", "y")
    )
    becomes(eliminate_transposes, graph, ["Relu", "Neg"])


def test_three_in_a_row_become_one() -> None:
    graph = network((1, 2, 3, 4), "y", to_last("x", "a"), to_last("a", "b"), to_first("b", "y"))
    found = eliminate_transposes(graph)
    assert [(each.op, each.integers("perm")) for each in found.nodes] == [("Transpose", LAST)]
    assert sources(found, "y") == ("a", "b", "y")
    assert_same_meaning(graph, found)


@pytest.mark.parametrize("inside", [
    node("Relu", "a", "b"),
    node("Add", "a c", "b"),
    node("Add", "c a", "b"),
    node("Mul", "a k", "b"),
    node("Div", "a a", "b"),
    node("PRelu", "a c", "b"),
    node("Concat", "a a", "b", axis=3),
    node("Pad", "a", "b", pads=(0, 1, 0, 0, 0, 2, 3, 0)),
    node("Slice", "a", "b", starts=(1, 0), ends=(3, 4), axes=(3, 1), steps=(1, 2)),
    node("Softmax", "a", "b", axis=3),
    node("ReduceMean", "a", "b", axes=(1, 2), keepdims=1),
    node("ReduceMax", "a", "b", axes=(3,), keepdims=1),
    node("Resize", "a", "b", scales=(1.0, 2.0, 2.0, 1.0), sizes=(2, 8, 10, 3)),
    node("QuantizeLinear", "a s", "b"),
    node("Cast", "a", "b", to="int32"),
], ids=lambda each: each.op)  # fmt: skip
def test_an_operator_between_transposes_computes_in_the_other_layout(inside: Node) -> None:
    used = {"c": (3,), "k": (1, 4, 5, 1), "s": 0.1}
    constants = {name: value for name, value in used.items() if name in inside.inputs}
    graph = network((2, 3, 4, 5), "y", to_last("x", "a"), inside, to_first("b", "y"), **constants)
    becomes(eliminate_transposes, graph, [inside.op])


def test_the_pieces_of_a_split_move_together() -> None:
    split = node("Split", "a", "b c", axis=3, split=(1, 2))
    graph = network((2, 3, 4, 5), "y z", to_last("x", "a"), split, to_first("b", "y"), node("Relu", "c", "d"),
        to_first("d", "z"))  # fmt: skip
    found = becomes(eliminate_transposes, graph, ["Split", "Relu"])
    assert found.nodes[0].integer("axis") == 1


def test_a_region_of_several_operators_and_a_residual_sum_moves_as_a_whole() -> None:
    graph = network((1, 4, 5, 5), "y", node("Conv", "x w", "p"), to_last("p", "a"), node("Relu", "a", "r"),
        to_first("r", "f"), node("Conv", "f w", "q"), to_last("q", "b"), node("Add", "b c", "d"),
        node("Add", "d r", "e"), node("Sigmoid", "e", "s"), node("Mul", "e s", "m"), to_first("m", "g"),
        node("Conv", "g w", "y"), w=(4, 4, 1, 1), c=(4,))  # fmt: skip
    found = becomes(eliminate_transposes, graph, ["Conv", "Relu", "Conv", "Add", "Add", "Sigmoid", "Mul", "Conv"])
    assert {"p", "f", "q", "g", "y"} <= set(found.tensors)  # names of the model that denote these tensors


def test_a_transpose_moves_over_elementwise_operators_to_the_input() -> None:
    graph = network((1, 6, 6, 3), "y", node("Mul", "x k", "a"), node("Sub", "a m", "b"), to_first("b", "c"),
        node("Conv", "c w", "y"), k=0.5, m=(3,), w=(4, 3, 3, 3))  # fmt: skip
    becomes(eliminate_transposes, graph, ["Transpose", "Mul", "Sub", "Conv"])


def test_a_transpose_moves_over_elementwise_operators_to_the_output() -> None:
    graph = network((1, 3, 6, 6), "y", node("Conv", "x w", "a"), to_last("a", "b"),
        node("Softmax", "b", "y", axis=3), w=(4, 3, 3, 3))  # fmt: skip
    becomes(eliminate_transposes, graph, ["Conv", "Softmax", "Transpose"])


def test_an_intermediate_result_that_is_a_graph_output_keeps_its_layout() -> None:
    graph = network((1, 3, 6, 6), "y r", node("Conv", "x w", "a"), to_last("a", "b"), node("Relu", "b", "r"),
        to_first("r", "c"), node("Conv", "c v", "y"), w=(4, 3, 3, 3), v=(2, 4, 1, 1))  # fmt: skip
    found = becomes(eliminate_transposes, graph, ["Conv", "Relu", "Transpose", "Conv"])
    assert found.producers["r"].op == "Transpose"


def test_a_region_stays_where_moving_would_cost_more() -> None:
    graph = network((1, 3, 6, 6), "y z", to_last("x", "a"), node("Relu", "a", "b"),
        node("Concat", "b b", "y", axis=3), node("Neg", "b", "z"))  # fmt: skip
    assert eliminate_transposes(graph) is graph


def test_a_transpose_before_flatten_and_gemm_is_folded_into_the_columns() -> None:
    graph = network((2, 3, 4, 5), "y", node("Conv", "x k", "a"), to_last("a", "b"), node("Relu", "b", "r"),
        node("Reshape", "r", "f", shape=(2, 60)), node("Gemm", "f w b0", "y"), k=(3, 3, 1, 1), w=(7, 60),
        b0=(7,))  # fmt: skip
    becomes(eliminate_transposes, graph, ["Conv", "Relu", "Reshape", "Gemm"])


def test_a_transpose_before_a_product_with_computed_weights_stays() -> None:
    flat = to_last("x", "b"), node("Reshape", "b", "f", shape=(2, 60))
    graph = network((2, 3, 4, 5), "y", *flat, node("Neg", "c", "w"), node("Gemm", "f w", "y"), c=(7, 60))
    becomes(eliminate_transposes, graph, operators(graph))


def test_a_transpose_before_a_flatten_that_something_else_reads_stays() -> None:
    graph = network((2, 3, 4, 5), "y f", to_last("x", "b"), node("Reshape", "b", "f", shape=(2, 60)),
        node("Gemm", "f w", "y"), w=(7, 60))  # fmt: skip
    assert eliminate_transposes(graph) is graph


def test_a_mean_that_drops_the_image_takes_other_axes() -> None:
    graph = network((2, 3, 4, 5), "y", to_last("x", "a"), node("ReduceMean", "a", "y", axes=(1, 2), keepdims=0))
    found = becomes(eliminate_transposes, graph, ["ReduceMean"])
    assert found.nodes[0].integers("axes") == (2, 3)


def test_a_mean_whose_other_axes_would_change_places_keeps_its_transpose() -> None:
    graph = network((2, 3, 4, 5), "y", to_last("x", "a"), node("ReduceMean", "a", "y", axes=(2,), keepdims=0))
    assert eliminate_transposes(graph) is graph


def test_a_transpose_that_moves_only_axes_of_extent_one_becomes_a_reshape() -> None:
    graph = network((1, 49, 10, 1), "y", to_first("x", "a"), node("Conv", "a w", "y"), w=(8, 1, 3, 3))
    becomes(eliminate_transposes, graph, ["Reshape", "Conv"])


def test_two_readers_of_a_transposed_input_share_one_transpose() -> None:
    graph = network((1, 6, 6, 3), "y", to_first("x", "a"), node("Conv", "a w", "b"), node("Relu", "x", "r"),
        to_first("r", "c"), node("Conv", "c w", "d"), node("Add", "b d", "y"), w=(4, 3, 3, 3))  # fmt: skip
    becomes(eliminate_transposes, graph, ["Transpose", "Conv", "Relu", "Conv", "Add"])


def test_interpolation_stays_where_onnxruntime_has_it() -> None:
    attrs = {"coordinate_transformation_mode": "asymmetric", "sizes": (1, 2, 6, 8), "scales": (1.0, 1.0, 2.0, 2.0)}
    graph = network(
        (1, 2, 3, 4),
        "y",
        node("Resize", "x", "a", mode="linear", **attrs),
        node("Relu", "a", "b"),
        node("Transpose", "b", "y", perm=(0, 3, 1, 2)),
    )
    found = eliminate_transposes(graph)
    assert next(each for each in found.nodes if each.op == "Resize").numbers("scales") == (1.0, 1.0, 2.0, 2.0)
    assert_same_meaning(graph, found)


def test_a_sum_of_a_tensor_and_its_own_transpose_stays() -> None:
    graph = network(
        (3, 3, 4, 4),
        "y",
        node("Relu", "x", "a"),
        node("Transpose", "a", "b", perm=(1, 0, 2, 3)),
        node("Add", "b a", "y"),
    )
    assert operators(eliminate_transposes(graph)) == ["Relu", "Transpose", "Add"]


def test_an_operand_of_lower_rank_that_is_computed_keeps_the_layout() -> None:
    graph = network((2, 3, 4, 5), "y", node("ReduceMean", "x", "v", axes=(0, 2, 3), keepdims=0), to_last("x", "a"),
        node("Add", "a v", "b"), to_first("b", "y"))  # fmt: skip
    found = eliminate_transposes(graph)
    assert operators(found).count("Transpose") == 2
    assert_same_meaning(graph, found)


def test_reshape_of_reshape_becomes_one() -> None:
    graph = network((2, 6), "y", node("Reshape", "x", "a", shape=(12,)), node("Reshape", "a", "y", shape=(3, 4)))
    found = becomes(sink_reshapes, graph, ["Reshape"])
    assert sources(found, "y") == ("a", "y")


def test_reshape_and_back_vanishes() -> None:
    graph = network((2, 6), "y", node("Relu", "x", "r"), node("Reshape", "r", "a", shape=(12,)),
        node("Reshape", "a", "b", shape=(2, 6)), node("Sigmoid", "b", "y"))  # fmt: skip
    becomes(sink_reshapes, graph, ["Relu", "Sigmoid"])


def test_relu_and_clip_move_in_front_of_flatten() -> None:
    graph = network((1, 2, 3, 3), "y", node("Reshape", "x", "f", shape=(1, 18)), node("Relu", "f", "r"),
        node("Min", "r six", "m"), node("Gemm", "m w", "y"), six=6, w=(4, 18))  # fmt: skip
    becomes(sink_reshapes, graph, ["Relu", "Min", "Reshape", "Gemm"])


def test_a_reshape_with_a_second_reader_stays_in_front() -> None:
    graph = network(
        (1, 2, 3), "y", node("Reshape", "x", "f", shape=(1, 6)), node("Relu", "f", "r"), node("Mul", "r f", "y")
    )
    assert sink_reshapes(graph) is graph


def test_squeezed_operands_are_added_before_the_squeeze() -> None:
    # as TensorFlow writes one-dimensional convolutions: Squeeze, sum, ExpandDims
    graph = network((1, 1, 7, 4), "y", node("Sigmoid", "x", "s"), node("Reshape", "x", "a", shape=(1, 7, 4)),
        node("Reshape", "s", "b", shape=(1, 7, 4)), node("Add", "a b", "c"), node("Add", "c k", "d"),
        node("Concat", "d c", "e", axis=2), node("Reshape", "e", "y", shape=(1, 1, 7, 8)), k=(4,))  # fmt: skip
    found = becomes(sink_reshapes, graph, ["Sigmoid", "Add", "Add", "Concat"])
    assert found.nodes[-1].integer("axis") == 3


def test_operands_that_lost_different_axes_stay_apart() -> None:
    graph = network((1, 3, 1, 4), "y", node("Relu", "x", "r"), node("Transpose", "r", "t", perm=(0, 2, 1, 3)),
        node("Reshape", "x", "a", shape=(1, 3, 4)), node("Reshape", "t", "b", shape=(1, 3, 4)),
        node("Add", "a b", "y"))  # fmt: skip
    assert sink_reshapes(graph) is graph


def test_softmax_keeps_the_few_axes_of_a_classifier() -> None:
    graph = network((1, 4, 1, 1), "y", node("Reshape", "x", "a", shape=(1, 4)), node("Softmax", "a", "y", axis=1))
    assert sink_reshapes(graph) is graph


def test_a_mean_that_drops_axes_reads_the_tensor_before_the_squeeze() -> None:
    graph = network(
        (2, 1, 7, 4),
        "y",
        node("Reshape", "x", "a", shape=(2, 7, 4)),
        node("ReduceMean", "a", "y", axes=(1,), keepdims=0),
    )
    found = becomes(sink_reshapes, graph, ["ReduceMean"])
    assert found.nodes[0].integers("axes") == (1, 2)


permute_channels_by_conv = PermuteChannelsByConv(16)


def unit(reader_group: int = 2) -> Graph:
    """A unit of ShuffleNet on 8 channels, in two groups."""
    return expand_groups(network((1, 8, 3, 4), "y", node("Conv", "x w k", "a", group=2, activation="Relu"),
        *shuffle("a", "b", 2, 8), node("Conv", "b v l", "c", group=8, kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
        node("Conv", "c u", "y", group=reader_group), w=(8, 4, 1, 1), k=(8,), v=(8, 1, 3, 3), l=(8,),
        u=(8, 8 // reader_group, 1, 1)))  # fmt: skip


def test_the_shuffle_moves_behind_the_depthwise_convolution_and_into_the_next() -> None:
    graph = unit()
    found = becomes(sink_shuffles, graph, ["Conv+Relu", "Conv", "Gather", "Conv"])
    assert sources(found, "c") == ("br", "bt", "b")
    absorbed = permute_channels_by_conv(found)
    assert operators(absorbed) == ["Conv+Relu", "Conv", "Conv"]
    assert_same_meaning(graph, absorbed)


def test_the_report_calls_it_exact() -> None:
    graph = unit()
    (found,) = rewrites("sink_shuffles", graph, sink_shuffles(graph), lambda _graph, _node: 0)
    assert str(found).endswith("-> Gather, exact")


def test_successive_outputs_of_the_first_convolution_read_one_group() -> None:
    found = permute_channels_by_conv(sink_shuffles(unit()))
    used = found.constants[found.nodes[0].inputs[1]].any(axis=(2, 3))
    assert np.array_equal(used, np.kron(np.eye(2), np.ones((4, 4))))


def test_a_shuffle_stays_where_a_depthwise_or_no_convolution_follows() -> None:
    graph = unit(8)
    assert sink_shuffles(graph) is graph


def test_a_shuffle_that_another_node_reads_stays() -> None:
    graph = expand_groups(network((1, 8, 3, 4), "y", node("Conv", "x w", "a", group=2), *shuffle("a", "b", 2, 8),
        node("Conv", "b v", "c", group=8), node("Conv", "c u", "d"), node("Add", "d b", "y"), w=(8, 4, 1, 1),
        v=(8, 1, 1, 1), u=(8, 8, 1, 1)))  # fmt: skip
    assert sink_shuffles(graph) is graph


def test_a_shuffle_of_a_dense_convolution_stays() -> None:
    graph = network((1, 8, 3, 4), "y", node("Conv", "x w", "a"), *shuffle("a", "b", 2, 8),
        node("Conv", "b v", "c", group=8), node("Conv", "c u", "y"), w=(8, 8, 1, 1), v=(8, 1, 1, 1),
        u=(8, 8, 1, 1))  # fmt: skip
    assert sink_shuffles(graph) is graph
