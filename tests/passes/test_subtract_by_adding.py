"""subtract_by_adding: differences as sums."""

import numpy as np
import pytest

from npuc.targets.easynpu.network.passes import subtract_by_adding
from tests.passes.networks import assert_same_meaning, network, node, operators, sources


@pytest.mark.parametrize("shape", [(1, 3, 4, 4), (1, 6)])
def test_a_difference_is_a_sum_with_the_negative(shape: tuple[int, ...]) -> None:
    graph = network(shape, "y", node("Relu", "x", "a"), node("Abs", "x", "b"), node("Sub", "a b", "y"))
    found = subtract_by_adding(graph)
    assert operators(found) == ["Relu", "Abs", "BatchNormalization", "Add"]
    assert_same_meaning(graph, found)
    assert subtract_by_adding(found) is found
    assert sources(found, "y") == ("y",)


def test_weights_before_the_second_operand_take_the_sign() -> None:
    conv = node("Conv", "x w k", "b", pads=(1, 1, 1, 1), kernel_shape=(3, 3))
    graph = network((1, 3, 4, 4), "y", conv, node("Sub", "x b", "y"), w=(3, 3, 3, 3), k=(3,))
    found = subtract_by_adding(graph)
    assert operators(found) == ["Conv", "Add"]
    assert np.array_equal(found.constants[found.nodes[0].inputs[1]], -graph.constants["w"])
    assert_same_meaning(graph, found)
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
    found = subtract_by_adding(graph)
    assert operators(found) == ["GlobalAveragePool", "BatchNormalization", "Add"]
    assert_same_meaning(graph, found)


def test_differences_with_constants_and_of_other_ranks_stay() -> None:
    constant = network((1, 3, 4, 4), "y", node("Sub", "x c", "y"), c=(4, 4))
    assert subtract_by_adding(constant) is constant
    vector = network((4,), "y", node("Abs", "x", "a"), node("Sub", "x a", "y"))
    assert subtract_by_adding(vector) is vector
