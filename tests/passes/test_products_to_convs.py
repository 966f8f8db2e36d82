"""products_to_convs."""

from __future__ import annotations

import pytest

from npuc.passes.expansion.products_to_convs import products_to_convs
from tests.passes.networks import assert_same_meaning, network, node, operators

Shape = tuple[int, ...]


def test_a_gemm_on_several_rows_is_a_convolution_over_them() -> None:
    graph = network((6, 5), "y", node("Gemm", "x w b", "y", activation="Relu"), w=(7, 5), b=(7,))
    found = products_to_convs(graph)
    assert operators(found) == ["Transpose", "Reshape", "Conv+Relu", "Reshape", "Transpose"]
    assert found.shape(found.nodes[2].output) == (1, 7, 2, 3)
    assert_same_meaning(graph, found)
    assert products_to_convs(found).nodes == found.nodes


def test_a_gemm_on_one_row_stays() -> None:
    graph = network((1, 5), "y", node("Gemm", "x w", "y"), w=(7, 5))
    assert products_to_convs(graph) is graph


@pytest.mark.parametrize(("x", "w", "group"), [
    ((2, 3, 4), (4, 5), 1), ((2, 3, 4), (2, 4, 5), 2), ((5, 2, 3, 4), (2, 4, 3), 2), ((3, 4), (2, 4, 3), 1),
    ((1, 3, 4), (2, 4, 3), 1),
    ((3, 1, 3, 4), (1, 2, 4, 2), 1), ((2, 3, 1, 3, 4), (2, 1, 5, 4, 2), 2),
])  # fmt: skip
def test_a_product_with_a_constant_behind_is_one_convolution(x: Shape, w: Shape, group: int) -> None:
    graph = network(x, "y", node("MatMul", "x w", "y"), w=w)
    found = products_to_convs(graph)
    (conv,) = (each for each in found.nodes if each.op not in ("Reshape", "Transpose"))
    assert conv.op == "Conv" and conv.integer("group") == group
    assert_same_meaning(graph, found)
    assert products_to_convs(found).nodes == found.nodes


@pytest.mark.parametrize(("w", "x"), [
    ((5, 4), (2, 4, 3)), ((2, 3, 4), (2, 4, 5)), ((2, 3, 4), (4, 5)), ((5, 3, 4), (2, 1, 4, 3)),
])  # fmt: skip
def test_a_product_with_a_constant_before_is_one_convolution(w: Shape, x: Shape) -> None:
    graph = network(x, "y", node("MatMul", "w x", "y"), w=w)
    found = products_to_convs(graph)
    assert [op for op in operators(found) if op not in ("Reshape", "Transpose")] == ["Conv"]
    assert_same_meaning(graph, found)


def test_matrices_from_the_left_take_no_transposition() -> None:
    graph = network((2, 4, 5), "y", node("MatMul", "w x", "y"), w=(2, 3, 4))
    assert operators(products_to_convs(graph)) == ["Reshape", "Conv", "Reshape"]


def test_a_product_of_two_computed_tensors_stays() -> None:
    graph = network((2, 4, 4), "y", node("Tanh", "x", "a"), node("MatMul", "x a", "y"))
    assert products_to_convs(graph) is graph


@pytest.mark.parametrize(("x", "w"), [((3, 0), (0, 5)), ((0, 3), (3, 4)), ((1, 0), (0, 1)), ((2, 3), (3, 0))])
def test_a_product_that_sums_or_gives_nothing_stays(x: Shape, w: Shape) -> None:
    for op, inputs, shapes in (("MatMul", "x w", (x, w)), ("MatMul", "w x", (x[::-1], w[::-1]))):
        graph = network(shapes[0], "y", node(op, inputs, "y"), w=shapes[1])
        assert products_to_convs(graph) is graph
