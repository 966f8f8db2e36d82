"""Large averages in two stages mean what they meant."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.interpreter import run
from npuc.ir import Attr, Graph, Node, TensorType
from npuc.ops import build
from npuc.passes.expansion.split_average_pool import Limits, SplitAveragePool

split_average_pool = SplitAveragePool()


def pool(op: str, shape: tuple[int, ...], **attrs: Attr) -> Graph:
    return build("pool", [Node(op, ("x",), ("y",), attrs, "n")], {"x": TensorType(shape)}, ["y"], {})


@pytest.mark.parametrize(
    "graph",
    [
        pool("AveragePool", (1, 3, 25, 5), kernel_shape=(25, 5)),
        pool("AveragePool", (1, 3, 30, 21), kernel_shape=(9, 8), strides=(3, 2)),
        pool("GlobalAveragePool", (1, 2, 11, 13)),
    ],
    ids=["whole map", "strided", "global"],
)
def test_two_stages_give_the_same_average(graph: Graph) -> None:
    after = split_average_pool(graph)
    assert [node.op for node in after.nodes] == ["AveragePool", "AveragePool"]
    x = np.random.default_rng(0).standard_normal(graph.shape("x")).astype(np.float32)
    np.testing.assert_allclose(run(after, {"x": x})["y"], run(graph, {"x": x})["y"], rtol=1e-4, atol=1e-6)
    assert split_average_pool(after) is after


@pytest.mark.parametrize(
    ("graph", "stages"),
    [
        (pool("GlobalAveragePool", (1, 2, 112, 112)), 4),
        (pool("AveragePool", (1, 2, 150, 3), kernel_shape=(150, 1)), 2),
        (pool("AveragePool", (1, 2, 280, 5), kernel_shape=(140, 5), strides=(140, 1)), 2),
        (pool("GlobalAveragePool", (1, 2, 12, 96)), 2),
        (pool("AveragePool", (1, 2, 134, 131), kernel_shape=(66, 2), strides=(66, 1)), 2),
    ],
    ids=["both axes", "one axis", "two windows", "blocks", "blocks of one axis"],
)
def test_longer_axes_take_as_many_stages_as_are_allowed(graph: Graph, stages: int) -> None:
    after = SplitAveragePool(None)(graph)
    assert [node.op for node in after.nodes] == ["AveragePool"] * stages
    assert all(np.prod(node.integers("kernel_shape")) <= 64 for node in after.nodes)
    assert all(max(node.integers("strides")) <= 15 for node in after.nodes[:-1])
    x = np.random.default_rng(0).standard_normal(graph.shape("x")).astype(np.float32)
    np.testing.assert_allclose(run(after, {"x": x})["y"], run(graph, {"x": x})["y"], rtol=1e-4, atol=1e-6)
    assert (split_average_pool(graph) is graph) == (stages > 2)


def test_blocks_are_no_longer_than_an_average_may_be() -> None:
    graph = pool("GlobalAveragePool", (1, 2, 1, 99))
    after = SplitAveragePool(3, Limits(positions=64, extent=32, stride=8))(graph)
    assert [node.integers("kernel_shape") for node in after.nodes] == [(1, 3), (1, 3), (1, 11)]


@pytest.mark.parametrize(
    "graph",
    [
        pool("AveragePool", (1, 3, 8, 8), kernel_shape=(8, 8)),
        pool("AveragePool", (1, 3, 12, 12), kernel_shape=(9, 9), pads=(1, 1, 1, 1)),
        pool("AveragePool", (1, 3, 71, 1), kernel_shape=(71, 1)),
    ],
    ids=["small", "padded", "a prime"],
)
def test_other_averages_stay(graph: Graph) -> None:
    assert split_average_pool(graph) is graph
