"""reductions_to_pools, maxima_to_pools."""

from __future__ import annotations

from typing import Any

import pytest

from npuc.passes.expansion.reductions_to_pools import reductions_to_pools
from npuc.targets.easynpu.network.maxima_to_pools import maxima_to_pools
from tests.passes.networks import assert_same_meaning, network, node, operators

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
    graph = network((1, 6, 4, 5), "y", node(op, "x", "y", axes=(1,), keepdims=1))
    found = reductions_to_pools(graph)
    assert operators(found) == ["Conv"]
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(("op", "expected"), [("Max", ["MaxPool"]), ("Min", ["Neg", "Neg", "MaxPool", "Neg"])])
@pytest.mark.parametrize("axes", [(), (0,), (1,)])
def test_of_two_tensors_pooling_takes_the_larger(op: str, expected: list[str], axes: tuple[int, ...]) -> None:
    small = node("ReduceMean", "x", "a", axes=axes, keepdims=1) if axes else node("Tanh", "x", "a")
    graph = network(CUBE, "y", small, node(op, "x a", "y"))
    found = maxima_to_pools(graph)
    assert computing(operators(found))[1:] == expected
    assert_same_meaning(graph, found)
    assert maxima_to_pools(found).nodes == found.nodes


def test_the_larger_of_a_tensor_and_itself_is_the_tensor() -> None:
    graph = network(CUBE, "y", node("Max", "x x", "y"))
    assert_same_meaning(graph, maxima_to_pools(graph))


@pytest.mark.parametrize(("inputs", "constant"), [("x c", (4, 5)), ("c x", CUBE), ("x c", (4, 1))])
@pytest.mark.parametrize(("op", "count"), [("Max", 3), ("Min", 5)])
def test_the_larger_of_a_tensor_and_a_constant_is_rectified(
    op: str, count: int, inputs: str, constant: Any
) -> None:
    graph = network(CUBE, "y", node(op, inputs, "y"), c=constant)
    found = maxima_to_pools(graph)
    assert len(found.nodes) == count and "Relu" in operators(found)
    assert_same_meaning(graph, found)
