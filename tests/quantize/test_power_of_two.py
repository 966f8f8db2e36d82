"""Scales that are powers of two: as a machine demands them, on every target that quantises, by every method."""

from __future__ import annotations

from dataclasses import replace
from math import frexp

import numpy as np
import pytest
from hypothesis import given, settings

from npuc.ir import Graph
from npuc.ops.interpreter import run
from npuc.quantize.calibration.histograms import EMPTY, METHODS, Histogram, histograms
from npuc.quantize.improvement.search import TrialNetwork
from npuc.quantize.scales.assignment import ScaleConstraints, choose_scales, in_powers_of_two, next_power
from npuc.quantize.scales.zero_points import IN_BIASES, offset_inputs, offset_results
from npuc.samples.loading import Samples
from npuc.target import Options
from npuc.targets.easynpu.machine import parameters as easynpu
from npuc.targets.easynpu.network import quantising as on_easynpu
from npuc.targets.nvdla.machine import parameters as nvdla
from npuc.targets.nvdla.network import quantising as on_nvdla
from tests.passes.networks import network, node
from tests.quantize.test_improvement import residual, samples, select
from tests.quantize.test_scales import problems

TARGETS = ("easynpu", "nvdla-small")


def is_power(scale: float) -> bool:
    return frexp(scale)[0] == 0.5


def quantised(target: str, graph: Graph, data: Samples, options: Options) -> TrialNetwork:
    if target == "easynpu":
        machine = easynpu.load(None, "power-of-two")
        return on_easynpu.network(graph, data, machine, options)[0]
    return on_nvdla.network(graph, data, nvdla.load(target, None, "power-of-two"), options)[0]


@settings(deadline=None, max_examples=60)
@given(problems())
def test_the_solver_takes_it_beside_the_ties(problem: tuple[dict[str, Histogram], ScaleConstraints]) -> None:
    known, constraints = problem
    scales = choose_scales(known, in_powers_of_two(constraints, known))
    assert all(is_power(scale) for scale in scales.values())
    assert all(scales[left] == scales[right] for left, right in constraints.equal)
    for each in constraints.ratios:
        assert each.least <= np.log2(scales[each.coarse] / scales[each.fine]) <= each.most


@pytest.mark.parametrize(("scale", "power"), [(6 / 127, 1 / 16), (0.25, 0.25), (1.1, 2.0), (3e-5, 2.0**-15)])
def test_the_next_power_is_not_below_the_scale(scale: float, power: float) -> None:
    assert next_power(scale) == power


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("target", TARGETS)
def test_every_scale_of_a_network_is_one_by_every_method(target: str, method: str) -> None:
    graph = residual()
    found = quantised(target, graph, samples(graph), Options(method=method)).quantised
    assert found.scales
    assert [name for name, scale in found.scales.items() if not is_power(scale)] == []
    image = np.abs(samples(graph).inputs["x"])
    best = quantised(target, graph, Samples({"x": image}), Options(method=method)).quantised
    assert all(is_power(scale) for scale in best.scales.values())


@pytest.mark.parametrize("target", TARGETS)
def test_a_limit_of_6_remains_although_127_steps_reach_further(target: str) -> None:
    clip = node("Conv", "x w", "a", activation="Clip", min=0.0, max=6.0)
    graph = network((1, 8, 6, 6), "y", clip, node("Conv", "a v", "y"), w=(8, 8, 1, 1), v=(8, 8, 1, 1))
    values = np.random.default_rng(0).uniform(0, 2, (8, *graph.shape("x"))).astype(np.float32)
    found = quantised(target, graph, Samples({"x": values}), Options(level="0")).quantised
    scale = found.scales["a/int8"]
    assert scale == 1 / 16  # the next power of two above 6 / 127
    exact, integer = (run(each, {"x": values[0]}, [name])[name] for each, name in (
        (graph, "a"), (found.graph, "a/int8")))  # fmt: skip
    assert exact.max() == 6
    assert integer.max() == 96  # 6 * 16
    assert np.abs(integer * scale - exact).max() < 0.2


def test_int16_scales_reach_as_far_as_free_ones() -> None:
    graph = residual()
    machine = nvdla.load("nvdla-full", None, "power-of-two")
    free, power = (
        on_nvdla.network(graph, samples(graph), each, Options(precision="int16"))[0].quantised.scales
        for each in (replace(machine, scales="free"), machine)
    )
    for name, scale in power.items():
        assert is_power(scale)
        assert free[name] * (1 - 1e-6) <= scale < 2 * free[name]


def test_zero_points_keep_them() -> None:
    graph = residual()
    taken = replace(IN_BIASES, power_of_two=True)
    (result,) = offset_results(graph, select(graph), _histograms(graph), taken).values()
    image = np.random.default_rng(0).uniform(0, 0.9, graph.shape("x")).astype(np.float32)
    (pixels,) = offset_inputs(graph, select(graph), [{"x": image}], taken, anyway=True).values()
    assert is_power(result.scale)
    assert (pixels.scale, pixels.zero) == (2.0**-8, -128)  # 255 steps of it reach 0.996


def _histograms(graph: Graph) -> dict[str, Histogram]:
    return histograms(graph, samples(graph).feeds(), ["x", "a", "d", "s", "e", "y"])


@pytest.mark.parametrize("target", TARGETS)
def test_a_model_that_brings_scales_keeps_them(target: str) -> None:
    rounded = [node("FakeQuantize", x, y, scale=0.3, zero_point=0, dtype="int8") for x, y in ("xp", "ay")]
    graph = network((1, 8, 6, 6), "y", rounded[0], node("Conv", "p w", "a"), rounded[1], w=(8, 8, 1, 1))
    data = Samples({"x": np.ones((4, *graph.shape("x")), np.float32)})
    found = quantised(target, graph, data, Options()).quantised
    assert {*found.scales.values()} == {float(np.float32(0.3))}


def test_a_tensor_of_zeros_gets_one_too() -> None:
    assert is_power(choose_scales({"z": EMPTY}, in_powers_of_two(ScaleConstraints(), "z"))["z"])
