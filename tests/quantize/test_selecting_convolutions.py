"""Convolutions that only take elements: equal scales make them exact."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.interpreter import run
from npuc.ir import Array, Graph
from npuc.quantize.calibration.histograms import histograms
from npuc.quantize.network.build import quantise
from npuc.quantize.network.construction import Quantised
from npuc.quantize.scales.constraints import integer_nodes, tensors_of
from tests.passes.networks import network, node


def quantised(graph: Graph) -> tuple[Quantised, dict[str, Array]]:
    feed = {"x": np.random.default_rng(0).standard_normal(graph.shape("x")).astype(np.float32)}
    feed["x"][:, 0] *= 5  # a channel of its own size
    nodes = integer_nodes(graph, lambda each: each.op in ("Conv", "Relu"))
    return quantise(graph, nodes, histograms(graph, [feed], tensors_of(nodes))), feed


def taps(*channels: int, extent: int = 4) -> Array:
    return np.eye(extent, dtype=np.float32)[list(channels)][..., None, None]


@pytest.mark.parametrize("channels", [(3, 1, 0, 2), (2, 1), (1, 1, 3)])
def test_selected_channels_are_those_of_the_input_in_every_bit(channels: tuple[int, ...]) -> None:
    graph = network((1, 4, 5, 5), "y", node("Relu", "x", "a"), node("Conv", "a w", "y"), w=taps(*channels))
    found, feed = quantised(graph)
    values = run(found.graph, feed, ["a/int8", "y/int8"])
    assert found.scales["a/int8"] == found.scales["y/int8"]
    assert np.array_equal(values["y/int8"], values["a/int8"][:, list(channels)])


def test_one_tap_of_a_larger_kernel_moves_the_image() -> None:
    w = np.zeros((4, 1, 3, 3), np.float32)
    w[:, :, 2, 1] = 1
    conv = node("Conv", "a w", "y", group=4, pads=(1, 1, 1, 1))
    found, feed = quantised(network((1, 4, 5, 5), "y", node("Relu", "x", "a"), conv, w=w))
    values = run(found.graph, feed, ["a/int8", "y/int8"])
    assert np.array_equal(values["y/int8"][:, :, :-1], values["a/int8"][:, :, 1:])


@pytest.mark.parametrize("w", [2 * taps(0, 1, 2, 3), taps(0, 1) + taps(2, 3), 0 * taps(0, 1)])
def test_sums_factors_and_zeros_leave_the_scales_free(w: Array) -> None:
    graph = network((1, 4, 5, 5), "y", node("Relu", "x", "a"), node("Conv", "a w", "y"), w=w)
    found, _ = quantised(graph)
    assert found.scales["a/int8"] != found.scales["y/int8"]
