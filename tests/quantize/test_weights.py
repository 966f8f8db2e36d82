"""Weights: their integers, and channels split or balanced, with borders."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuc.ir import Array, Graph, Node, TensorType
from npuc.ops import build
from npuc.ops.interpreter import run
from npuc.quantize.arithmetic.weights import average_taps, quantise_weights
from npuc.quantize.calibration.histograms import histograms, uniform
from npuc.quantize.improvement import balance
from npuc.quantize.improvement.balance import balance_errors, balance_network, choose_weights, without_data
from npuc.quantize.improvement.borders import equalise_borders
from npuc.quantize.improvement.equalisation import split
from npuc.quantize.improvement.levels import LEVELS
from npuc.quantize.improvement.search import TrialNetwork
from npuc.quantize.network.build import quantise
from npuc.quantize.scales.constraints import integer_nodes, tensors_of
from npuc.quantize.scales.model_scales import Steps
from npuc.reference import graph_session
from npuc.samples.loading import Samples
from npuc.target import Options, target
from tests.passes.networks import network, node

SEEDS = st.integers(0, 2**32 - 1)
SCALES = st.floats(2.0**-12, 2.0**12)


def _random(seed: int) -> tuple[Array, Array]:
    """Weights (Co, Ci, Hk, Wk) and biases of channels of very different sizes."""
    random = np.random.default_rng(seed)
    shape = tuple(int(each) for each in random.integers(1, 6, 4))
    size = np.exp2(random.uniform(-6, 3, shape[0]))
    w = random.standard_normal(shape) * size[:, None, None, None]
    return w.astype(np.float32), (random.standard_normal(shape[0]) * size).astype(np.float32)


@given(SEEDS, st.floats(2.0**-4, 2.0**4))
def test_a_channel_loses_no_more_than_rounding_at_the_finest_step_that_holds_it(seed: int, ratio: float) -> None:
    w, _ = _random(seed)
    found = quantise_weights(w, None, ratio, 1.0)
    exact = w.reshape(len(w), -1).astype(np.float64) * ratio
    back = found.w.reshape(len(w), -1) / np.exp2(found.shift.astype(np.float64))[:, None]
    for channel, restored, shift in zip(exact, back, found.shift, strict=True):
        # the finest step 2^-n, 2^-15 at the finest, with which no weight exceeds 127
        steps = [2.0**-n for n in range(16) if np.abs(np.rint(channel * 2.0**n)).max() <= 127]
        finest = min(steps, default=1.0)
        least = ((np.clip(np.rint(channel / finest), -128, 127) * finest - channel) ** 2).sum()
        assert ((restored - channel) ** 2).sum() <= least * (1 + 1e-9) + 1e-30
        if 2.0 ** -float(shift) >= finest and steps:
            assert np.abs(restored - channel).max() <= 2.0 ** -float(shift) / 2 + 1e-12


@given(SEEDS, SCALES, SCALES)
def test_shifts_stay_in_0_to_31_and_accumulators_in_32_bits(seed: int, x_scale: float, y_scale: float) -> None:
    w, bias = _random(seed)
    found = quantise_weights(w, bias, x_scale, y_scale)
    assert (found.w.dtype, found.bias.dtype, found.shift.dtype) == (np.int8, np.int32, np.int8)
    assert found.w.shape == w.shape
    assert found.shift.min() >= 0
    assert found.shift.max() <= 31
    reach = 128 * np.abs(found.w.astype(np.int64)).reshape(len(w), -1).sum(1) + np.abs(found.bias.astype(np.int64))
    assert ((reach < 2**31) | (found.shift == 0)).all()


@given(SEEDS, st.floats(2.0**-4, 2.0**4), st.floats(2.0**-4, 2.0**4))
def test_a_bias_is_rounded_to_the_step_of_the_accumulator(seed: int, x_scale: float, y_scale: float) -> None:
    w, bias = _random(seed)
    found = quantise_weights(w, bias, x_scale, y_scale)
    step = y_scale * np.exp2(-found.shift.astype(np.float64))
    assert (np.abs(found.bias * step - bias.astype(np.float64)) <= step * (0.5 + 1e-6)).all()


def test_a_weight_of_one_between_equal_scales_is_127_steps_or_a_power_of_two() -> None:
    # 1 = 64 / 2^6 exactly; 127 / 2^7 is not 1, so the coarser step wins
    found = quantise_weights(np.ones((1, 1, 1, 1), np.float32), None, 0.1, 0.1)
    assert (found.w.item(), found.shift.item()) == (64, 6)


def test_a_channel_of_zeros_stays_zero() -> None:
    found = quantise_weights(np.zeros((2, 1, 1, 1), np.float32), np.array([0, 0.5], np.float32), 0.1, 0.1)
    assert not found.w.any()
    assert found.bias[0] == 0
    assert found.bias[1] / 2.0 ** found.shift[1] * 0.1 == pytest.approx(0.5, rel=1e-6)


def test_one_large_weight_may_saturate_where_that_costs_less_than_a_coarser_step() -> None:
    # 1 = 64 / 2^6 fits, 128 / 2^7 does not; the many others, 5 / 2^9, are twice as near to a step of 2^-7
    w = np.full((1, 400), 5 / 512, np.float32)
    w[0, 0] = 1.0
    found = quantise_weights(w, None, 1.0, 1.0)
    assert found.shift.item() == 7
    assert found.w[0, 0] == 127


# The kernels of the reference, Average pooling with int8 weights, and some more.
KERNELS = [(2, 2), (3, 3), (5, 5), (7, 7), (2, 3), (1, 1), (4, 4), (8, 8), (1, 5), (6, 6), (5, 7), (3, 1)]


@pytest.mark.parametrize("kernel", KERNELS)
def test_average_taps_sum_to_a_power_of_two_and_differ_by_at_most_one(kernel: tuple[int, int]) -> None:
    taps, exponent = average_taps(kernel)
    assert taps.shape == kernel
    assert int(taps.astype(int).sum()) == 1 << exponent
    assert int(taps.max()) - int(taps.min()) <= 1
    assert taps.min() >= 1
    assert taps.max() <= 127
    # no larger power of two would do
    assert (2 << exponent) > 127 * taps.size


def test_the_taps_of_the_references_kernels_are_the_references() -> None:
    # dithered: 3x3 113/114 with S = 10, 7x7 83/84 with S = 12; 2x2 exact
    assert average_taps((2, 2))[0].tolist() == [[64, 64], [64, 64]]
    assert average_taps((2, 2))[1] == 8
    assert set(average_taps((3, 3))[0].ravel().tolist()) == {113, 114}
    assert average_taps((3, 3))[1] == 10
    assert set(average_taps((7, 7))[0].ravel().tolist()) == {83, 84}
    assert average_taps((7, 7))[1] == 12


@pytest.mark.parametrize("kernel", KERNELS[:5])
def test_an_average_is_at_most_one_lsb_off(kernel: tuple[int, int]) -> None:
    taps, exponent = average_taps(kernel)
    random = np.random.default_rng(0)
    x = random.integers(-128, 128, (20000, taps.size))
    x[:2000] = np.sort(x[:2000], axis=1)  # the taps' differences all on one side
    x[2000:4000] = random.choice([-128, 127], (2000, taps.size))
    x[4000:4256] = np.arange(-128, 128)[:, None]
    found = np.clip((x @ taps.ravel().astype(int) + (1 << exponent >> 1)) >> exponent, -128, 127)
    mean = x.mean(axis=1)
    assert np.abs(found - np.floor(mean + 0.5)).max() <= (0 if kernel == (2, 2) else 1)
    assert np.abs(found - mean).max() < 1.01
    assert np.array_equal(found[4000:4256], np.arange(-128, 128))  # a constant map keeps its value


CHANNELS = 16


def _graph(gains: Array, *, group: int = 1, outputs: str = "y") -> Graph:
    """Two convolutions with a ReLU between them whose channels reach as far as the gains say."""
    random = np.random.default_rng(0)
    w = random.standard_normal((CHANNELS, 4, 1, 1)) * gains[:, None, None, None]
    v = random.standard_normal((CHANNELS, CHANNELS // group, 3, 3)) / gains.reshape(1, -1, 1, 1)[:, :: group or 1]
    return network((1, 4, 6, 6), outputs, node("Conv", "x w b", "a", activation="Relu"),
        node("Conv", "a v", "y", pads=(1, 1, 1, 1), group=group), w=w.astype(np.float32),
        b=(random.standard_normal(CHANNELS) * gains).astype(np.float32), v=v.astype(np.float32))  # fmt: skip


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


def test_the_weight_nearest_to_the_middle_takes_the_other_neighbour() -> None:
    # nearest: 0 3 -2, errors -.25 +.25 -.45, a sum within half a step; then 0 0 0, -1.25; then 1 1 1, +1.35
    wanted = np.array([[[0.25, 2.75, -1.55]], [[0.4, 0.45, 0.4]], [[0.55, 0.5001, 0.5999]]])
    assert balance_errors(wanted).tolist() == [[[0, 3, -2]], [[0, 1, 0]], [[1, 0, 1]]]


def test_kernels_that_are_balanced_each_are_balanced_together() -> None:
    # each kernel is .4 short, the channel 1.2: the tap nearest to the middle of one kernel moves up
    wanted = np.array([[[0.4, 3.0], [0.1, 0.3], [2.0, 5.4]]])
    found = balance_errors(wanted)
    assert (found - np.rint(wanted)).sum() == 1
    assert abs((found - wanted).sum()) <= 0.5


def test_a_weight_beyond_8_bits_is_its_limit_and_others_do_not_make_up_for_it() -> None:
    assert balance_errors(np.array([[[200.0, 1.2, -300.0, 1.2, -128.4, 127.4]]])).tolist() == [
        [[127, 1, -128, 1, -128, 127]]
    ]


@given(st.integers(0, 2**32 - 1), st.floats(0.01, 60))
def test_every_weight_is_a_neighbour_and_every_sum_is_kept(seed: int, size: float) -> None:
    random = np.random.default_rng(seed)
    wanted = np.clip(random.standard_normal(tuple(random.integers(1, 9, 3))) * size, -127, 127)
    found = balance_errors(wanted)
    assert ((found == np.floor(wanted)) | (found == np.ceil(wanted))).all()
    assert (np.abs((found - wanted).sum(axis=2)) <= 1.0 + 1e-9).all()
    assert (np.abs((found - wanted).sum(axis=(1, 2))) <= 0.5 + 1e-9).all()


def weights(*shape: int) -> Array:
    return (np.random.default_rng(shape).standard_normal(shape) / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def convolution(group: int) -> Graph:
    w = weights(16, 16 // group, 3, 3)
    return network((1, 16, 8, 8), "y", node("Conv", "x w b", "y", group=group), w=w, b=weights(16, 1)[:, 0])


def drawn(graph: Graph, steps: Steps) -> TrialNetwork:
    """The integer network of a convolution with given steps of its input, with weights rounded to the nearest."""
    nodes = tuple(graph.nodes)
    known = {name: uniform(4.0) for name in ("x", "y")}
    return TrialNetwork(
        graph, nodes, known, {}, quantise(graph, nodes, known, given={"x": steps, "y": Steps(2**-9)})
    )


@pytest.mark.parametrize("group", [1, 16])
@pytest.mark.parametrize("steps", [Steps(1 / 64), Steps(1 / 128, -128)])
def test_balanced_weights_keep_the_sums_of_inputs_with_a_mean(group: int, steps: Steps) -> None:
    """Smooth positive inputs, exact in their steps: only the weights and the results are rounded."""
    graph = convolution(group)
    plain = drawn(graph, steps)
    errors: list[float] = []
    for made in (plain, balance_network(plain)):
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
    plain = TrialNetwork(graph, (pool,), {}, {}, quantise(graph, (pool,), {name: uniform(4.0) for name in "xy"}))
    made = balance_network(plain).quantised.graph
    assert all(
        np.array_equal(value, made.constants[name]) for name, value in plain.quantised.graph.constants.items()
    )


def test_a_network_whose_accumulators_would_not_fit_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = drawn(convolution(1), Steps(1 / 64))
    before = plain.quantised.graph.constants
    monkeypatch.setattr(balance, "ACCUMULATOR_LIMIT", 1000)
    after = balance_network(plain).quantised.graph.constants
    assert all(np.array_equal(value, after[name]) for name, value in before.items())


def smooth(random: np.random.Generator) -> Array:
    """Positive inputs that resemble each other, in 64ths."""
    level = random.integers(40, 100, (1, 16, 1, 1)) + random.integers(-6, 7, (1, 16, 8, 8))
    return (level / 64).astype(np.float32)


def white(random: np.random.Generator) -> Array:
    """Inputs without a mean, in 64ths."""
    return (random.integers(-100, 101, (1, 16, 8, 8)) / 64).astype(np.float32)


def noise(graph: Graph, found: TrialNetwork, inputs: list[Array]) -> float:
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
    made = choose_weights(plain, Samples({"x": np.stack([draw(random) for _ in range(8)])}))
    fresh = [draw(random) for _ in range(32)]
    nearest, all_balanced = (noise(graph, each, fresh) for each in (plain, balance_network(plain)))
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
    plain = TrialNetwork(graph, (), {}, {})
    by_noise, all_balanced = TrialNetwork(graph, (), {}, {}), TrialNetwork(graph, (), {}, {})

    def chosen_of(_network: TrialNetwork, _samples: Samples) -> TrialNetwork:
        return by_noise

    def balanced_of(_network: TrialNetwork) -> TrialNetwork:
        return all_balanced

    monkeypatch.setattr(balance, "choose_weights", chosen_of)
    monkeypatch.setattr(balance, "balance_network", balanced_of)
    samples = Samples({"x": np.zeros((count, 1, 4), dtype)}, synthetic=synthetic)
    assert without_data(plain, samples, LEVELS[level]) is (by_noise if judged else all_balanced)


BORDERS_CHANNELS = 8
SPREAD = np.geomspace(0.1, 10, BORDERS_CHANNELS).astype(np.float32)
"""The magnitudes of channels."""
PADS = (1, 1, 1, 1)


def weights_of_borders(*shape: int) -> Array:
    values = np.random.default_rng(shape).standard_normal(shape)
    return (values / np.sqrt(np.prod(shape[1:]))).astype(np.float32)


def depthwise(activation: str = "") -> Graph:
    """A depthwise convolution whose outputs have as different magnitudes as its inputs, in another order."""
    w = weights_of_borders(BORDERS_CHANNELS, 1, 3, 3) * (SPREAD[::-1] / SPREAD)[:, None, None, None]
    attrs = {"activation": activation} if activation else {}
    b = SPREAD[::-1] / 4
    return network(
        (1, BORDERS_CHANNELS, 6, 7),
        "y",
        node("Conv", "x w b", "y", group=BORDERS_CHANNELS, pads=PADS, **attrs),
        w=w,
        b=b,
    )


def gated() -> Graph:
    """A mean, a bottleneck and a sum with the input: an output with readers, a group of several tensors."""
    return network((1, BORDERS_CHANNELS, 6, 7), "y z", node("MaxPool", "x", "p", kernel_shape=(3, 3), pads=PADS),
        node("Conv", "p v", "c", activation="Relu"), node("Conv", "c u", "d"),
        node("Add", "d x", "y", activation="Relu"), node("Conv", "y t", "z"),
        v=weights_of_borders(12, BORDERS_CHANNELS, 1, 1), u=weights_of_borders(BORDERS_CHANNELS, 12, 1, 1),
        t=weights_of_borders(5, BORDERS_CHANNELS, 3, 3))  # fmt: skip


def samples(count: int, seed: int) -> Samples:
    values = (
        np.random.default_rng(seed).standard_normal((count, 1, BORDERS_CHANNELS, 6, 7)) * SPREAD[:, None, None]
    )
    return Samples({"x": values.astype(np.float32)})


def outputs(graph: Graph, of: Samples) -> list[list[Array]]:
    run = graph_session(graph, graph.outputs)
    return [run.run(list(graph.outputs), dict(feed)) for feed in of.feeds()]


@pytest.mark.parametrize("graph", [depthwise(), depthwise("Relu"), gated()], ids=["plain", "relu", "gated"])
def test_factors_at_borders_keep_the_meaning(graph: Graph) -> None:
    made = equalise_borders(graph, list(samples(8, 1).feeds()))
    assert made is not None
    assert made.graph.inputs == graph.inputs
    assert made.graph.outputs == graph.outputs
    assert any(np.ptp(factors) > 0 for factors in made.factors.values())
    for found, expected in zip(outputs(made.graph, samples(4, 2)), outputs(graph, samples(4, 2)), strict=True):
        for each, exact in zip(found, expected, strict=True):
            np.testing.assert_allclose(each, exact, rtol=1e-5, atol=1e-5 * np.abs(exact).max())


def test_channels_within_have_similar_magnitudes() -> None:
    made = equalise_borders(depthwise(), list(samples(8, 1).feeds()))
    assert made is not None
    inner = list(made.names)
    assert [made.names[name] for name in inner] == ["x", "y"]
    run = graph_session(made.graph, inner)
    for values in run.run(inner, dict(next(iter(samples(1, 2).feeds())))):
        largest = np.abs(values).max(axis=(0, 2, 3))
        assert largest.max() < 4 * largest.min()  # the model's: 100


def test_an_input_that_is_an_output_is_no_border() -> None:
    w = weights_of_borders(BORDERS_CHANNELS, 1, 3, 3)
    conv = node("Conv", "x w", "y", group=BORDERS_CHANNELS, pads=PADS)
    made = equalise_borders(network((1, BORDERS_CHANNELS, 6, 7), "y x", conv, w=w), list(samples(8, 1).feeds()))
    assert made is None or made.graph.outputs == ("y", "x")


def test_a_tensor_that_a_factor_cannot_pass_has_no_border() -> None:
    graph = network((1, 4, 6, 7), "y", node("Sigmoid", "x", "s"), node("Mul", "x s", "y"))
    assert equalise_borders(graph, []) is None


@pytest.mark.parametrize("spread", [True, False])
def test_borders_are_kept_if_they_gain_half_a_decibel(spread: bool) -> None:
    given = samples(32, 3)
    if not spread:
        given = Samples({"x": given.inputs["x"] / SPREAD[:, None, None]})
    steps = target("bm1684").quantise(gated(), given, Options(level="1", precision="int8"))[1]  # type: ignore[attr-defined]
    step = next(each for each in steps if "borders" in each.name)
    assert step.kept == spread == (step.after_db > step.before_db + 0.5)


@pytest.mark.parametrize("activation", ["", "Relu"])
def test_a_depthwise_convolution_between_parts_of_the_host_keeps_its_small_channels(activation: str) -> None:
    """One scale for all channels and all weights leaves channels of a hundredth no more than one step."""
    from npuc.ops.interpreter import run

    graph, test = depthwise(activation), samples(16, 3)
    for level, least, most in (("0", 0, 25), ("1", 33, 60)):
        options = Options(level=level, precision="int8")
        made = target("bm1684").quantise(graph, samples(32, 1), options)[0].quantised  # type: ignore[attr-defined]
        exact = np.stack([each[0] for each in outputs(graph, test)])
        found = np.stack([run(made.graph, dict(feed))["y"] for feed in test.feeds()])
        decibels = 10 * np.log10(np.square(exact).sum() / np.square(found - exact).sum())
        assert least < decibels < most


def test_a_network_that_gives_only_classes_is_not_judged_by_them() -> None:
    graph = network(
        (1, BORDERS_CHANNELS, 6, 7),
        "y",
        node("Conv", "x w", "c", pads=PADS),
        node("ArgMax", "c", "y", axis=1, keepdims=0),
        w=weights_of_borders(5, BORDERS_CHANNELS, 3, 3),
    )
    options = Options(level="1", precision="int8")
    made = target("bm1684").quantise(graph, samples(32, 1), options)[0].quantised  # type: ignore[attr-defined]
    (exact,) = outputs(graph, samples(1, 3))[0]
    (found,) = graph_session(made.graph, ["y"]).run(["y"], dict(next(samples(1, 3).feeds())))
    assert (found == exact).mean() > 0.9
