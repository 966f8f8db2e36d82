"""Improvements of a network: the meaning that equalisation keeps, what is judged, and what is dropped."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from npuc.ir import Array, Graph, Node
from npuc.ops.interpreter import run
from npuc.quantize.calibration.histograms import EMPTY, METHODS, Histogram, histograms, range_limit
from npuc.quantize.improvement import proposals, search
from npuc.quantize.improvement.acceptance import Acceptance, acceptance, ends
from npuc.quantize.improvement.equalisation import Equalised, equalise, groups, sizes
from npuc.quantize.improvement.evidence import SampledWindows, sample_windows, sums, taps_under
from npuc.quantize.improvement.levels import LEVELS, Level
from npuc.quantize.improvement.lockstep import improve_layers, weighted_nodes
from npuc.quantize.improvement.proposals import JudgedLayer
from npuc.quantize.improvement.search import Recipe, TrialNetwork, best_network, divide, plain_network, total_error
from npuc.quantize.network.build import quantiser
from npuc.quantize.network.construction import LayerWeights, Quantised, Shifted
from npuc.quantize.scales.constraints import integer_nodes, tensors_of
from npuc.quantize.scales.zero_points import offset_inputs, offset_results
from npuc.samples.loading import Samples
from npuc.targets.easynpu.layers.tables import best_table
from tests.passes.networks import network, node

RANDOM = np.random.default_rng(0)
PADS = (1, 1, 1, 1)


def weights(*shape: int) -> Array:
    """Random weights whose output channels differ in size by a factor of 30."""
    sizes = np.geomspace(0.2, 6, shape[0]).reshape(-1, *(1,) * (len(shape) - 1))
    values = np.random.default_rng(shape).standard_normal(shape)
    return (values * sizes / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def residual() -> Graph:
    """Convolutions around a sum, then a depthwise one."""
    return network(
        (1, 4, 8, 8),
        "y",
        node("Conv", "x w b", "a", pads=PADS, activation="Relu"),
        node("Conv", "a v c", "d", pads=PADS),
        node("Add", "a d", "s", activation="Relu"),
        node("Conv", "s u", "e", group=8, pads=PADS, activation="Relu"),
        node("Conv", "e t c", "y"),
        w=weights(8, 4, 3, 3), b=weights(8, 1)[:, 0], v=weights(8, 8, 3, 3), c=weights(8, 1)[:, 0],
        u=weights(8, 1, 3, 3), t=weights(8, 8, 1, 1),
    )  # fmt: skip


def samples(graph: Graph, count: int = 24) -> Samples:
    values = np.random.default_rng(1).standard_normal((count, *graph.shape("x"))).astype(np.float32)
    return Samples({"x": values})


def select(graph: Graph) -> tuple[Node, ...]:
    return integer_nodes(graph, lambda each: each.op in ("Conv", "Relu", "Add"))


RECIPE = Recipe(select, quantiser(best_table))


def sqnr(graph: Graph, found: TrialNetwork, data: Samples) -> float:
    """Of the output in dB, by the interpreter."""
    signal = noise = 0.0
    for feed in data.feeds():
        exact, result = run(graph, feed)["y"], run(found.quantised.graph, feed)["y"]
        signal += float(np.square(exact, dtype=np.float64).sum())
        noise += float(np.square(exact.astype(np.float64) - result).sum())
    return float(10 * np.log10(signal / noise))


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_equalisation_keeps_the_meaning_and_says_by_what_it_divided(share: float) -> None:
    graph = residual()
    data = list(samples(graph, 3).feeds())
    found = groups(graph)
    assert [set(each.tensors) for each in found] == [{"a", "d", "s"}, {"e"}]
    changed = equalise(graph, found, sizes(graph, found, data), share)
    for feed in data:
        before = run(graph, feed, ["a", "s", "e", "y"])
        after = run(changed.graph, feed, [f"{name}/equalised" for name in "ase"] + ["y"])
        assert np.allclose(after["y"], before["y"], rtol=1e-4, atol=1e-3)
        for name in "ase":
            column = changed.factors[f"{name}/equalised"].reshape(-1, 1, 1)
            assert np.allclose(after[f"{name}/equalised"] * column, before[name], rtol=1e-4, atol=1e-3)


def test_channels_before_a_depthwise_layer_become_equal() -> None:
    graph = network(
        (1, 4, 6, 6), "y",
        node("Conv", "x w", "a", activation="Relu"), node("Conv", "a u", "d", group=8), node("Conv", "d t", "y"),
        w=np.repeat(np.geomspace(1, 4, 8), 4).reshape(8, 4, 1, 1).astype(np.float32), u=weights(8, 1, 1, 1),
        t=weights(8, 8, 1, 1),
    )  # fmt: skip
    data = list(samples(graph, 3).feeds())
    found = groups(graph)
    changed = equalise(graph, found, sizes(graph, found, data), 0.5).graph
    largest = sizes(changed, groups(changed), data)["a/equalised"]
    assert largest.max() / largest.min() < 1.05  # factors have 16 steps an octave


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
@pytest.mark.parametrize(("writes", "reads"), [(1, 2), (2, 4), (4, 1), (2, 8)])
def test_equalisation_keeps_the_meaning_of_convolutions_in_groups(writes: int, reads: int, share: float) -> None:
    graph = network(
        (1, 4, 6, 6), "y",
        node("Conv", "x w b", "a", group=writes, activation="Relu"), node("Conv", "a t", "y", group=reads),
        w=weights(8, 4 // writes, 1, 1), b=weights(8), t=weights(16, 8 // reads, 3, 3),
    )  # fmt: skip
    data = list(samples(graph, 3).feeds())
    found = groups(graph)
    changed = equalise(graph, found, sizes(graph, found, data), share)
    assert not np.allclose(changed.factors["a/equalised"], 1)
    for feed in data:
        assert np.allclose(run(changed.graph, feed)["y"], run(graph, feed)["y"], rtol=1e-4, atol=1e-3)


def test_channels_that_are_silent_on_the_samples_keep_their_values() -> None:
    w = weights(8, 4, 1, 1)
    w[2] = 0
    t = np.geomspace(1, 30, 8).astype(np.float32).reshape(1, 8, 1, 1) * weights(8, 8, 1, 1)
    graph = network((1, 4, 6, 6), "y", node("Conv", "x w", "a"), node("Conv", "a t", "y"), w=w, t=t)
    found = groups(graph)
    factors = equalise(graph, found, sizes(graph, found, list(samples(graph, 3).feeds())), 0.5).factors
    assert factors["a/equalised"][2] == 1
    assert np.ptp(factors["a/equalised"]) > 0


def test_a_limit_or_a_reader_that_no_factor_passes_keeps_a_tensor_as_it_is() -> None:
    limited = node("Conv", "x w", "a", activation="Clip", min=0.0, max=6.0)
    convolutions = node("Conv", "x w", "a"), node("Conv", "s t", "y")
    curved, squared = node("Sigmoid", "a", "s"), node("Mul", "a a", "s")
    limited_sum = node("Conv", "x w", "b"), node("Add", "a b", "s", activation="Clip", min=0.0, max=6.0)
    cases = ((*convolutions, *each) for each in ((curved,), (squared,), limited_sum))
    for nodes in ((limited, node("Conv", "a t", "y")), *cases):
        assert groups(network((1, 4, 6, 6), "y", *nodes, w=weights(8, 4, 1, 1), t=weights(8, 8, 1, 1))) == ()


def test_every_level_is_at_least_as_good_as_the_plain_network_on_what_is_held_out() -> None:
    graph = residual()
    data = samples(graph)
    plain, none = best_network(graph, RECIPE, data, replace(LEVELS["1"], variants=()))
    best, steps = best_network(graph, RECIPE, data, LEVELS["1"])
    assert none == ()
    _, held_out = divide(data, LEVELS["1"].samples)
    judge = acceptance(graph, plain.quantised, held_out)
    assert judge.noise(best.quantised) <= judge.noise(plain.quantised)
    assert any(step.kept for step in steps)
    assert all(step.seconds >= 0 for step in steps)
    fresh = Samples({"x": np.random.default_rng(7).standard_normal((8, *graph.shape("x"))).astype(np.float32)})
    assert sqnr(graph, best, fresh) > sqnr(graph, plain, fresh)


def harmful(_layer: JudgedLayer, found: LayerWeights) -> LayerWeights:
    """Moves every result by several steps."""
    return replace(found, bias=found.round_bias(found.bias + 20 * found.power))


def test_a_proposal_that_hurts_a_layer_leaves_it_as_it_is() -> None:
    graph = residual()
    data = samples(graph)
    plain, _ = best_network(graph, RECIPE, data, LEVELS["0"])
    feeds = list(data.feeds())
    evidence = sample_windows(graph, weighted_nodes(plain.nodes), feeds, np.arange(len(feeds)) % 4 == 3)
    after = improve_layers(graph, plain.quantised, Shifted(), evidence, [harmful], depth=100).graph
    for name, value in plain.quantised.graph.constants.items():
        assert np.array_equal(after.constants[name], value), name


def test_the_run_that_calibrates_an_equalised_network_gives_the_evidence_of_a_run_of_its_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    graph = residual()
    runs: list[str] = []

    def counted(*given: Any) -> Any:
        runs.append("evidence")
        return sample_windows(*given)

    def apart(*_: object) -> dict[str, Histogram]:
        return {}

    monkeypatch.setattr(search, "sample_windows", counted)
    together, steps = best_network(graph, RECIPE, samples(graph), LEVELS["1"])
    assert "equalisation" in steps[0].name
    assert not runs
    monkeypatch.setattr("npuc.quantize.improvement.search._Climb._watch", apart)
    alone, same = best_network(graph, RECIPE, samples(graph), LEVELS["1"])
    assert runs
    assert search.as_json(same) == search.as_json(steps)
    for name, value in alone.quantised.graph.constants.items():
        assert np.array_equal(together.quantised.graph.constants[name], value), name


def test_a_step_that_hurts_the_network_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = residual()
    data = samples(graph)
    monkeypatch.setattr(proposals, "PROPOSALS", {"harm": harmful})

    def flattered(_layer: JudgedLayer, found: LayerWeights) -> float:
        """Less for every bias that moves up: the layers are deceived, and only the network shows it."""
        return -float(found.bias.astype(np.float64).sum())

    monkeypatch.setattr(JudgedLayer, "error", flattered)
    level = Level("mse", LEVELS["1"].variants, 16, (("harm",),))
    _, steps = best_network(graph, RECIPE, data, level)
    (harm,) = (step for step in steps if "harm" in step.name)
    assert not harm.kept
    assert harm.after_db is not None
    assert harm.before_db is not None
    assert harm.after_db < harm.before_db


def test_proposals_are_tried_on_the_best_variants_alone() -> None:
    graph = residual()
    level = LEVELS["2"]
    _, steps = best_network(graph, RECIPE, samples(graph), replace(level, below=None))
    proposed = [", ".join(names) for names in level.proposals]
    variants = [step for step in steps if step.name not in proposed]
    assert len(variants) > 3 and [step.name for step in steps[len(variants) :]] == 3 * proposed


@pytest.mark.parametrize("level", ["1", "2"])
def test_without_channels_to_equalise_no_network_is_tried_twice(
    monkeypatch: pytest.MonkeyPatch, level: str
) -> None:
    monkeypatch.setattr(search, "CLEARLY", 0)
    equal = residual()
    single = network((1, 4, 8, 8), "y", node("Conv", "x w", "y", activation="Relu"), w=weights(8, 4, 3, 3))
    trials = [best_network(each, RECIPE, samples(each), LEVELS[level])[1] for each in (equal, single)]
    with_equal, without = ([step.name for step in steps] for steps in trials)
    assert any("equalisation" in name for name in with_equal)
    assert not any("equalisation" in name for name in without)
    proposed = {", ".join(names) for each in LEVELS[level].rungs for names in each.proposals}
    improved = [name for name in without if name.endswith(tuple(proposed))]
    variants = [name for name in without if name not in improved]
    plain = {str(replace(each, share=None)) for each in LEVELS[level].variants if not each.split}
    assert set(variants) >= plain
    at_top = variants[-len(plain) :]
    assert len(at_top) == len(set(at_top))
    assert improved  # a variant that is judged alone at this level does not hide its improvement


def test_a_clear_gain_ends_the_usual_level_and_another_gain_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = residual()

    def steps(factor: float) -> list[str]:
        monkeypatch.setattr(search, "CLEARLY", factor)
        return [step.name for step in best_network(graph, RECIPE, samples(graph), LEVELS["1"])[1]]

    first = "mse, offsets, equalisation 0.5, bias by weights, bias by results, rounding in turn"
    assert steps(1.0) == [first]
    assert steps(0.0) == [first, "minmax", "mse, offsets", "mse, offsets, equalisation 0.5"]


def tailed(graph: Graph) -> Samples:
    """Samples with a few values far from the others."""
    return Samples({"x": np.random.default_rng(2).standard_t(2, (24, *graph.shape("x"))).astype(np.float32)})


@pytest.mark.parametrize(("level", "coarser", "judged"), [("1", 1.0, False), ("1", 1.5, True), ("2", 1.0, True)])
def test_scales_that_are_coarser_are_judged_by_thorough_levels_only(
    monkeypatch: pytest.MonkeyPatch, level: str, coarser: float, judged: bool
) -> None:
    """The range of the largest values adds 1.17 times the error here."""
    monkeypatch.setattr(search, "CLEARLY", 0)
    monkeypatch.setattr(search, "COARSER", coarser)
    graph = residual()
    _, steps = best_network(graph, RECIPE, tailed(graph), LEVELS[level])
    assert ("minmax" in [step.name for step in steps]) == judged


@pytest.mark.parametrize("method", ["mse", "minmax"])
def test_the_error_that_scales_are_expected_to_add_is_that_of_rounding_and_saturating(method: str) -> None:
    graph = residual()
    data = tailed(graph)
    network = plain_network(Equalised(graph), RECIPE, data, method)
    names = list(network.histograms)
    values = [{**run(graph, feed, [each for each in names if each != "x"]), **feed} for feed in data.feeds()]
    wanted = 0.0
    for name in names:
        x, scale = (
            np.stack([each[name] for each in values]).astype(float),
            network.quantised.scales[f"{name}/int8"],
        )
        wanted += np.square(np.rint(x / scale).clip(-128, 127) * scale - x).sum() / np.square(x).sum()
    assert total_error(network) == pytest.approx(wanted, rel=0.1)


def test_the_nodes_between_two_layers_run_in_one_session_and_those_behind_the_last_not_at_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from npuc.quantize.improvement import lockstep

    graph = residual()
    data = samples(graph)
    plain, _ = best_network(graph, RECIPE, data, LEVELS["0"])
    feeds = list(data.feeds())
    evidence = sample_windows(graph, weighted_nodes(plain.nodes), feeds, np.arange(len(feeds)) % 4 == 3)
    ran, run_nodes = [], lockstep._run  # pyright: ignore[reportPrivateUsage]

    def noted(*given: Any) -> dict[str, Array]:
        ran.append([node.op for node in given[1]])
        return run_nodes(*given)

    monkeypatch.setattr(lockstep, "_run", noted)
    improve_layers(graph, plain.quantised, Shifted(), evidence, [harmful], depth=100)
    ops = [each.op for each in plain.quantised.graph.nodes]
    assert [op for part in ran for op in part] == ops[: len(ops) - 2] and ops[-2:] == [
        "IntConv",
        "DequantizeLinear",
    ]
    assert [part.count("IntConv") for part in ran] == [0, *[1] * (ops.count("IntConv") - 1)]
    assert max(len(part) for part in ran) > 1


def test_made_up_and_few_samples_only_give_scales() -> None:
    graph = residual()
    for data in (replace(samples(graph), synthetic=True), samples(graph, 3)):
        assert best_network(graph, RECIPE, data, LEVELS["1"])[1] == ()


def test_who_learns_and_who_judges_does_not_depend_on_the_order_of_the_samples() -> None:
    graph = residual()
    data = samples(graph, 13)
    reverse = Samples({"x": data.inputs["x"][::-1]})

    def values(found: Sequence[Mapping[str, Array]]) -> list[bytes]:
        return [feed["x"].tobytes() for feed in found]

    training, held_out = divide(data, 16)
    assert [values(each) for each in divide(reverse, 16)] == [values(training), values(held_out)]
    assert (len(training), len(held_out)) == (9, 4)
    assert not {*values(training)} & {*values(held_out)}


def test_results_that_see_no_padding_get_a_zero_point_and_become_twice_as_fine() -> None:
    graph = residual()
    found = histograms(graph, samples(graph).feeds(), tensors_of(select(graph)))
    given = offset_results(graph, select(graph), found)
    assert list(given) == ["e"]  # read by a convolution without padding; a and s have readers with padding
    assert given["e"].zero == -128
    assert given["e"].scale <= found["e"].largest / 255 * 1.05


@pytest.mark.parametrize(("padded", "whole"), [(True, True), (True, False), (False, True)])
def test_an_image_keeps_its_values(padded: bool, whole: bool) -> None:
    graph = residual()
    image = RANDOM.integers(0, 256, graph.shape("x")).astype(np.float32)
    image[0, 0, 0, 0] = 255
    given = offset_inputs(graph, select(graph), [{"x": image if whole else image / 510}], anyway=padded)
    if padded:
        assert (given["x"].scale, given["x"].zero) == (1.0 if whole else 0.5 / 255, -128)
    else:
        assert given == {}


def test_what_windows_see_gives_the_convolution_s_results() -> None:
    w = weights(6, 2, 3, 3)
    graph = network((1, 4, 7, 9), "y", node("Conv", "x w", "y", group=2, pads=(1, 0, 2, 1), strides=(2, 1)), w=w)
    x = RANDOM.standard_normal((3, 4, 7, 9)).astype(np.float32)
    expected = np.concatenate([run(graph, {"x": x[i : i + 1]})["y"] for i in range(3)])
    places = SampledWindows.choose(3, graph.shape("y")[2:], 18, seed=0)
    found = sums(taps_under(x, graph.nodes[0], w.shape, places, 2), w.reshape(6, -1))
    assert len(found) == 3 * 4 * 8  # every window once
    assert np.allclose(found, expected[places.sample, :, places.row, places.column], atol=1e-5)


def test_windows_beyond_the_map_read_the_value_of_padding() -> None:
    attrs = {"group": 2, "strides": (1, 2), "dilations": (2, 1), "pads": (2, 1, 1, 3)}
    graph = network((1, 4, 7, 9), "y", node("Conv", "x w", "y", **attrs), w=weights(6, 2, 3, 3))
    x = RANDOM.integers(-128, 128, (2, 4, 7, 9)).astype(np.int8)
    padded = np.pad(x, [(0, 0), (0, 0), (2, 1), (1, 3)], constant_values=-7)
    places = SampledWindows.choose(2, graph.shape("y")[2:], 18, seed=0)
    found = taps_under(x, graph.nodes[0], (6, 2, 3, 3), places, 2, fill=-7)
    for window, (sample, row, column) in enumerate(zip(places.sample, places.row, places.column, strict=True)):
        inputs = padded[sample, :, row : row + 5 : 2, 2 * column : 2 * column + 3]
        assert np.array_equal(found[window], inputs.reshape(2, 18))


def test_no_network_is_judged_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    judged: list[Quantised] = []
    noise = Acceptance.noise

    def counted(self: Acceptance, quantised: Quantised) -> float:
        judged.append(quantised)
        return noise(self, quantised)

    monkeypatch.setattr(Acceptance, "noise", counted)
    monkeypatch.setattr(search, "CLEARLY", 0)
    graph = residual()
    _, steps = best_network(graph, replace(RECIPE, zero_points=None), samples(graph), LEVELS["1"])
    assert len({id(each) for each in judged}) == len(judged)
    assert next(each for each in steps if each.name == "mse, offsets").before_db is not None


def test_networks_are_judged_where_int8_ends_for_good() -> None:
    graph = network(
        (1, 4, 6, 6), "y",
        node("Conv", "x w", "a"), node("Softmax", "a", "s", axis=1), node("Conv", "s t", "d"),
        node("Softmax", "d", "y", axis=1), w=weights(8, 4, 1, 1), t=weights(8, 8, 1, 1),
    )  # fmt: skip
    plain, _ = best_network(graph, RECIPE, samples(graph), LEVELS["0"])
    assert ends(plain.quantised.graph) == ["d"]


def test_percentile_leaves_out_one_value_of_ten_thousand_and_entropy_the_outlier() -> None:
    values = np.abs(np.random.default_rng(3).standard_normal(40_000)).astype(np.float32)
    histogram = EMPTY.with_values(np.append(values, np.float32(60)))
    fifth_largest = np.sort(values)[-4]
    assert range_limit(histogram, "percentile") == pytest.approx(fifth_largest, rel=0.03)
    assert range_limit(histogram, "minmax") == pytest.approx(60, rel=0.01)
    assert values.max() * 0.5 < range_limit(histogram, "entropy") < 10


@pytest.mark.parametrize("method", METHODS)
def test_every_method_quantises_a_network_well(method: str) -> None:
    graph = residual()
    data = samples(graph)
    found, _ = best_network(graph, RECIPE, data, LEVELS["0"], method)
    assert sqnr(graph, found, data) > 20


def test_a_level_is_never_worse_than_the_one_below_on_what_is_held_out() -> None:
    """Scales by min-max, by MSE and everything, judged by the same samples at logits and behind the softmax."""
    graph = network(
        (1, 4, 6, 6), "y",
        node("Conv", "x w", "a", pads=PADS, activation="Relu"), node("Conv", "a t", "d"),
        node("Softmax", "d", "y", axis=1), w=weights(8, 4, 3, 3), t=weights(8, 8, 1, 1),
    )  # fmt: skip
    for seed in range(3):
        values = np.random.default_rng(seed).standard_normal((15, *graph.shape("x"))).astype(np.float32) ** 3
        data = Samples({"x": values})
        found = [best_network(graph, RECIPE, data, LEVELS[level])[0].quantised for level in "012"]
        judge = acceptance(graph, found[0], divide(data, 16)[1])
        assert (list(judge.exact), list(judge.outputs)) == (["d"], ["y"])
        least, usual, everything = (judge.noise(each) for each in found)
        assert everything <= usual <= least
