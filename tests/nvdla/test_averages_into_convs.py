"""averages_into_convs: the mean of a map and the convolution behind it as averages of blocks and a larger one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npuc.interpreter import run
from npuc.ir import Graph, Node, TensorType
from npuc.ops import build
from npuc.targets.nvdla.network.passes import AveragesIntoConvs


def classifier(side: tuple[int, int], kernels: int, readers: int = 1, kernel: int = 1) -> Graph:
    """The mean of a map of six channels, and a convolution or two of it."""
    w = np.random.default_rng(0).standard_normal((kernels, 6, kernel, kernel)).astype(np.float32)
    nodes = [Node("GlobalAveragePool", ("x",), ("m",), {}, "mean")]
    nodes += [Node("Conv", ("m", "w"), (f"y{each}",), {}, f"conv{each}") for each in range(readers)]
    return build("g", nodes, {"x": TensorType((1, 6, *side))}, [f"y{each}" for each in range(readers)], {"w": w})


@pytest.mark.parametrize(
    ("side", "block"), [((8, 8), (4, 4)), ((8, 4), (2, 4)), ((6, 6), (3, 3)), ((1, 8), (1, 2)), ((7, 7), (1, 7))]
)
def test_the_convolution_adds_up_averages_of_blocks(side: tuple[int, int], block: tuple[int, int]) -> None:
    graph = classifier(side, 10)
    after = AveragesIntoConvs()(graph)
    assert [node.op for node in after.nodes] == ["AveragePool", "Conv"]
    assert int(np.prod(after.nodes[0].integers("kernel_shape"))) == int(np.prod(block))
    x = np.random.default_rng(1).standard_normal(graph.shape("x")).astype(np.float32) + 1
    np.testing.assert_allclose(run(after, {"x": x})["y0"], run(graph, {"x": x})["y0"], rtol=1e-4, atol=1e-5)
    assert AveragesIntoConvs()(after) is after


@pytest.mark.parametrize(
    "graph",
    [classifier((8, 8), 200), classifier((8, 8), 10, readers=2), classifier((12, 8), 10), classifier((1, 1), 10)],
    ids=["many weights", "two readers", "beyond the unit", "nothing to average"],
)
def test_other_averages_stay(graph: Graph) -> None:
    assert AveragesIntoConvs()(graph) is graph


@pytest.mark.parametrize("steps", [{}, {"dilations": (2, 2), "strides": (3, 1)}, {"strides": (1, 2)}])
def test_the_kernel_that_a_convolution_names_grows_with_its_weights(steps: dict[str, tuple[int, int]]) -> None:
    graph = classifier((8, 8), 10)
    named = replace(graph, nodes=(graph.nodes[0], graph.nodes[1].with_attrs(kernel_shape=(1, 1), **steps)))
    after = AveragesIntoConvs()(named)
    after.check()
    assert after.nodes[1].integers("kernel_shape") == (4, 1)
    x = np.random.default_rng(1).standard_normal(graph.shape("x")).astype(np.float32) + 1
    np.testing.assert_allclose(run(after, {"x": x})["y0"], run(graph, {"x": x})["y0"], rtol=1e-4, atol=1e-5)


def test_a_convolution_with_padding_stays() -> None:
    graph = classifier((8, 8), 10)
    conv = graph.nodes[1].with_attrs(pads=(1, 1, 1, 1), strides=(3, 3))
    padded = build("g", [graph.nodes[0], conv], {"x": graph.tensors["x"]}, ["y0"], graph.constants)
    assert AveragesIntoConvs()(padded) is padded
