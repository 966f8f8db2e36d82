"""Layers that the host computes in float, because int8 costs the most accuracy there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx
import pytest

from npuc import api
from npuc.ir import Array, Graph, Node
from npuc.models.builder import NetworkBuilder
from npuc.quantize.calibration.histograms import histograms
from npuc.quantize.improvement.mixed import MOST_MEASURED, Host, candidates, mixed, without
from npuc.quantize.improvement.search import Network, Trial
from npuc.quantize.network.build import quantise
from npuc.quantize.network.construction import Quantised
from npuc.quantize.scales.constraints import constraints_of, integer_nodes, tensors_of
from npuc.quantize.scales.results import histograms_before_host, node_histograms
from npuc.samples.loading import Samples
from npuc.target import Options
from tests.passes.networks import network, node


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
        return quantise(self.graph, without(_nodes(self.graph), host), self.known)

    def best(self, host: Host) -> tuple[Network, tuple[Trial, ...]]:
        self.improved.append(host)
        nodes = without(_nodes(self.graph), host)
        return Network(self.graph, nodes, self.known, {}, self.drawn(host)), ()

    def mixed(self) -> tuple[Network, Sequence[Trial]]:
        return mixed(self.graph, self.drawn, self.best, self.samples)


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
        return quantise(graph, without(_nodes(graph), host), known)

    mixed(graph, drawn, lambda host: (Network(graph, (), known, {}, drawn(host)), ()), samples)
    assert len([host for host in made if len(host) == 1]) >= MOST_MEASURED
    assert len(made) <= 4 + 2 * MOST_MEASURED


def _scores(x: Array) -> tuple[onnx.ModelProto, Array]:
    """A Conv and a Sigmoid, and their logits for x: from -6 up to where scores differ from 1 by 1e-5."""
    w, b = np.array([[4.0, 1.0], [1.0, -3.0]], np.float32), np.array([-3.0, -2.0], np.float32)
    net = NetworkBuilder("scores", 0)
    name = net.input((1, 2, 6, 6))
    logits = net.node("Conv", [name, net.weight(w[:, :, None, None], "w"), net.weight(b, "b")], (1, 2, 6, 6))
    model = net.finish(net.node("Sigmoid", [logits], (1, 2, 6, 6)))
    return model, np.einsum("oc,ncij->noij", w, x[:, 0]) + b[:, None, None]


@pytest.mark.parametrize("target", ["easynpu", "nvdla-full"])
def test_scores_near_1_keep_their_order_on_the_host(target: str) -> None:
    x = np.random.default_rng(4).uniform(-1, 3.5, (16, 1, 2, 6, 6)).astype(np.float32)
    model, logits = _scores(x)
    high = logits > 7  # 1 - 0.0009 and above: all the same in steps of 1/128
    distinct: dict[bool, int] = {}
    for on_host in (False, True):
        options = Options(mixed=on_host)
        found = api.compile(model, target=target, options=options, calibration={"input": x}).run({"input": x})
        (scores,) = found.values()
        scores = scores.reshape(logits.shape)
        distinct[on_host] = len(np.unique(scores[high]))
    assert distinct[False] <= 2
    assert distinct[True] > 20
    ranks = [each[high].argsort().argsort().astype(float) for each in (logits, scores)]
    assert np.corrcoef(np.stack(ranks))[0, 1] > 0.999


def test_a_function_alone_stays_on_the_array() -> None:
    net = NetworkBuilder("alone", 0)
    model = net.finish(net.node("Sigmoid", [net.input((1, 2, 6, 6))], (1, 2, 6, 6)))
    x = np.random.default_rng(4).uniform(-6, 6, (8, 1, 2, 6, 6)).astype(np.float32)
    found = api.compile(model, target="easynpu", options=Options(mixed=True), calibration={"input": x})
    assert "Sigmoid" not in [each.get("op") for each in found.program.manifest["steps"]]


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
