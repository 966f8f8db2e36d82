"""batch_norm_to_conv: what no weight could take."""

import numpy as np
import pytest

from npuc.frontend import import_model
from npuc.ir import Graph, Node
from npuc.models import MODELS
from npuc.passes import FLOAT_PASSES
from npuc.passes.expansion.batch_norm_to_conv import batch_norm_to_conv
from npuc.pipeline import run_passes
from tests.passes.networks import assert_same_meaning, network, node, operators, sources


def statistics(channels: int) -> dict[str, tuple[int, ...]]:
    return dict.fromkeys("gsmv", (channels,))


def norm(x: str, y: str) -> Node:
    return node("BatchNormalization", f"{x} g s m v", y, epsilon=1e-3)


def sub_spectral(
    *before: Node, bands: int = 3, shape: tuple[int, ...] = (1, 2, 12, 5), **constants: object
) -> Graph:
    """x -> before -> a; a -> Reshape -> BatchNormalization -> Reshape -> y."""
    _, C, H, W = shape
    return network(
        (1, 2, 12, 5),
        "y",
        *before,
        node("Reshape", "a", "b", shape=(1, C * bands, H // bands, W)),
        norm("b", "c"),
        node("Reshape", "c", "y", shape=shape),
        **statistics(C * bands),
        **constants,
    )


@pytest.mark.parametrize("shape", [(1, 4, 3, 5), (2, 4, 1, 1)])
def test_over_images_it_is_a_depthwise_convolution(shape: tuple[int, ...]) -> None:
    graph = network(shape, "y", node("Relu", "x", "a"), norm("a", "y"), **statistics(4))
    found = batch_norm_to_conv(graph)
    assert operators(found) == ["Relu", "Conv"]
    assert found.nodes[1].integer("group") == 4
    assert found.shape(found.nodes[1].inputs[1]) == (4, 1, 1, 1)
    assert_same_meaning(graph, found)
    assert batch_norm_to_conv(found) is found
    assert sources(found, "y") == ("y",)


def test_over_rows_it_is_one_over_a_map_of_one_pixel() -> None:
    graph = network((1, 6), "y", node("Relu", "x", "a"), norm("a", "y"), **statistics(6))
    found = batch_norm_to_conv(graph)
    assert operators(found) == ["Relu", "Reshape", "Conv", "Reshape"]
    assert_same_meaning(graph, found)
    assert batch_norm_to_conv(found) is found


def test_computed_parameters_and_other_ranks_stay() -> None:
    graph = network((1, 4, 3), "y", node("Relu", "x", "a"), norm("a", "y"), **statistics(4))
    assert batch_norm_to_conv(graph) is graph
    mean = (node("ReduceMean", "x", "m", axes=(0, 2, 3), keepdims=0), norm("x", "y"))
    computed = network((1, 4, 3, 3), "y", *mean, g=(4,), s=(4,), v=(4,))
    assert batch_norm_to_conv(computed) is computed


def test_bands_of_rows_are_normalised_one_by_one() -> None:
    graph = sub_spectral(node("Relu", "x", "a"))
    found = batch_norm_to_conv(graph)
    assert operators(found) == ["Relu", *["Slice", "Conv"] * 3, "Concat"]
    assert [each.integers("starts") for each in found.nodes if each.op == "Slice"] == [(0,), (4,), (8,)]
    assert_same_meaning(graph, found)
    assert batch_norm_to_conv(found) is found
    assert sources(found, "y") == ("b", "c", "y")


@pytest.mark.parametrize(
    "conv",
    [
        node("Conv", "x w", "a", pads=(1, 0, 1, 2), group=2, kernel_shape=(3, 3)),
        node("Conv", "x w k", "a", pads=(2, 1, 2, 1), strides=(1, 1), dilations=(2, 1), group=2),
        node("Conv", "x w k", "a", pads=(1, 1, 0, 1), strides=(2, 1), group=2),
    ],
)
def test_a_convolution_before_the_bands_is_divided_and_takes_them(conv: Node) -> None:
    height = 12 // conv.integers("strides", (1,))[0]
    graph = sub_spectral(conv, bands=3, shape=(1, 2, height, 5), w=(2, 1, 3, 3), k=(2,))
    found = batch_norm_to_conv(graph)
    assert operators(found) == [*["Slice", "Conv"] * 3, "Concat"]
    assert_same_meaning(graph, found)
    assert sources(found, "y") == ("a", "b", "c", "y")


def test_a_convolution_with_an_activation_stays_whole() -> None:
    graph = sub_spectral(node("Conv", "x w", "a", activation="Relu"), w=(2, 2, 1, 1))
    found = batch_norm_to_conv(graph)
    assert operators(found) == ["Conv+Relu", *["Slice", "Conv"] * 3, "Concat"]
    assert_same_meaning(graph, found)


def test_a_convolution_that_something_else_reads_stays_whole() -> None:
    graph = network(
        (1, 2, 6, 5),
        "y z",
        node("Conv", "x w", "a"),
        node("Reshape", "a", "b", shape=(1, 4, 3, 5)),
        norm("b", "c"),
        node("Reshape", "c", "y", shape=(1, 2, 6, 5)),
        node("Abs", "a", "z"),
        w=(2, 2, 1, 1),
        **statistics(4),
    )
    found = batch_norm_to_conv(graph)
    assert sorted(operators(found)) == ["Abs", "Concat", *["Conv"] * 3, "Slice", "Slice"]
    assert_same_meaning(graph, found)


def test_an_activation_between_the_reshapes_is_no_obstacle() -> None:
    graph = network(
        (1, 2, 6, 5),
        "y",
        node("Reshape", "x", "b", shape=(1, 4, 3, 5)),
        norm("b", "c"),
        node("Relu", "c", "d"),
        node("Reshape", "d", "y", shape=(1, 2, 6, 5)),
        **statistics(4),
    )
    found = batch_norm_to_conv(graph)
    assert operators(found) == [*["Slice", "Conv"] * 2, "Concat", "Relu"]
    assert_same_meaning(graph, found)


def test_groups_of_channels_with_common_parameters_are_no_bands() -> None:
    graph = network(
        (1, 4, 6, 5),
        "y",
        node("Reshape", "x", "b", shape=(1, 2, 12, 5)),
        norm("b", "c"),
        node("Reshape", "c", "y", shape=(1, 4, 6, 5)),
        **statistics(2),
    )
    found = batch_norm_to_conv(graph)
    assert operators(found) == ["Conv"]
    assert_same_meaning(graph, found)


@pytest.mark.parametrize("folded", [(1, 20, 3, 1), (1, 60, 1, 1)])
def test_parameters_that_vary_along_a_row_are_normalised_where_they_stand(folded: tuple[int, ...]) -> None:
    reshape = node("Reshape", "x", "b", shape=folded)
    back = node("Reshape", "c", "y", shape=(1, 2, 6, 5))
    graph = network((1, 2, 6, 5), "y", reshape, norm("b", "c"), back, **statistics(folded[1]))
    found = batch_norm_to_conv(graph)
    assert operators(found) == ["Reshape", "Conv", "Reshape"]
    assert_same_meaning(graph, found)


def test_a_reshape_that_does_not_lead_back_stays() -> None:
    graph = network(
        (1, 2, 6, 5), "y", node("Reshape", "x", "b", shape=(1, 4, 3, 5)), norm("b", "y"), **statistics(4)
    )
    found = batch_norm_to_conv(graph)
    assert operators(found) == [*["Slice", "Conv"] * 2, "Concat", "Reshape"]
    assert_same_meaning(graph, found)


def test_bc_resnet_is_free_of_batch_normalisation() -> None:
    graph = run_passes(import_model(MODELS["bc_resnet"]()), FLOAT_PASSES)
    found = batch_norm_to_conv(graph)
    assert operators(graph).count("BatchNormalization") == 12
    assert operators(found).count("BatchNormalization") == 0
    assert operators(found).count("Reshape") == 1
    assert operators(found).count("Conv") == operators(graph).count("Conv") + 12 * 4
    assert_same_meaning(graph, found)
    assert np.array_equal(
        sources(found, "n9_Reshape"), ("n6_Conv", "n7_Reshape", "n8_BatchNormalization", "n9_Reshape")
    )
