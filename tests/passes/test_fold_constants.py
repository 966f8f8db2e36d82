import numpy as np

from npuc.passes.cleanup.fold_constants import fold_constants
from tests.passes.networks import assert_same_meaning, network, node, operators


def test_a_chain_of_constants_becomes_one_constant() -> None:
    graph = network(
        (1, 3),
        "y",
        node("Neg", "c", "d"),
        node("Sqrt", "e", "f"),
        node("Add", "d f", "g"),
        node("Add", "x g", "y"),
        c=np.float32([1, 2, 3]),
        e=np.float32([4, 9, 16]),
    )
    folded = fold_constants(graph)
    assert operators(folded) == ["Add"]
    np.testing.assert_array_equal(folded.constants["g"], [1, 1, 1])
    assert set(folded.constants) == {"g"}


def test_all_pieces_of_a_split_constant_are_folded() -> None:
    graph = network(
        (2,),
        "y",
        node("Split", "c", "a b", axis=0, split=(2, 2)),
        node("Add", "x a", "s"),
        node("Add", "s b", "y"),
        c=np.float32([1, 2, 3, 4]),
    )
    folded = fold_constants(graph)
    assert operators(folded) == ["Add", "Add"]
    assert_same_meaning(graph, folded)


def test_a_constant_graph_output_keeps_its_name() -> None:
    graph = network((1,), "y z", node("Relu", "x", "y"), node("Neg", "c", "z"), c=np.float32([1]))
    folded = fold_constants(graph)
    assert operators(folded) == ["Relu"]
    assert_same_meaning(graph, folded)


def test_a_constant_is_not_blown_up_into_a_large_one() -> None:
    shape = (1, 1 << 11, 1 << 11)
    graph = network(shape, "y", node("Expand", "c", "d", shape=shape), node("Add", "x d", "y"), c=np.float32([1]))
    assert fold_constants(graph) is graph


QUANTISED = {"w": np.int8([[1, -2], [3, 4]]), "s": np.float32(0.5), "z": np.int8(0)}


def test_a_weight_stored_as_integers_is_folded_where_no_activation_is_quantised() -> None:
    graph = network((1, 2), "y", node("DequantizeLinear", "w s z", "v"), node("Gemm", "x v", "y"), **QUANTISED)
    assert operators(fold_constants(graph)) == ["Gemm"]


def test_a_weight_of_a_quantised_model_keeps_its_integers_and_scale() -> None:
    graph = network(
        (1, 2),
        "y",
        node("QuantizeLinear", "x s z", "q"),
        node("DequantizeLinear", "q s z", "d"),
        node("DequantizeLinear", "w s z", "v"),
        node("Gemm", "d v", "y"),
        **QUANTISED,
    )
    assert fold_constants(graph) is graph
