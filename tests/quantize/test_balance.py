"""Balanced weights: neighbours of the exact ones whose errors cancel, and what that gains without samples."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuc.interpreter import run
from npuc.ir import Array, Graph, Node, TensorType
from npuc.ops import build
from npuc.quantize.calibration.histograms import uniform
from npuc.quantize.improvement import balance
from npuc.quantize.improvement.balance import balanced, chosen, rounded, without_data
from npuc.quantize.improvement.levels import LEVELS
from npuc.quantize.improvement.search import Network
from npuc.quantize.network.build import quantise
from npuc.quantize.scales.model_scales import Steps
from npuc.samples.loading import Samples
from tests.passes.networks import network, node


def test_the_weight_nearest_to_the_middle_takes_the_other_neighbour() -> None:
    # nearest: 0 3 -2, errors -.25 +.25 -.45, a sum within half a step; then 0 0 0, -1.25; then 1 1 1, +1.35
    wanted = np.array([[[0.25, 2.75, -1.55]], [[0.4, 0.45, 0.4]], [[0.55, 0.5001, 0.5999]]])
    assert rounded(wanted).tolist() == [[[0, 3, -2]], [[0, 1, 0]], [[1, 0, 1]]]


def test_kernels_that_are_balanced_each_are_balanced_together() -> None:
    # each kernel is .4 short, the channel 1.2: the tap nearest to the middle of one kernel moves up
    wanted = np.array([[[0.4, 3.0], [0.1, 0.3], [2.0, 5.4]]])
    found = rounded(wanted)
    assert (found - np.rint(wanted)).sum() == 1
    assert abs((found - wanted).sum()) <= 0.5


def test_a_weight_beyond_8_bits_is_its_limit_and_others_do_not_make_up_for_it() -> None:
    assert rounded(np.array([[[200.0, 1.2, -300.0, 1.2, -128.4, 127.4]]])).tolist() == [
        [[127, 1, -128, 1, -128, 127]]
    ]


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 60))
def test_every_weight_is_a_neighbour_and_every_sum_is_kept(seed: int, size: float) -> None:
    random = np.random.default_rng(seed)
    wanted = np.clip(random.standard_normal(tuple(random.integers(1, 9, 3))) * size, -127, 127)
    found = rounded(wanted)
    assert ((found == np.floor(wanted)) | (found == np.ceil(wanted))).all()
    assert (np.abs((found - wanted).sum(axis=2)) <= 1.0 + 1e-9).all()
    assert (np.abs((found - wanted).sum(axis=(1, 2))) <= 0.5 + 1e-9).all()


def weights(*shape: int) -> Array:
    return (np.random.default_rng(shape).standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def convolution(group: int) -> Graph:
    w = weights(16, 16 // group, 3, 3)
    return network((1, 16, 8, 8), "y", node("Conv", "x w b", "y", group=group), w=w, b=weights(16, 1)[:, 0])


def drawn(graph: Graph, steps: Steps) -> Network:
    """The integer network of a convolution with given steps of its input, with weights rounded to the nearest."""
    nodes = tuple(graph.nodes)
    known = {name: uniform(4.0) for name in ("x", "y")}
    return Network(graph, nodes, known, {}, quantise(graph, nodes, known, given={"x": steps, "y": Steps(2**-9)}))


@pytest.mark.parametrize("group", [1, 16])
@pytest.mark.parametrize("steps", [Steps(1 / 64), Steps(1 / 128, -128)])
def test_balanced_weights_keep_the_sums_of_inputs_with_a_mean(group: int, steps: Steps) -> None:
    """Smooth positive inputs, exact in their steps: only the weights and the results are rounded."""
    graph = convolution(group)
    plain = drawn(graph, steps)
    errors: list[float] = []
    for made in (plain, balanced(plain)):
        random, total = np.random.default_rng(3), 0.0
        for _ in range(8):
            level = random.integers(40, 100, (1, 16, 1, 1)) + random.integers(-6, 7, (1, 16, 8, 8))
            x = (level * steps.scale).astype(np.float32)
            exact, found = (run(each, {"x": x})["y"] for each in (graph, made.quantised.graph))
            inside = np.abs(exact) < 0.24
            total += float(np.square(exact - found)[inside].mean())
        errors.append(total)
    assert errors[1] < errors[0] / 2


def test_what_is_no_convolution_with_weights_stays() -> None:
    pool: Node = node("GlobalAveragePool", "x", "y")
    graph = network((1, 4, 5, 5), "y", pool)
    plain = Network(graph, (pool,), {}, {}, quantise(graph, (pool,), {name: uniform(4.0) for name in "xy"}))
    made = balanced(plain).quantised.graph
    assert all(
        np.array_equal(value, made.constants[name]) for name, value in plain.quantised.graph.constants.items()
    )


def test_a_network_whose_accumulators_would_not_fit_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = drawn(convolution(1), Steps(1 / 64))
    before = plain.quantised.graph.constants
    monkeypatch.setattr(balance, "ACCUMULATOR_LIMIT", 1000)
    after = balanced(plain).quantised.graph.constants
    assert all(np.array_equal(value, after[name]) for name, value in before.items())


def smooth(random: np.random.Generator) -> Array:
    """Positive inputs that resemble each other, in 64ths."""
    level = random.integers(40, 100, (1, 16, 1, 1)) + random.integers(-6, 7, (1, 16, 8, 8))
    return (level / 64).astype(np.float32)


def white(random: np.random.Generator) -> Array:
    """Inputs without a mean, in 64ths."""
    return (random.integers(-100, 101, (1, 16, 8, 8)) / 64).astype(np.float32)


def noise(graph: Graph, found: Network, inputs: list[Array]) -> float:
    """The squared error of results that do not saturate, by the interpreter."""
    pairs = [[run(each, {"x": x})["y"] for each in (graph, found.quantised.graph)] for x in inputs]
    return sum(float(np.square(a - b)[np.abs(a) < 0.24].mean()) for a, b in pairs)


@pytest.mark.parametrize(("draw", "gain"), [(smooth, 100), (white, 1)])
def test_the_better_weights_are_chosen_by_what_the_samples_show(
    draw: Callable[[np.random.Generator], Array], gain: float
) -> None:
    """Balanced ones, or for white noise, where they lose 7 %, one of both."""
    graph = convolution(1)
    plain = drawn(graph, Steps(1 / 64))
    random = np.random.default_rng(5)
    made = chosen(plain, Samples({"x": np.stack([draw(random) for _ in range(8)])}))
    fresh = [draw(random) for _ in range(32)]
    nearest, all_balanced = (noise(graph, each, fresh) for each in (plain, balanced(plain)))
    assert noise(graph, made, fresh) < 1.1 * min(nearest, all_balanced) < 1.1 * nearest / gain + 1e-9


@pytest.mark.parametrize(
    ("dtype", "level", "count", "synthetic", "judged"),
    [
        ("int8", "1", 4, True, True),
        ("uint8", "2", 8, True, True),
        ("int8", "0", 8, True, False),  # this level makes no corrections
        ("int8", "1", 3, True, False),  # too few to learn from some and judge by others
        ("int8", "1", 8, False, False),  # the user's samples are judged by the search
        ("float32", "1", 8, True, False),  # normal values: not the range of the inputs
        ("int16", "1", 8, True, False),  # 0 and 1 only
    ],
)
def test_noise_over_the_whole_range_of_8_bit_inputs_chooses_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch, dtype: str, level: str, count: int, synthetic: bool, judged: bool
) -> None:
    graph = build("inputs", [node("Identity", "x", "y")], {"x": TensorType((1, 4), dtype)}, ["y"], {})
    plain = Network(graph, (), {}, {})
    by_noise, all_balanced = Network(graph, (), {}, {}), Network(graph, (), {}, {})

    def chosen_of(_network: Network, _samples: Samples) -> Network:
        return by_noise

    def balanced_of(_network: Network) -> Network:
        return all_balanced

    monkeypatch.setattr(balance, "chosen", chosen_of)
    monkeypatch.setattr(balance, "balanced", balanced_of)
    samples = Samples({"x": np.zeros((count, 1, 4), dtype)}, synthetic=synthetic)
    assert without_data(plain, samples, LEVELS[level]) is (by_noise if judged else all_balanced)
