"""Sums with a factor for each operand, which have any ratio of scales; zero points of averages."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.interpreter import run
from npuc.ir import Array, Graph, Node
from npuc.quantize.calibration.histograms import histograms
from npuc.quantize.network.build import quantise
from npuc.quantize.scales.constraints import constraints_of, tensors_of
from npuc.quantize.scales.offsets import offset_results
from tests.passes.networks import network, node

RANDOM = np.random.default_rng(7)
SUM = network((1, 16, 8, 8), "y", node("Conv", "x w", "a"), node("Add", "a x", "y"), w=(16, 16, 1, 1))


def feed(graph: Graph, low: float = -1.0) -> dict[str, Array]:
    """Uniform values."""
    return {"x": RANDOM.uniform(low, 1, graph.shape("x")).astype(np.float32)}


def test_operands_of_a_sum_with_factors_have_scales_of_their_own() -> None:
    plain, free = (constraints_of(SUM, SUM.nodes, factors=factors) for factors in (False, True))
    assert (plain.equal, len(plain.ratios)) == ((("a", "x"),), 1)
    assert (free.equal, free.ratios) == ((), ())


def test_a_sum_that_cancels_is_no_finer_than_its_factors_allow() -> None:
    """x - 511/512 x needs finer steps than 1/127 of those of x, but a factor has 8 bits."""
    minus = -511 / 512 * np.eye(16, dtype=np.float32)[..., None, None]
    graph = network((1, 16, 8, 8), "y", node("Conv", "x w", "a"), node("Add", "a x", "y"), w=minus)
    x = feed(graph)
    found = histograms(graph, [x], tensors_of(graph.nodes))
    made = quantise(graph, graph.nodes, found, factors=True)
    assert made.scales["y/int8"] >= made.scales["x/int8"] / 127.5
    assert np.abs(run(made.graph, x)["y"]).max() <= 2 * made.scales["x/int8"]


@pytest.mark.parametrize(
    ("before", "offset"),
    [(node("Conv", "x w", "a", activation="Relu"), True), (node("Conv", "x w", "a"), False)],
)
def test_an_average_over_a_relu_gets_a_zero_point(before: Node, offset: bool) -> None:
    graph = network(
        (1, 4, 5, 5), "y", before, node("GlobalAveragePool", "a", "b"), node("Conv", "b w", "y"), w=(4, 4, 1, 1)
    )
    x = feed(graph)
    known = histograms(graph, [x], tensors_of(graph.nodes))
    found = offset_results(graph, graph.nodes, known)
    assert ("b" in found) is offset
    if offset:
        assert found["b"].zero == -128
        made = quantise(graph, graph.nodes, {k: v for k, v in known.items() if k not in found}, given=found)
        exact = run(graph, x)["y"]
        assert np.abs(run(made.graph, x)["y"] - exact).max() < 0.03 * np.abs(exact).max()
