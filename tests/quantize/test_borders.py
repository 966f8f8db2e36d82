"""A scale per channel at inputs and outputs: the meaning that it keeps, and what it gains."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.ir import Array, Graph
from npuc.quantize.improvement.borders import bordered
from npuc.reference import graph_session
from npuc.samples.loading import Samples
from npuc.target import Options, target
from tests.passes.networks import network, node

CHANNELS = 8
SPREAD = np.geomspace(0.1, 10, CHANNELS).astype(np.float32)
"""The magnitudes of channels."""
PADS = (1, 1, 1, 1)


def weights(*shape: int) -> Array:
    values = np.random.default_rng(shape).standard_normal(shape)
    return (values / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def depthwise(activation: str = "") -> Graph:
    """A depthwise convolution whose outputs have as different magnitudes as its inputs, in another order."""
    w = weights(CHANNELS, 1, 3, 3) * (SPREAD[::-1] / SPREAD)[:, None, None, None]
    attrs = {"activation": activation} if activation else {}
    b = SPREAD[::-1] / 4
    return network(
        (1, CHANNELS, 6, 7), "y", node("Conv", "x w b", "y", group=CHANNELS, pads=PADS, **attrs), w=w, b=b
    )


def gated() -> Graph:
    """A mean, a bottleneck and a sum with the input: an output with readers, a group of several tensors."""
    return network(
        (1, CHANNELS, 6, 7),
        "y z",
        node("MaxPool", "x", "p", kernel_shape=(3, 3), pads=PADS),
        node("Conv", "p v", "c", activation="Relu"),
        node("Conv", "c u", "d"),
        node("Add", "d x", "y", activation="Relu"),
        node("Conv", "y t", "z"),
        v=weights(12, CHANNELS, 1, 1),
        u=weights(CHANNELS, 12, 1, 1),
        t=weights(5, CHANNELS, 3, 3),
    )


def samples(count: int, seed: int) -> Samples:
    values = np.random.default_rng(seed).standard_normal((count, 1, CHANNELS, 6, 7)) * SPREAD[:, None, None]
    return Samples({"x": values.astype(np.float32)})


def outputs(graph: Graph, of: Samples) -> list[list[Array]]:
    run = graph_session(graph, graph.outputs)
    return [run.run(list(graph.outputs), dict(feed)) for feed in of.feeds()]


@pytest.mark.parametrize("graph", [depthwise(), depthwise("Relu"), gated()], ids=["plain", "relu", "gated"])
def test_factors_at_borders_keep_the_meaning(graph: Graph) -> None:
    made = bordered(graph, list(samples(8, 1).feeds()))
    assert made is not None
    assert made.graph.inputs == graph.inputs
    assert made.graph.outputs == graph.outputs
    assert any(np.ptp(factors) > 0 for factors in made.factors.values())
    for found, expected in zip(outputs(made.graph, samples(4, 2)), outputs(graph, samples(4, 2)), strict=True):
        for each, exact in zip(found, expected, strict=True):
            np.testing.assert_allclose(each, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


def test_channels_within_have_similar_magnitudes() -> None:
    made = bordered(depthwise(), list(samples(8, 1).feeds()))
    assert made is not None
    inner = list(made.names)
    assert [made.names[name] for name in inner] == ["x", "y"]
    run = graph_session(made.graph, inner)
    for values in run.run(inner, dict(next(iter(samples(1, 2).feeds())))):
        largest = np.abs(values).max(axis=(0, 2, 3))
        assert largest.max() < 4 * largest.min()  # the model's: 100


def test_an_input_that_is_an_output_is_no_border() -> None:
    w = weights(CHANNELS, 1, 3, 3)
    conv = node("Conv", "x w", "y", group=CHANNELS, pads=PADS)
    made = bordered(network((1, CHANNELS, 6, 7), "y x", conv, w=w), list(samples(8, 1).feeds()))
    assert made is None or made.graph.outputs == ("y", "x")


def test_a_tensor_that_a_factor_cannot_pass_has_no_border() -> None:
    graph = network((1, 4, 6, 7), "y", node("Sigmoid", "x", "s"), node("Mul", "x s", "y"))
    assert bordered(graph, []) is None


@pytest.mark.parametrize("spread", [True, False])
def test_borders_are_kept_if_they_gain_half_a_decibel(spread: bool) -> None:
    given = samples(32, 3)
    if not spread:
        given = Samples({"x": given.inputs["x"] / SPREAD[:, None, None]})
    steps = target("bm1684").quantised(gated(), given, Options(level="1", precision="int8"))[1]  # type: ignore[attr-defined]
    step = next(each for each in steps if "borders" in each.name)
    assert step.kept == spread == (step.after_db > step.before_db + 0.5)


@pytest.mark.parametrize("activation", ["", "Relu"])
def test_a_depthwise_convolution_between_parts_of_the_host_keeps_its_small_channels(activation: str) -> None:
    """One scale for all channels and all weights leaves channels of a hundredth no more than one step."""
    from npuc.interpreter import run

    graph, test = depthwise(activation), samples(16, 3)
    for level, least, most in (("0", 0, 25), ("1", 33, 60)):
        options = Options(level=level, precision="int8")
        made = target("bm1684").quantised(graph, samples(32, 1), options)[0].quantised  # type: ignore[attr-defined]
        exact = np.stack([each[0] for each in outputs(graph, test)])
        found = np.stack([run(made.graph, dict(feed))["y"] for feed in test.feeds()])
        decibels = 10 * np.log10(np.square(exact).sum() / np.square(found - exact).sum())
        assert least < decibels < most


def test_a_network_that_gives_only_classes_is_not_judged_by_them() -> None:
    graph = network(
        (1, CHANNELS, 6, 7),
        "y",
        node("Conv", "x w", "c", pads=PADS),
        node("ArgMax", "c", "y", axis=1, keepdims=0),
        w=weights(5, CHANNELS, 3, 3),
    )
    options = Options(level="1", precision="int8")
    made = target("bm1684").quantised(graph, samples(32, 1), options)[0].quantised  # type: ignore[attr-defined]
    (exact,) = outputs(graph, samples(1, 3))[0]
    (found,) = graph_session(made.graph, ["y"]).run(["y"], dict(next(samples(1, 3).feeds())))
    assert (found == exact).mean() > 0.9
