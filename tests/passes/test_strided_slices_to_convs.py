"""strided_slices_to_convs: every n-th row or column."""

import pytest

from npuc.ir import Graph, Node
from npuc.passes.expansion.strided_slices_to_convs import StridedSlicesToConvs
from tests.passes.networks import assert_same_meaning, network, node, operators, sources

strided_slices_to_convs = StridedSlicesToConvs(15)


def cut(x: str, y: str, *cuts: tuple[int, int, int, int]) -> Node:
    """cuts: (axis, start, end, step)."""
    axes, starts, ends, steps = zip(*cuts, strict=True)
    return node("Slice", x, y, axes=axes, starts=starts, ends=ends, steps=steps)


def between_functions(*cuts: tuple[int, int, int, int]) -> Graph:
    return network((1, 3, 7, 8), "y", node("Relu", "x", "a"), cut("a", "b", *cuts), node("Sigmoid", "b", "y"))


@pytest.mark.parametrize(
    ("cuts", "strides"),
    [
        (((2, 0, 7, 2), (3, 1, 8, 2)), (2, 2)),
        (((3, 2, 8, 5),), (1, 5)),
        (((2, 1, 6, 3), (3, 0, 8, 1)), (3, 1)),
        (((1, 1, 3, 1), (2, 0, 7, 2)), (2, 1)),
        (((2, 6, 7, 4),), (4, 1)),
    ],
)
def test_steps_are_the_strides_of_a_convolution(
    cuts: tuple[tuple[int, int, int, int], ...], strides: tuple[int, int]
) -> None:
    graph = between_functions(*cuts)
    found = strided_slices_to_convs(graph)
    assert operators(found) == ["Relu", "Slice", "Conv", "Sigmoid"]
    assert found.nodes[2].integers("strides") == strides
    assert_same_meaning(graph, found)
    assert strided_slices_to_convs(found) is found
    assert sources(found, "b") == ("b",)


@pytest.mark.parametrize(
    "cuts", [((2, 6, -1, -2),), ((1, 0, 3, 2),), ((2, 1, 5, 1),), ((1, 2, -1, -1), (2, 0, 7, 2))]
)
def test_other_steps_stay(cuts: tuple[tuple[int, int, int, int], ...]) -> None:
    graph = between_functions(*cuts)
    assert strided_slices_to_convs(graph) is graph


def test_movement_of_an_input_or_before_an_output_stays() -> None:
    steps = ((2, 0, 7, 2), (3, 1, 8, 2))
    of_input = network((1, 3, 7, 8), "y", cut("x", "b", *steps), node("Relu", "b", "y"))
    assert strided_slices_to_convs(of_input) is of_input
    before_output = network((1, 3, 7, 8), "y", node("Relu", "x", "a"), cut("a", "y", *steps))
    assert strided_slices_to_convs(before_output) is before_output
