"""Layers that the host computes in float, because int8 costs the most accuracy there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.quantize.calibration.histograms import histograms
from npuc.quantize.improvement.mixed import MOST_MEASURED, Host, candidates, mixed, without
from npuc.quantize.improvement.search import Network, Trial
from npuc.quantize.network.build import quantise
from npuc.quantize.network.construction import Quantised
from npuc.quantize.scales.constraints import integer_nodes, tensors_of
from npuc.storage.data import Samples
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
