"""The judge of improvements: the noise where int8 ends, and behind it, where samples exchange errors."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.interpreter import run
from npuc.ir import Array, Graph, Node
from npuc.quantize.improvement import acceptance as judging
from npuc.quantize.improvement.acceptance import Acceptance, Tail, acceptance
from npuc.quantize.improvement.levels import LEVELS
from npuc.quantize.improvement.search import best_network
from tests.passes.networks import network, node
from tests.quantize.test_improvement import RECIPE, samples, weights


def softmax(values: Array, axis: int) -> Array:
    """In double precision."""
    powers = np.exp(values.astype(np.float64) - values.max(axis=axis, keepdims=True))
    return powers / powers.sum(axis=axis, keepdims=True)


def classifier() -> Graph:
    """A convolution, and a softmax over its channels."""
    return network(
        (1, 4, 2, 2), "y", node("Conv", "x w", "d"), node("Softmax", "d", "y", axis=1), w=weights(4, 4, 1, 1)
    )


@pytest.mark.parametrize("pairs", [1, 2, 5])
def test_every_sample_meets_the_errors_of_some(pairs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "MOST_PAIRS", pairs)
    graph = classifier()
    feeds = list(samples(graph, 5).feeds())
    made, _ = best_network(graph, RECIPE, samples(graph, 5), LEVELS["0"])
    exact, found = (
        np.concatenate([run(each, feed, ["d"])["d"] for feed in feeds]) for each in (graph, made.quantised.graph)
    )
    errors = found - exact
    inner = np.square(errors).sum() / np.square(exact).sum()
    wanted = softmax(exact, 1)
    met = [softmax(exact + np.roll(errors, -step, axis=0), 1) - wanted for step in range(pairs)]
    behind = np.mean([np.square(each).sum() for each in met]) / np.square(wanted).sum()
    judge = acceptance(graph, made.quantised, feeds)
    assert judge.noise(made.quantised) == pytest.approx((inner + behind) / 2, rel=1e-3)


def test_the_error_of_a_sure_sample_counts_where_it_would_show() -> None:
    """Logits (8, 0) and (0.1, 0): an error of 0.5 hardly shows behind the first, and turns the second."""
    graph = network((1, 2), "y", node("Neg", "x", "d"), node("Softmax", "d", "y", axis=1))
    exact = [np.array([[8.0, 0.0]], np.float32), np.array([[0.1, 0.0]], np.float32)]
    outputs = tuple(softmax(each, 1) for each in exact)
    judge = Acceptance(({}, {}), {"d": tuple(exact)}, {"y": outputs}, Tail.of(graph, ["d"], ["y"]))
    errors = [np.array([[0.0, 0.5]], np.float32), np.zeros((1, 2), np.float32)]
    own = sum(np.square(softmax(a + e, 1) - b).sum() for a, e, b in zip(exact, errors, outputs, strict=True))
    turned = np.square(softmax(exact[1] + errors[0], 1) - outputs[1]).sum()
    signal = sum(np.square(each).sum() for each in outputs)
    found = judge.behind(judge.tail, {"d": [a + e for a, e in zip(exact, errors, strict=True)]})  # type: ignore[arg-type]
    assert turned > 1000 * own
    assert found == pytest.approx((own + turned) / 2 / signal, rel=1e-3)


def test_large_outputs_meet_their_own_errors_alone() -> None:
    graph = classifier()
    tail = Tail.of(graph, ["d"], ["y"])
    assert tail.pairs(5) == 5
    assert tail.pairs(100) == judging.MOST_PAIRS
    wide = network((1, 4, 1024, 1024), "y", node("Neg", "x", "d"), node("Softmax", "d", "y", axis=1))
    assert Tail.of(wide, ["d"], ["y"]).pairs(32) == 1


def test_behind_an_affine_part_samples_need_not_exchange_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every sample with its own error has the noise of every sample with every error."""
    graph = network(
        (1, 4, 2, 2), "y",
        node("Conv", "x w", "d"), node("Mul", "d k", "p"), node("Add", "p x", "s"),
        node("Transpose", "s", "y", perm=(0, 2, 3, 1)),
        w=weights(4, 4, 1, 1), k=np.arange(1, 5, dtype=np.float32).reshape(1, 4, 1, 1),
    )  # fmt: skip
    tail = Tail.of(graph, ["d"], ["y"])
    assert tail.pairs(8) == 1
    feeds = list(samples(graph, 5).feeds())
    exact = tuple(run(graph, feed, ["d"])["d"] for feed in feeds)
    outputs = {"y": tuple(run(graph, feed)["y"] for feed in feeds)}
    judge = Acceptance(tuple(feeds), {"d": exact}, outputs, tail)
    found = {"d": [each + weights(*each.shape) * (1 + index) for index, each in enumerate(exact)]}
    own = judge.behind(tail, found)
    monkeypatch.setattr(Tail, "pairs", lambda _tail, count: count)
    assert own == pytest.approx(judge.behind(tail, found), rel=1e-5)


@pytest.mark.parametrize("last", [node("Mul", "d x", "y"), node("Sigmoid", "d", "y"), node("Add", "d s", "y")])
def test_behind_any_other_part_they_do(last: Node) -> None:
    nodes = [node("Neg", "x", "d"), node("Mul", "d d", "s"), last]
    assert Tail.of(network((1, 4, 2, 2), "y", *nodes), ["d"], ["y"]).pairs(8) == 8


def test_behind_int8_the_network_s_inputs_and_constants_are_the_sample_s_own() -> None:
    graph = network(
        (1, 4, 2, 2), "y z",
        node("Conv", "x w", "d"), node("Neg", "x", "n"), node("Mul", "d n", "p"),
        node("Softmax", "p", "y", axis=1), node("Mul", "d k", "z"),
        w=weights(4, 4, 1, 1), k=np.full((1, 4, 1, 1), 3, np.float32),
    )  # fmt: skip
    tail = Tail.of(graph, ["d"], ["y", "z"])
    assert sorted(tail.graph.inputs) == ["d", "x"]
    assert [each.op for each in tail.graph.nodes] == ["Neg", "Mul", "Softmax", "Mul"]
    feed = next(iter(samples(graph, 1).feeds()))
    d = run(graph, feed, ["d"])["d"]
    found = tail.session.run(tail.outputs, {"d": d, "x": feed["x"]})
    assert np.allclose(found[0], softmax(-d * feed["x"], 1), atol=1e-6)
    assert np.array_equal(found[1], d * 3)
