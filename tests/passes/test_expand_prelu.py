"""expand_prelu."""

import numpy as np
import pytest

from npuc.targets.easynpu.network.expand_prelu import expand_prelu
from tests.passes.networks import assert_same_meaning, network, node, operators, sources

SLOPES = np.linspace(-1.2, 1.7, 4, dtype=np.float32)


def test_a_convolution_gives_both_signs_and_another_weighs_them() -> None:
    conv = node("Conv", "x w b", "a", pads=(1, 1, 1, 1), strides=(2, 2))
    graph = network(
        (1, 3, 6, 6), "y", conv, node("PRelu", "a s", "y"), w=(4, 3, 3, 3), b=(4,), s=SLOPES[:, None, None]
    )
    found = expand_prelu(graph)
    assert operators(found) == ["Conv+Relu", "Conv"]
    assert found.shape(found.nodes[0].output) == (1, 8, 3, 3)
    assert sources(found, found.nodes[0].output) == ("a", "y")
    assert_same_meaning(graph, found)


@pytest.mark.parametrize("shape", [(1, 4, 5, 5), (1, 4)])
def test_without_a_convolution_before_it_one_is_put_there(shape: tuple[int, ...]) -> None:
    slopes = SLOPES.reshape(4, *(1,) * (len(shape) - 2))
    graph = network(shape, "y", node("PRelu", "x s", "y"), s=slopes)
    found = expand_prelu(graph)
    assert [each for each in operators(found) if each != "Reshape"] == ["Conv+Relu", "Conv"]
    assert_same_meaning(graph, found)


@pytest.mark.parametrize("attrs", [{"group": 4}, {"activation": "Relu"}], ids=["depthwise", "with_relu"])
def test_a_convolution_that_cannot_double_its_outputs_stays(attrs: dict[str, int | str]) -> None:
    weight = (4, 1, 1, 1) if "group" in attrs else (4, 4, 1, 1)
    graph = network(
        (1, 4, 5, 5),
        "y",
        node("Conv", "x w", "a", **attrs),
        node("PRelu", "a s", "y"),
        w=weight,
        s=SLOPES[:, None, None],
    )
    found = expand_prelu(graph)
    assert operators(found)[1:] == ["Conv+Relu", "Conv"]
    assert_same_meaning(graph, found)


def test_a_convolution_with_another_reader_stays() -> None:
    graph = network(
        (1, 4, 5, 5),
        "y a",
        node("Conv", "x w", "a"),
        node("PRelu", "a s", "y"),
        w=(4, 4, 1, 1),
        s=SLOPES[:, None, None],
    )
    found = expand_prelu(graph)
    assert operators(found) == ["Conv", "Conv+Relu", "Conv"]
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(
    "slope", [np.float32(0.1), np.full((4, 1, 1), 0.1, np.float32), np.ones((4, 5, 5)) * [1, 2, 3, 4, 5]]
)
def test_one_slope_or_a_slope_per_pixel_stays(slope: np.ndarray) -> None:
    graph = network((1, 4, 5, 5), "y", node("PRelu", "x s", "y"), s=np.asarray(slope, np.float32))
    assert expand_prelu(graph) is graph
