from math import inf

import numpy as np
import pytest

from npuc.ir import Graph, Node
from npuc.passes.cleanup.merge_duplicates import merge_duplicates
from npuc.passes.cleanup.remove_dead_code import remove_dead_code
from tests.passes.networks import assert_same_meaning, network, node, operators, sources

MAP = (1, 4, 5, 6)


def _between(no_op: Node, **constants: float) -> Graph:
    return network(MAP, "y", node("Relu", "x", "a"), no_op, node("Sigmoid", "b", "y"), **constants)


@pytest.mark.parametrize(
    "no_op",
    [
        node("Identity", "a", "b"),
        node("Reshape", "a", "b", shape=MAP),
        node("Transpose", "a", "b", perm=(0, 1, 2, 3)),
        node("Pad", "a", "b", pads=(0,) * 8),
        node("Slice", "a", "b", starts=(0, 0), ends=(5, 6), axes=(2, 3), steps=(1, 1)),
        node("Concat", "a", "b", axis=1),
        node("Split", "a", "b", axis=1, split=(4,)),
        node("Expand", "a", "b", shape=MAP),
        node("Cast", "a", "b", to="float32"),
        node("Clip", "a", "b", min=-inf, max=inf),
        node("MaxPool", "a", "b", kernel_shape=(1, 1)),
        node("AveragePool", "a", "b", kernel_shape=(1, 1)),
        node("Resize", "a", "b", scales=(1.0, 1.0, 1.0, 1.0), sizes=MAP),
        node("ReduceMean", "a", "b", axes=(0,), keepdims=1),
    ],
    ids=lambda each: each.op,
)
def test_a_node_that_gives_back_its_input_goes(no_op: Node) -> None:
    graph = _between(no_op)
    removed = remove_dead_code(graph)
    assert operators(removed) == ["Relu", "Sigmoid"]
    assert sources(removed, "a") == ("a", "b")
    assert_same_meaning(graph, removed)


@pytest.mark.parametrize(("op", "number"), [("Add", 0.0), ("Sub", 0.0), ("Mul", 1.0), ("Div", 1.0)])
def test_arithmetic_with_the_neutral_number_goes(op: str, number: float) -> None:
    assert operators(remove_dead_code(_between(node(op, "a c", "b"), c=number))) == ["Relu", "Sigmoid"]


@pytest.mark.parametrize(
    "kept",
    [
        node("Slice", "a", "b", starts=(4,), ends=(-1,), axes=(2,), steps=(-1,)),
        node("Transpose", "a", "b", perm=(0, 1, 3, 2)),
        node("Pad", "a", "b", pads=(0, 0, 1, 0, 0, 0, -1, 0)),
        node("Clip", "a", "b", min=0.0, max=inf),
        node("MaxPool", "a", "b", kernel_shape=(3, 3), pads=(1, 1, 1, 1)),
    ],
    ids=lambda each: each.op,
)
def test_a_node_that_changes_elements_or_their_order_stays(kept: Node) -> None:
    graph = _between(kept)
    assert remove_dead_code(graph) is graph


def test_a_sum_with_zeros_that_broadcasts_stays() -> None:
    graph = network((1, 1), "y", node("Add", "x c", "y"), c=np.zeros((4, 1), np.float32))
    assert remove_dead_code(graph) is graph


def test_the_name_of_a_graph_output_survives() -> None:
    graph = network((2,), "y", node("Relu", "x", "a"), node("Neg", "a", "b"), node("Identity", "b", "y"))
    removed = remove_dead_code(graph)
    assert [each.output for each in removed.nodes] == ["a", "y"]
    assert_same_meaning(graph, removed)


def test_readers_of_the_renamed_tensor_follow() -> None:
    graph = network((2,), "y z", node("Relu", "x", "a"), node("Identity", "a", "y"), node("Neg", "a", "z"))
    removed = remove_dead_code(graph)
    assert [(each.op, each.inputs) for each in removed.nodes] == [("Relu", ("x",)), ("Neg", ("y",))]
    assert_same_meaning(graph, removed)


def test_identity_between_a_graph_input_and_a_graph_output_stays() -> None:
    graph = network((2,), "y", node("Identity", "x", "y"))
    assert remove_dead_code(graph) is graph


def test_identity_between_two_graph_outputs_stays() -> None:
    graph = network((2,), "a y", node("Relu", "x", "a"), node("Identity", "a", "y"))
    assert remove_dead_code(graph) is graph


def test_two_equal_nodes_become_one() -> None:
    graph = network(
        (1, 2, 3, 4),
        "y",
        node("Transpose", "x", "a", perm=(0, 3, 1, 2)),
        node("Transpose", "x", "b", perm=(0, 3, 1, 2)),
        node("Relu", "a", "c"),
        node("Relu", "b", "d"),
        node("Add", "c d", "y"),
    )
    merged = merge_duplicates(graph)
    assert operators(merged) == ["Transpose", "Relu", "Add"]
    assert sources(merged, "c") == ("c", "d")
    assert_same_meaning(graph, merged)


def test_nodes_that_differ_in_an_attribute_or_are_graph_outputs_stay_two() -> None:
    clips = network(
        (2,), "y", node("Clip", "x", "a", max=1.0), node("Clip", "x", "b", max=2.0), node("Add", "a b", "y")
    )
    outputs = network((2,), "a b", node("Relu", "x", "a"), node("Relu", "x", "b"))
    assert merge_duplicates(clips) is clips
    assert merge_duplicates(outputs).nodes == outputs.nodes
