import numpy as np
import pytest

from npuc.passes.recognition.recognise_gemm import recognise_gemm
from tests.passes.networks import assert_same_meaning, network, node, operators, sources

SCALED = {"s": np.float32([0.5, 0.25]), "z": np.int8([0, 0])}


@pytest.mark.parametrize("add", [node("Add", "m b", "y"), node("Add", "b m", "y")])
@pytest.mark.parametrize("bias", [(2,), (1, 2), ()])
def test_matmul_and_add_of_a_row_become_gemm(add, bias: tuple[int, ...]) -> None:
    graph = network((3, 5), "y", node("MatMul", "x w", "m"), add, w=(5, 2), b=bias)
    found = recognise_gemm(graph)
    assert operators(found) == ["Gemm"]
    assert found.shape(found.nodes[0].inputs[1]) == (2, 5)
    assert found.shape(found.nodes[0].inputs[2]) == (2,)
    assert sources(found, "y") == ("m", "y")
    assert_same_meaning(graph, found)


def test_rows_of_more_than_two_dimensions_are_flattened_and_the_sum_still_becomes_the_bias() -> None:
    graph = network((2, 3, 5), "y", node("MatMul", "x w", "m"), node("Add", "m b", "y"), w=(5, 2), b=(2,))
    found = recognise_gemm(graph)
    assert operators(found) == ["Reshape", "Gemm", "Reshape"]
    assert len(found.nodes[1].inputs) == 3
    assert_same_meaning(graph, found)


def test_two_sums_become_one_bias() -> None:
    graph = network((3, 5), "y", node("Gemm", "x w b", "m"), node("Add", "m c", "y"), w=(2, 5), b=(2,), c=(2,))
    found = recognise_gemm(graph)
    assert operators(found) == ["Gemm"]
    assert_same_meaning(graph, found)


def test_weight_and_bias_behind_dequantize_linear_stay_integers() -> None:
    graph = network(
        (3, 5),
        "y",
        node("DequantizeLinear", "q s z", "w", axis=1),
        node("DequantizeLinear", "c t", "b"),
        node("MatMul", "x w", "m"),
        node("Add", "m b", "y"),
        q=np.arange(10, dtype=np.int8).reshape(5, 2),
        c=np.int32([7, -3]),
        t=0.125,
        **SCALED,
    )
    found = recognise_gemm(graph)
    assert sorted(operators(found)) == ["DequantizeLinear", "DequantizeLinear", "Gemm"]
    weight = found.producers[found.producers["y"].inputs[1]]
    assert weight.integer("axis") == 0
    np.testing.assert_array_equal(found.constants[weight.inputs[0]], np.arange(10).reshape(5, 2).T)
    assert_same_meaning(graph, found)


def test_a_product_with_a_second_reader_keeps_its_sum_apart() -> None:
    graph = network(
        (3, 5), "y", node("MatMul", "x w", "m"), node("Add", "m b", "a"), node("Mul", "a m", "y"), w=(5, 2), b=(2,)
    )
    found = recognise_gemm(graph)
    assert operators(found) == ["Gemm", "Add", "Mul"]
    assert_same_meaning(graph, found)


def test_a_product_of_two_computed_matrices_is_left() -> None:
    graph = network((3, 3), "y", node("Relu", "x", "a"), node("MatMul", "x a", "y"))
    assert recognise_gemm(graph) is graph


def test_a_sum_with_a_matrix_or_a_larger_constant_is_left() -> None:
    whole = network((3, 5), "y", node("Gemm", "x w", "m"), node("Add", "m b", "y"), w=(2, 5), b=(3, 2))
    larger = network((1, 5), "y", node("Gemm", "x w", "m"), node("Add", "m b", "y"), w=(2, 5), b=(3, 2))
    assert recognise_gemm(whole) is whole
    assert recognise_gemm(larger) is larger
