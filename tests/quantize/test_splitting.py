"""Outlier channels in two."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.interpreter import run
from npuc.ir import Array, Graph
from npuc.quantize.calibration.histograms import histograms
from npuc.quantize.improvement.splitting import split
from npuc.quantize.network.build import quantise
from npuc.quantize.scales.constraints import integer_nodes, tensors_of
from tests.passes.networks import network, node

CHANNELS = 16


def _graph(gains: Array, *, group: int = 1, outputs: str = "y") -> Graph:
    """Two convolutions with a ReLU between them whose channels reach as far as the gains say."""
    random = np.random.default_rng(0)
    w = random.standard_normal((CHANNELS, 4, 1, 1)) * gains[:, None, None, None]
    v = random.standard_normal((CHANNELS, CHANNELS // group, 3, 3)) / gains.reshape(1, -1, 1, 1)[:, :: group or 1]
    return network(
        (1, 4, 6, 6),
        outputs,
        node("Conv", "x w b", "a", activation="Relu"),
        node("Conv", "a v", "y", pads=(1, 1, 1, 1), group=group),
        w=w.astype(np.float32),
        b=(random.standard_normal(CHANNELS) * gains).astype(np.float32),
        v=v.astype(np.float32),
    )


def _gains(outliers: int) -> Array:
    return np.where(np.arange(CHANNELS) < outliers, 10.0, 1.0)


def _feeds(count: int = 8) -> list[dict[str, Array]]:
    random = np.random.default_rng(1)
    return [{"x": random.standard_normal((1, 4, 6, 6)).astype(np.float32)} for _ in range(count)]


@pytest.mark.parametrize("outliers", [1, 2])
def test_the_network_gives_what_it_gave(outliers: int) -> None:
    graph = _graph(_gains(outliers))
    found = split(graph, _feeds())
    assert found.shape("a/split") == (1, CHANNELS + outliers, 6, 6)
    for feed in _feeds():
        np.testing.assert_allclose(run(found, feed)["y"], run(graph, feed)["y"], rtol=1e-4, atol=1e-4)


def test_both_channels_reach_half_as_far_as_the_one_did() -> None:
    graph = _graph(_gains(1))
    largest = max(float(run(graph, feed, ["a"])["a"].max()) for feed in _feeds())
    found = max(float(run(split(graph, _feeds()), feed, ["a/split"])["a/split"].max()) for feed in _feeds())
    assert found == pytest.approx(largest / 2, rel=1e-3)


@pytest.mark.parametrize(
    "graph",
    [
        _graph(np.ones(CHANNELS)),  # nearly all reach nearly as far
        _graph(_gains(3)),  # more than an eighth of the channels
        _graph(_gains(1), group=CHANNELS),  # a depthwise reader has no channel to add up
        _graph(_gains(1), outputs="y a"),  # the network's user sees the tensor
    ],
)
def test_other_networks_stay_as_they_are(graph: Graph) -> None:
    assert split(graph, _feeds()) is graph


def test_an_outlier_costs_the_other_channels_less() -> None:
    graph = _graph(_gains(1))
    noise: list[float] = []
    for each in (graph, split(graph, _feeds())):
        nodes = integer_nodes(each, lambda node: node.op == "Conv")
        integer = quantise(each, nodes, histograms(each, _feeds(), tensors_of(nodes)), "minmax").graph
        noise.append(sum(float(np.square(run(integer, f)["y"] - run(graph, f)["y"]).sum()) for f in _feeds()))
    assert noise[1] < 0.6 * noise[0]  # a quarter, and what rounding the result adds
