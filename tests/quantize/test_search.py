"""The search for better integers: proposals, acceptance, mixed precision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import onnx
import pytest

from npuc import api
from npuc.ir import Array, Graph, Node
from npuc.models.builder import NetworkBuilder
from npuc.ops.interpreter import run
from npuc.quantize.arithmetic.weights import quantise_weights
from npuc.quantize.calibration.histograms import histograms
from npuc.quantize.improvement import acceptance as judging
from npuc.quantize.improvement import evidence, proposals
from npuc.quantize.improvement.acceptance import Acceptance, Remainder, Tail, acceptance
from npuc.quantize.improvement.levels import LEVELS
from npuc.quantize.improvement.mixed import MOST_MEASURED, Host, candidates, mix_precision, nodes_without
from npuc.quantize.improvement.proposals import (
    JudgedLayer,
    bias_by_results,
    bias_by_weights,
    rounded_in_turn,
    solve_weights,
)
from npuc.quantize.improvement.search import Trial, TrialNetwork, best_network
from npuc.quantize.network.build import quantise
from npuc.quantize.network.construction import LayerWeights, Quantised
from npuc.quantize.scales.constraints import constraints_of, integer_nodes, tensors_of
from npuc.quantize.scales.results import histograms_before_host, node_histograms
from npuc.reference import session
from npuc.samples.loading import Samples
from npuc.target import Options
from tests.onnx_models import parse
from tests.passes.networks import network, node
from tests.quantize.test_improvement import RECIPE, samples, weights


def layer(
    exact: Array, inputs: Array, results: Array | None = None, sample: Array | None = None, x_zero: int = 0
) -> tuple[JudgedLayer, LayerWeights]:
    """A fully connected layer with these inputs (windows, K); every fourth window is held out."""
    rounded = quantise_weights(exact, None, 1.0, 1.0, x_zero)
    weights = LayerWeights(rounded.w, rounded.bias.astype(np.int64), np.exp2(rounded.shift.astype(np.float64)))
    found = inputs[:, None].astype(np.float32)
    training = np.arange(len(inputs)) % 4 != 3
    return JudgedLayer(
        w=exact,
        ratio=1.0,
        bias=np.zeros(len(exact)),
        found=found,
        results=inputs @ exact.T if results is None else results,
        mean=found[training].mean(axis=0),
        sample=np.arange(len(inputs)) if sample is None else sample,
        training=training,
        x_zero=x_zero,
        y_zero=0,
        lowest=-128,
        largest=127,
        limited=False,
    ), weights


def mean_error(layer: JudgedLayer, weights: LayerWeights) -> Array:
    """By float64, before rounding and saturation: what the integers give on average beyond the exact results."""
    inputs = layer.found[layer.training][:, 0].astype(np.float64)
    bias = weights.bias + layer.x_zero * weights.w.astype(np.int64).sum(axis=1)
    found = (inputs @ weights.w.astype(np.float64).T + bias) / weights.power
    return (found - layer.results[layer.training]).mean(axis=0)


@pytest.mark.parametrize("x_zero", [0, -128])
@pytest.mark.parametrize("proposal", [bias_by_weights, bias_by_results])
def test_the_bias_takes_back_the_mean_error_of_rounded_weights(proposal: object, x_zero: int) -> None:
    random = np.random.default_rng(0)
    found, weights = layer(random.standard_normal((4, 9)) / 8, random.integers(20, 100, (64, 9)), x_zero=x_zero)
    before = np.abs(mean_error(found, weights))
    assert callable(proposal)
    after = np.abs(mean_error(found, proposal(found, weights)))
    assert before.max() > 0.05
    # a bias is rounded to steps of 2^-shift; what the samples do not agree on is left
    assert after.max() < 0.25 * before.max()


def test_a_difference_that_all_samples_share_is_taken_back_and_one_by_chance_is_not() -> None:
    inputs = np.zeros((64, 2))
    results = np.zeros((64, 2))
    results[:, 0] = 3  # in every sample
    results[:, 1] = np.where(np.arange(64) // 4 % 2, 40, -40)  # its mean is 0, by luck
    results[0, 1] += 40  # a mean of 40 / 48 whose standard error is about 40 / sqrt(48)
    found, weights = layer(np.ones((2, 2)), inputs, results)
    better = bias_by_results(found, weights)
    assert (better.bias / weights.power).tolist() == [3, 0]


def test_a_large_layer_is_summed_by_rows_as_it_is_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(3)
    taps, w = random.integers(-128, 128, (5, 1, 12)), random.integers(-127, 128, (40, 12))
    monkeypatch.setattr(evidence, "LARGE", w.size - 1)
    monkeypatch.setattr("npuc.quantize.arithmetic.weights.TOGETHER", 7 * 12)
    assert len([*evidence.row_blocks(w, 1)]) == 6
    assert np.array_equal(evidence.sums(taps, w), taps[:, 0] @ w.T)


def test_rounding_in_turn_loses_less_of_correlated_inputs_than_rounding_each() -> None:
    random = np.random.default_rng(1)
    causes, mixture = random.integers(-10, 11, (256, 3)), random.integers(-2, 3, (3, 24))
    inputs = causes @ mixture + random.integers(-2, 3, (256, 24))
    found, weights = layer(random.standard_normal((8, 24)) / 3, inputs)

    def error(each: LayerWeights) -> float:
        """By float64, without the mean, which the bias takes."""
        lost = inputs @ (each.w / each.power[:, None] - found.exact()).T
        return float(np.square(lost - lost.mean(axis=0)).sum())

    assert error(solve_weights(found, weights)) < 0.5 * error(weights)
    assert error(rounded_in_turn(found, weights)) < 0.5 * error(weights)


def test_weights_of_inputs_that_do_not_resemble_each_other_are_rounded_each() -> None:
    inputs = np.kron(np.eye(4), np.array([[60], [-60]])).repeat(4, axis=0)
    found, weights = layer(np.random.default_rng(2).standard_normal((5, 4)), inputs)
    found = replace(found, training=np.ones(len(inputs), bool))
    rounded = np.rint(found.exact() * weights.power[:, None])
    assert np.array_equal(solve_weights(found, weights).w, rounded)


def test_the_error_of_a_layer_counts_what_is_held_out_only() -> None:
    found, weights = layer(np.eye(2), np.arange(16).reshape(8, 2))
    wrong = np.where(found.training[:, None], found.results + 50, found.results)
    assert replace(found, results=wrong).error(weights) == found.error(weights) == 0
    wrong = np.where(found.training[:, None], found.results, found.results + 3)
    assert replace(found, results=wrong).error(weights) == 2 * 2 * 3**2


def test_blocks_of_columns_round_as_columns_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(0)
    made, weights = layer(random.standard_normal((5, 70)), random.integers(-99, 99, (300, 70)))
    found: list[Array] = []
    for block in (1, 32, 70):
        monkeypatch.setattr(proposals, "BLOCK", block)
        found.append(solve_weights(made, weights).w)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])


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


def test_the_outputs_of_the_whole_model_judge_its_part() -> None:
    """The model reads only the first channel of the part's result, and a tensor that the part does not compute."""
    graph = network((1, 4, 2, 2), "d", node("Conv", "x w", "d"), w=weights(4, 4, 1, 1))
    feeds = list(samples(graph, 5).feeds())
    made, _ = best_network(graph, RECIPE, samples(graph, 5), LEVELS["0"])
    exact, found = (
        np.concatenate([run(each, feed, ["d"])["d"] for feed in feeds]) for each in (graph, made.quantised.graph)
    )
    beside = np.arange(20, dtype=np.float32).reshape(5, 1, 2, 2)
    constants = "int64[1] zero = {0}, int64[1] one = {1}"
    read = "float[1,4,2,2] d, float[1,1,2,2] b"
    rest = parse(
        f"g ({read}) => (float[1,1,2,2] y) <{constants}> {{ s = Slice(d, zero, one, one)\n y = Add(s, b) }}"
    )
    remainder = Remainder(session(rest), ("y",), tuple({"b": each} for each in beside[:3, None]))
    wanted = exact[:3, :1] + beside[:3]
    inner = np.square(found - exact).sum() / np.square(exact).sum()
    whole = np.square((found - exact)[:3, :1]).sum() / np.square(wanted).sum()
    judge = acceptance(graph, made.quantised, feeds, lambda: remainder)
    assert judge.noise(made.quantised) == pytest.approx((inner + whole) / 2, rel=1e-3)
    ruined = replace(remainder, feeds=tuple({"b": np.full_like(each["b"], np.nan)} for each in remainder.feeds))
    judge = acceptance(graph, made.quantised, feeds, lambda: ruined)
    assert judge.noise(made.quantised) == pytest.approx(inner, rel=1e-3)


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


def _uneven() -> Graph:
    """A first layer whose int8 input holds one huge and one small channel, then a large layer."""
    random = np.random.default_rng(0)
    first = random.standard_normal((4, 2, 1, 1)).astype(np.float32)
    first[:, 0] /= 1000  # the huge channel of the input
    return network(
        (1, 2, 6, 6),
        "y",
        node("Conv", "x w", "a", activation="Relu"),
        node("Conv", "a v", "b", activation="Relu", pads=(1, 1, 1, 1)),
        node("Conv", "b u", "y"),
        w=first,
        v=random.standard_normal((16, 4, 3, 3)).astype(np.float32),
        u=random.standard_normal((3, 16, 1, 1)).astype(np.float32),
    )


def _samples() -> Array:
    values = np.random.default_rng(1).standard_normal((12, 1, 2, 6, 6)).astype(np.float32)
    values[:, :, 0] *= 1000
    return values


def _nodes(graph: Graph) -> tuple[Node, ...]:
    return integer_nodes(graph, lambda each: each.op == "Conv")


class _Cases:
    """Networks without some nodes, and which were asked for."""

    def __init__(self, samples: Samples, graph: Graph | None = None) -> None:
        self.graph, self.samples = graph or _uneven(), samples
        self.known = histograms(self.graph, samples.feeds(), tensors_of(_nodes(self.graph)))
        self.improved: list[Host] = []

    def drawn(self, host: Host) -> Quantised:
        return quantise(self.graph, nodes_without(_nodes(self.graph), host), self.known)

    def best(self, host: Host) -> tuple[TrialNetwork, tuple[Trial, ...]]:
        self.improved.append(host)
        nodes = nodes_without(_nodes(self.graph), host)
        return TrialNetwork(self.graph, nodes, self.known, {}, self.drawn(host)), ()

    def mixed(self) -> tuple[TrialNetwork, Sequence[Trial]]:
        return mix_precision(self.graph, self.drawn, self.best, self.samples)


def test_the_layer_whose_input_no_scale_suits_goes_to_the_host() -> None:
    cases = _Cases(Samples({"x": _samples()}))
    found, steps = cases.mixed()
    assert cases.improved[0] == frozenset()
    assert "a" in cases.improved[1]
    assert "a" not in [each.name for each in found.nodes]
    assert [each.kept for each in steps] == [True]
    assert "'a'" in steps[0].name
    assert steps[0].after_db is not None
    assert steps[0].before_db is not None
    assert steps[0].after_db > steps[0].before_db + 3


def test_of_made_up_samples_nothing_is_chosen() -> None:
    cases = _Cases(Samples({"x": _samples()}, synthetic=True))
    assert (cases.mixed()[1], cases.improved) == ((), [frozenset()])


def test_a_network_whose_only_layer_does_all_the_work_is_left_as_it_is() -> None:
    w = np.random.default_rng(0).standard_normal((4, 2, 3, 3)).astype(np.float32)
    cases = _Cases(Samples({"x": _samples()}), network((1, 2, 6, 6), "y", node("Conv", "x w", "y"), w=w))
    assert (cases.mixed()[1], cases.improved) == ((), [frozenset()])


def test_a_layer_with_most_of_the_work_is_no_candidate() -> None:
    graph = _uneven()
    shares = candidates(graph, _Cases(Samples({"x": _samples()})).drawn(frozenset()))
    macs = {"a": 36 * 4 * 2, "b": 36 * 16 * 4 * 9, "y": 36 * 3 * 16}
    assert shares == {name: macs[name] / sum(macs.values()) for name in ("a", "y")}


def test_a_search_measures_few_layers_alone_however_many_there_are() -> None:
    layers = 30
    random = np.random.default_rng(2)
    graph = network(
        (1, 4, 6, 6),
        f"t{layers}",
        *(node("Conv", f"{'x' if at == 0 else f't{at}'} w{at}", f"t{at + 1}") for at in range(layers)),
        **{f"w{at}": random.standard_normal((4, 4, 1, 1)).astype(np.float32) for at in range(layers)},
    )
    samples = Samples({"x": random.standard_normal((12, 1, 4, 6, 6)).astype(np.float32)})
    known = histograms(graph, samples.feeds(), tensors_of(_nodes(graph)))
    made: list[Host] = []

    def drawn(host: Host) -> Quantised:
        made.append(host)
        return quantise(graph, nodes_without(_nodes(graph), host), known)

    mix_precision(graph, drawn, lambda host: (TrialNetwork(graph, (), known, {}, drawn(host)), ()), samples)
    assert len([host for host in made if len(host) == 1]) >= MOST_MEASURED
    assert len(made) <= 4 + 2 * MOST_MEASURED


def _scores(x: Array) -> tuple[onnx.ModelProto, Array]:
    """A Sigmoid of a Conv beside x, and its logits for x: from -6 up to where scores differ from 1 by 1e-5."""
    w, b = np.array([[4.0, 1.0], [1.0, -3.0]], np.float32), np.array([-3.0, -2.0], np.float32)
    net = NetworkBuilder("scores", 0)
    name = net.input((1, 2, 6, 6))
    logits = net.node("Conv", [name, net.weight(w[:, :, None, None], "w"), net.weight(b, "b")], (1, 2, 6, 6))
    model = net.finish(net.concat(net.node("Sigmoid", [logits], (1, 2, 6, 6)), name))
    return model, np.einsum("oc,ncij->noij", w, x[:, 0]) + b[:, None, None]


@pytest.mark.parametrize("target", ["easynpu", "nvdla-full"])
def test_scores_near_1_keep_their_order_on_the_host(target: str) -> None:
    x = np.random.default_rng(4).uniform(-1, 3.5, (16, 1, 2, 6, 6)).astype(np.float32)
    model, logits = _scores(x)
    high = logits > 7  # 1 - 0.0009 and above: all the same in steps of 1/128
    distinct: dict[bool, int] = {}
    for on_host in (False, True):
        options = Options(strict=not on_host)
        found = api.compile(model, target=target, options=options, calibration={"input": x}).run({"input": x})
        (scores,) = found.values()
        scores = scores.reshape(16, 4, 6, 6)[:, :2]
        distinct[on_host] = len(np.unique(scores[high]))
    assert distinct[False] <= 2
    assert distinct[True] > 20
    ranks = [each[high].argsort().argsort().astype(float) for each in (logits, scores)]
    assert np.corrcoef(np.stack(ranks))[0, 1] > 0.999


def test_inputs_of_functions_on_the_host_do_not_saturate() -> None:
    graph = network(
        (1, 2, 6, 6), "y", node("Conv", "x w", "a"), node("Sigmoid", "a", "y"), w=np.ones((1, 2, 1, 1), np.float32)
    )
    assert "a" in constraints_of(graph, graph.nodes[:1]).unsaturated
    assert "a" not in constraints_of(graph, graph.nodes).unsaturated


@pytest.mark.parametrize(("op", "reach"), [("Sigmoid", 12), ("HardSigmoid", 3)])
def test_large_inputs_count_where_a_function_is_computed_in_float(op: str, reach: int) -> None:
    attributes = {"alpha": 1 / 6, "beta": 0.5} if op == "HardSigmoid" else {}
    graph = network(
        (1, 1, 1, 2),
        "y",
        node("Conv", "x w", "a"),
        node(op, "a", "y", **attributes),
        w=np.ones((1, 1, 1, 1), np.float32),
    )
    samples = Samples({"x": np.array([[[[[-30.0, 12.0]]]]], np.float32)})
    found = node_histograms(histograms, graph, samples, ("x", "a", "y"), graph.nodes)
    assert found["a"].largest < 7
    before = histograms_before_host(histograms, graph, samples, found, {graph.nodes[1].name})
    assert reach <= before["a"].largest < reach + 0.1  # -30 gives 1e-13: no range is wasted on it
    assert histograms_before_host(histograms, graph, samples, found, set()) == found
