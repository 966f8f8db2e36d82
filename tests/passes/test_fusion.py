"""fuse_activation and mark_residual_add."""

import pytest

from npuc.ir import Graph, Node
from npuc.passes.fusion.fuse_activation import fuse_activation
from npuc.passes.fusion.mark_residual_add import mark_residual_add
from tests.passes.networks import assert_same_meaning, network, node, operators, sources

WEIGHT = {"w": (4, 4, 1, 1)}


@pytest.mark.parametrize("activation", [node("Relu", "a", "y"), node("Clip", "a", "y", min=0.5, max=6.0)])
@pytest.mark.parametrize(
    "layer", [node("Conv", "x w", "a"), node("ConvTranspose", "x w", "a"), node("Add", "x x", "a")]
)
def test_an_activation_becomes_part_of_the_layer_before_it(layer: Node, activation: Node) -> None:
    graph = network((1, 4, 3, 3), "y", layer, activation, **(WEIGHT if "w" in layer.inputs else {}))
    found = fuse_activation(graph)
    assert operators(found) == [f"{layer.op}+{activation.op}"]
    assert sources(found, "y") == ("a", "y")
    assert_same_meaning(graph, found)


def test_an_activation_becomes_part_of_gemm() -> None:
    graph = network((2, 3), "y", node("Gemm", "x w", "a"), node("Relu", "a", "y"), w=(4, 3))
    assert operators(fuse_activation(graph)) == ["Gemm+Relu"]


def test_relu_and_clip_become_one_activation() -> None:
    clip = node("Clip", "r", "y", min=-1.0, max=6.0)
    graph = network((1, 4, 3, 3), "y", node("Conv", "x w", "a"), node("Relu", "a", "r"), clip, **WEIGHT)
    found = fuse_activation(graph)
    assert operators(found) == ["Conv+Clip"]
    assert (found.nodes[0].number("min"), found.nodes[0].number("max")) == (0, 6)
    assert_same_meaning(graph, found)


def test_an_activation_behind_a_maximum_moves_in_front_of_it() -> None:
    pool = node("MaxPool", "a", "p", kernel_shape=(2, 2), strides=(2, 2), pads=(0, 0, 1, 1))
    graph = network((1, 4, 5, 5), "y", node("Conv", "x w", "a"), pool, node("Relu", "p", "y"), **WEIGHT)
    found = fuse_activation(graph)
    assert operators(found) == ["Conv+Relu", "MaxPool"]
    assert_same_meaning(graph, found)


def test_an_activation_behind_an_average_stays() -> None:
    pool = node("AveragePool", "a", "p", kernel_shape=(2, 2))
    graph = network((1, 4, 5, 5), "y", node("Conv", "x w", "a"), pool, node("Relu", "p", "y"), **WEIGHT)
    assert fuse_activation(graph) is graph


def test_relu_with_two_readers_is_fused() -> None:
    nodes = (node("Conv", "x w", "a"), node("Relu", "a", "r"), node("Sigmoid", "r", "s"), node("Mul", "r s", "y"))
    graph = network((1, 4, 3, 3), "y", *nodes, **WEIGHT)
    assert operators(fuse_activation(graph)) == ["Conv+Relu", "Sigmoid", "Mul"]


def test_a_convolution_with_two_readers_is_not_fused() -> None:
    nodes = (node("Conv", "x w", "a"), node("Relu", "a", "r"), node("Add", "a r", "y"))
    graph = network((1, 4, 3, 3), "y", *nodes, **WEIGHT)
    assert fuse_activation(graph) is graph


def test_a_convolution_that_is_a_graph_output_is_not_fused() -> None:
    graph = network((1, 4, 3, 3), "y a", node("Conv", "x w", "a"), node("Relu", "a", "y"), **WEIGHT)
    assert fuse_activation(graph) is graph


def test_only_one_activation_is_fused() -> None:
    graph = network(
        (1, 4, 3, 3), "y", node("Conv", "x w", "a", activation="Relu"), node("Clip", "a", "y", max=6.0), **WEIGHT
    )
    assert fuse_activation(graph) is graph


def test_other_activations_are_not_fused() -> None:
    graph = network((1, 4, 3, 3), "y", node("Conv", "x w", "a"), node("HardSwish", "a", "y"), **WEIGHT)
    assert fuse_activation(graph) is graph


def _mark(graph: Graph) -> object:
    marked = mark_residual_add(graph)
    assert_same_meaning(graph, marked)
    assert mark_residual_add(marked) is marked
    return marked.producers["y"].attrs.get("fused_input")


def test_the_operand_that_a_convolution_computes_is_marked() -> None:
    first = network((1, 4, 3, 3), "y", node("Conv", "x w", "a"), node("Add", "a x", "y"), **WEIGHT)
    second = network((1, 4, 3, 3), "y", node("Conv", "x w", "a"), node("Add", "x a", "y"), **WEIGHT)
    assert (_mark(first), _mark(second)) == (0, 1)


def test_of_two_convolutions_the_later_one_is_marked() -> None:
    branches = (node("Conv", "x w", "a"), node("Conv", "x w", "b"))
    assert _mark(network((1, 4, 3, 3), "y", *branches, node("Add", "a b", "y"), **WEIGHT)) == 1
    assert _mark(network((1, 4, 3, 3), "y", *branches[::-1], node("Add", "a b", "y"), **WEIGHT)) == 0


@pytest.mark.parametrize(
    ("nodes", "outputs"),
    [
        ((node("Conv", "x w", "a"), node("Relu", "a", "r"), node("Add", "a r", "y")), "y"),  # two readers
        ((node("Conv", "x w", "a"), node("Add", "a x", "y")), "y a"),  # a graph output
        ((node("Conv", "x w", "a"), node("Add", "a a", "y")), "y"),  # both operands at once
        (
            (node("Relu", "x", "a"), node("Add", "a x", "y"), node("Conv", "y w", "z")),
            "z",
        ),  # no layer with weights
        (
            (node("GlobalAveragePool", "x", "p"), node("Conv", "p w", "a"), node("Add", "a x", "y")),
            "y",
        ),  # broadcast
    ],
)
def test_an_operand_that_cannot_be_the_last_step_is_not_marked(nodes: tuple[Node, ...], outputs: str) -> None:
    assert _mark(network((1, 4, 3, 3), outputs, *nodes, **WEIGHT)) is None


def test_the_other_operand_may_broadcast() -> None:
    nodes = (node("GlobalAveragePool", "x", "p"), node("Conv", "x w", "a"), node("Add", "p a", "y"))
    assert _mark(network((1, 4, 3, 3), "y", *nodes, **WEIGHT)) == 1


def test_a_sum_with_a_constant_is_no_residual() -> None:
    graph = network((1, 4, 3, 3), "y", node("Conv", "x w", "a"), node("Add", "a c", "y"), c=(1, 4, 3, 3), **WEIGHT)
    assert _mark(graph) is None


def test_a_mark_that_no_longer_holds_is_taken_away() -> None:
    graph = network((1, 4, 3, 3), "y", node("Relu", "x", "a"), node("Add", "a x", "y", fused_input=0))
    assert _mark(graph) is None
