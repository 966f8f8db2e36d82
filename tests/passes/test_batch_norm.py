"""recognise_batch_norm and fold_batch_norm."""

import numpy as np
import pytest

from npuc.ir import Attr, Node
from npuc.passes.fusion.fold_batch_norm import fold_batch_norm
from npuc.passes.recognition.recognise_batch_norm import recognise_batch_norm
from tests.passes.networks import assert_same_meaning, network, node, operators, sources

STATISTICS = {"g": (4,), "s": (4,), "m": (4,), "v": (4,)}


def norm(x: str, y: str) -> Node:
    return node("BatchNormalization", f"{x} g s m v", y, epsilon=1e-3)


@pytest.mark.parametrize("constant", [(4, 1, 1), (1, 4, 1, 1), (1, 1, 1), (1,), ()])
@pytest.mark.parametrize("inputs", ["x c", "c x"])
@pytest.mark.parametrize("op", ["Add", "Sub", "Mul"])
def test_arithmetic_per_channel_becomes_batch_norm(op: str, inputs: str, constant: tuple[int, ...]) -> None:
    graph = network((2, 4, 3, 3), "y", node(op, inputs, "y"), c=constant)
    found = recognise_batch_norm(graph)
    assert operators(found) == ["BatchNormalization"]
    assert_same_meaning(graph, found)


def test_division_and_negation_become_batch_norm_and_a_chain_becomes_one() -> None:
    graph = network(
        (2, 4, 3, 3),
        "y",
        node("Neg", "x", "a"),
        node("Div", "a c", "b"),
        node("Add", "b d", "e"),
        norm("e", "y"),
        c=(4, 1, 1),
        d=2,
        **STATISTICS,
    )
    found = recognise_batch_norm(graph)
    assert operators(found) == ["BatchNormalization"]
    assert sources(found, "y") == ("a", "b", "e", "y")
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(
    ("arithmetic", "constant"),
    [
        (node("Div", "c x", "y"), (4, 1, 1)),
        (node("Add", "x c", "y"), (3, 3)),
        (node("Add", "x c", "y"), (4, 3, 3)),
        (node("Mul", "x c", "y"), (5, 1, 4, 3, 3)),
        (node("Div", "x c", "y"), np.float32(0)),
        (node("Div", "x c", "y"), np.float32(1e-40)),
    ],
)
def test_other_arithmetic_is_left(arithmetic: Node, constant) -> None:
    graph = network((2, 4, 3, 3), "y", arithmetic, c=constant)
    assert recognise_batch_norm(graph) is graph


def test_a_sum_of_two_computed_tensors_or_of_integers_is_left() -> None:
    computed = network((2, 4), "y", node("Relu", "x", "r"), node("Add", "x r", "y"))
    integers = network(
        (2, 4), "y", node("Cast", "x", "i", to="int32"), node("Add", "i c", "y"), c=np.ones(4, np.int32)
    )
    assert recognise_batch_norm(computed) is computed
    assert recognise_batch_norm(integers) is integers


LAYERS: list[tuple[str, dict[str, Attr], tuple[int, ...]]] = [
    ("Conv", {}, (4, 4, 3, 3)),
    ("Conv", {"pads": (1, 1, 1, 1), "strides": (2, 1)}, (4, 4, 3, 3)),
    ("Conv", {"group": 4}, (4, 1, 3, 3)),
    ("Conv", {"group": 2}, (4, 2, 1, 1)),
    ("ConvTranspose", {"strides": (2, 2)}, (4, 4, 2, 2)),
    ("ConvTranspose", {"group": 2}, (4, 2, 2, 2)),
]


@pytest.mark.parametrize("bias", ["", " b"])
@pytest.mark.parametrize(("op", "attrs", "weight"), LAYERS)
def test_batch_norm_behind_a_convolution_is_folded_into_it(
    op: str, attrs: dict[str, Attr], weight: tuple[int, ...], bias: str
) -> None:
    constants = {"w": weight, **STATISTICS, **({"b": (4,)} if bias else {})}
    graph = network((1, 4, 6, 6), "y", node(op, f"x w{bias}", "c", **attrs), norm("c", "y"), **constants)
    found = fold_batch_norm(graph)
    assert operators(found) == [op]
    assert sources(found, "y") == ("c", "y")
    assert_same_meaning(graph, found)


def test_batch_norm_behind_gemm_is_folded_into_it() -> None:
    graph = network((3, 5), "y", node("Gemm", "x w", "c"), norm("c", "y"), w=(4, 5), **STATISTICS)
    found = fold_batch_norm(graph)
    assert operators(found) == ["Gemm"]
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(("op", "attrs", "weight"), [LAYERS[0], LAYERS[2], LAYERS[3]])
def test_batch_norm_before_a_convolution_without_padding_is_folded_into_it(
    op: str, attrs: dict[str, Attr], weight: tuple[int, ...]
) -> None:
    graph = network((1, 4, 6, 6), "y", norm("x", "n"), node(op, "n w", "y", **attrs), w=weight, **STATISTICS)
    found = fold_batch_norm(graph)
    assert operators(found) == ["Conv"]
    assert_same_meaning(graph, found)


def test_batch_norm_before_flatten_and_gemm_is_folded_into_the_columns() -> None:
    flatten = node("Reshape", "n", "f", shape=(2, 24))
    graph = network(
        (2, 4, 2, 3), "y", norm("x", "n"), flatten, node("Gemm", "f w b", "y"), w=(5, 24), b=(5,), **STATISTICS
    )
    found = fold_batch_norm(graph)
    assert operators(found) == ["Reshape", "Gemm"]
    assert_same_meaning(graph, found)


def test_batch_norm_before_a_convolution_with_padding_stays() -> None:
    conv = node("Conv", "n w", "y", pads=(1, 1, 1, 1))
    graph = network((1, 4, 6, 6), "y", norm("x", "n"), conv, w=(4, 4, 3, 3), **STATISTICS)
    assert fold_batch_norm(graph) is graph


def test_a_convolution_with_two_readers_is_not_folded() -> None:
    graph = network(
        (1, 4, 6, 6),
        "y",
        node("Conv", "x w", "c"),
        norm("c", "n"),
        node("Add", "c n", "y"),
        w=(4, 4, 1, 1),
        **STATISTICS,
    )
    assert fold_batch_norm(graph) is graph


def test_a_convolution_that_is_a_graph_output_is_not_folded() -> None:
    graph = network((1, 4, 6, 6), "y c", node("Conv", "x w", "c"), norm("c", "y"), w=(4, 4, 1, 1), **STATISTICS)
    assert fold_batch_norm(graph) is graph


def test_a_convolution_with_an_activation_is_not_folded() -> None:
    conv = node("Conv", "x w", "c", activation="Relu")
    graph = network((1, 4, 6, 6), "y", conv, norm("c", "y"), w=(4, 4, 1, 1), **STATISTICS)
    assert fold_batch_norm(graph) is graph


def test_a_weight_that_is_computed_is_not_folded() -> None:
    graph = network(
        (4, 4, 1, 1), "y", node("Relu", "x", "w"), node("Conv", "x w", "c"), norm("c", "y"), **STATISTICS
    )
    assert fold_batch_norm(graph) is graph


@pytest.mark.parametrize("op", ["Conv", "BatchNormalization"])
def test_factors_whose_product_leaves_float32_stay_apart(op: str) -> None:
    large = np.full((4, 1, 1), 1e30, np.float32)
    first = node("Conv", "x w", "a") if op == "Conv" else node("Mul", "x c", "a")
    w = np.full((4, 4, 1, 1), 1e30, np.float32)
    graph = network((1, 4, 3, 3), "y", first, node("Mul", "a c", "y"), c=large, w=w)
    found = fold_batch_norm(recognise_batch_norm(graph))
    assert operators(found) == [op, "BatchNormalization"]
    assert all(np.isfinite(each).all() for each in found.constants.values())


def test_a_bias_that_leaves_float32_is_not_moved_into_the_reader() -> None:
    graph = network(
        (1, 4, 3, 3),
        "y",
        node("Add", "x c", "a"),
        node("Conv", "a w", "y"),
        c=np.full((4, 1, 1), 1e30, np.float32),
        w=np.full((4, 4, 1, 1), 1e30, np.float32),
    )
    assert operators(fold_batch_norm(recognise_batch_norm(graph))) == ["BatchNormalization", "Conv"]
