"""How weights become fp16: each next to its value, together right on the mean of what they are multiplied by."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from npuc import running
from npuc.ir import Array, TensorType
from npuc.ops import build
from npuc.reference import session
from npuc.samples import loading as data
from npuc.target import target
from npuc.targets.nvdla.machine.parameters import FULL
from npuc.targets.nvdla.model import fp16, half_products, run
from npuc.targets.nvdla.quantisation.rounding import moments, round_weights
from tests.nvdla import plain_fp16
from tests.nvdla.networks import compiled
from tests.nvdla.programs import Convolution, memory
from tests.onnx_models import network, node, weights

NOTHING = np.zeros(12)


def _weights(*shape: int) -> Array:
    return np.random.default_rng(7).standard_normal(shape)


def _mean_errors(found: Array, w: Array, mean: Array) -> Array:
    return np.abs(((found - w) * mean).sum(axis=(1, 2, 3)))


def test_without_a_mean_every_weight_is_the_nearest() -> None:
    w = _weights(12, 20, 3, 3)
    np.testing.assert_array_equal(round_weights(w, np.zeros(1), np.ones(1), NOTHING), w.astype(np.float16))


@pytest.mark.parametrize("mean", [1.0, -3.0])
def test_errors_cancel_on_the_mean_and_each_weight_is_next_to_its_value(mean: float) -> None:
    w = _weights(12, 20, 3, 3)
    found = round_weights(w, np.full(1, mean), np.full(1, 0.01), NOTHING)
    nearest = w.astype(np.float16)
    below, above = (np.nextafter(nearest, np.float16(each)) for each in (-np.inf, np.inf))
    assert ((found == nearest) | ((found == below) & (nearest > w)) | ((found == above) & (nearest <= w))).all()
    assert np.count_nonzero(found != nearest) < 0.1 * found.size
    assert _mean_errors(found, w, np.array(mean)).max() < 0.05 * _mean_errors(nearest, w, np.array(mean)).mean()


def test_what_else_results_are_off_by_is_taken_back() -> None:
    w, off = _weights(12, 64, 1, 1), np.linspace(-2e-3, 2e-3, 12)
    found = round_weights(w, np.ones(1), np.full(1, 1e-6), off)
    assert np.abs((found - w).sum(axis=(1, 2, 3)) + off).max() < 2e-4


def test_a_variance_that_outweighs_the_mean_leaves_the_nearest() -> None:
    w = _weights(12, 20, 3, 3)
    np.testing.assert_array_equal(round_weights(w, np.full(1, 1e-6), np.ones(1), NOTHING), w.astype(np.float16))


def test_zeros_stay_zeros() -> None:
    w = _weights(12, 20, 3, 3)
    w[:, ::2] = 0
    found = round_weights(w, np.ones(1), np.full(1, 1e-6), np.full(12, 0.1))
    assert not found[:, ::2].any()


def test_kernels_are_rounded_in_parts_as_they_are_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    w = _weights(12, 20, 3, 3)
    whole = round_weights(w, np.ones(1), np.full(1, 0.01), NOTHING)
    monkeypatch.setattr("npuc.quantize.arithmetic.weights.TOGETHER", 5 * w[0].size)
    np.testing.assert_array_equal(round_weights(w, np.ones(1), np.full(1, 0.01), NOTHING), whole)


def test_moments_are_those_of_channels_over_all_samples() -> None:
    """By hand: channel 0 sees 1, 3 and 5, 7; channel 1 sees 2, 2 and -4, infinity, which has no mean."""
    graph = build("g", [], {"x": TensorType((1, 2, 1, 2), "float32")}, ("x",), {})
    values = [[[[1, 3]], [[2, 2]]]], [[[[5, 7]], [[-4, np.inf]]]]
    samples = [{"x": np.array(each, np.float32)} for each in values]
    found = moments(graph, samples, ["x"])["x"]
    assert found.mean.tolist() == [4, 0]
    assert found.variance.tolist() == [5, 8]
    assert found.largest == np.inf


def test_the_mean_of_each_channel_is_nearer_than_fp16_itself(tmp_path: Path) -> None:
    """Against onnxruntime, on other samples than npuc made up: weights rounded to nearest give 75 dB at most."""
    nodes = [node("Conv", "x u b", "a", pads=[1, 1, 1, 1]), node("Relu", "a", "c"), node("Conv", "c v", "y")]
    constants = {"u": weights(32, 24, 3, 3), "b": weights(32, 1)[:, 0] + 0.5, "v": weights(20, 32, 3, 3)}
    path, _, program = compiled(
        network(nodes, (1, 24, 16, 16), constants), tmp_path, "nvdla-full", precision="fp16"
    )
    samples = data.synthetic(running.program_inputs(program), 4, seed=1)
    found = target("nvdla-full").runner(program)(samples.inputs)["y"]
    run = session(onnx.load(path))
    exact = np.stack([run.run(["y"], feed)[0] for feed in samples.feeds()])
    of_fp32, of_fp16 = (each.mean(axis=(0, 1, 3, 4), dtype=np.float64) for each in (exact, found))
    assert np.square(of_fp32).sum() > 10**8.2 * np.square(of_fp16 - of_fp32).sum()


# fp16 to the bit: the model's arrays against the description, number by number; signs of zero and NaN


def _patterns(random: np.random.Generator, kind: str, shape: tuple[int, ...]) -> Array:
    """fp16 numbers of a kind, all finite."""
    match kind:
        case "normal":
            return random.standard_normal(shape).astype(np.float16)
        case "positive":
            return np.abs(random.standard_normal(shape) + 1).astype(np.float16)
        case "uneven":
            return (random.standard_normal(shape) * 10.0 ** random.integers(-6, 4, shape)).astype(np.float16)
        case _:
            bits = random.integers(0, 1 << 16, shape).astype(np.uint16).view(np.float16)
            return np.where(np.isfinite(bits), bits, np.float16(-0.0)).astype(np.float16)


@pytest.mark.parametrize("kind", ["normal", "positive", "uneven", "any"])
@pytest.mark.parametrize("shape", [(3, 40, 5), (2, 64, 9), (4, 1, 4)])
def test_a_group_of_products_is_that_of_the_description(kind: str, shape: tuple[int, int, int]) -> None:
    places, size, kernels = shape
    random = np.random.default_rng(len(kind) + size)
    data, weights = _patterns(random, kind, (places, size)), _patterns(random, kind, (size, kernels))
    found = half_products.multiply(*(half_products.operands(each.astype(np.float32)) for each in (data, weights)))
    for place in range(places):
        for kernel in range(kernels):
            products, top = plain_fp16.group(_bits(data[place]), _bits(weights[:, kernel]))
            assert (int(found.total[place, kernel]), int(found.top[place, kernel])) == (sum(products), top)


def _bits(values: Array) -> list[int]:
    return np.ascontiguousarray(values).view(np.uint16).tolist()


@pytest.mark.parametrize("kind", ["normal", "positive", "uneven"])
def test_a_convolution_adds_groups_as_the_description_does(kind: str) -> None:
    random = np.random.default_rng(7)
    program = Convolution(FULL, (70, 3, 4), (5, 2, 3), "fp16")
    x, w = _patterns(random, kind, (70, 3, 4)), _patterns(random, kind, (5, 70, 2, 3))
    after = run(FULL, [*program.commands(), program.wait()], memory(program.contents(x, w)))
    found = program.read(after)
    for k, row, column in np.ndindex(found.shape):
        groups = [
            (_bits(x[block, row + r, column + s]), _bits(w[k, block, r, s]))
            for block in (slice(0, 64), slice(64, 70))
            for r in range(2)
            for s in range(3)
        ]
        with np.errstate(over="ignore"):
            wanted = np.clip(np.float32(plain_fp16.summed(groups)), -65504, 65504).astype(np.float16)
        assert found[k, row, column] == wanted


def test_a_sum_of_39_bits_rounds_ties_away_from_zero() -> None:
    one, tie = np.array([1.0, -1.0]), np.array([2.0**-39, -(2.0**-39)])
    np.testing.assert_array_equal(half_products.add(one, tie), one + 2 * tie)
    np.testing.assert_array_equal(half_products.add(one, tie * (1 - 2.0**-30)), one)  # hardly less than a tie
    np.testing.assert_array_equal(half_products.add(one, -tie), one - tie)  # below 1 steps are half as large
    np.testing.assert_array_equal(half_products.add(one, -tie / 2), one)


def test_nan_passes_with_its_payload_and_the_weights_come_first() -> None:
    program = Convolution(FULL, (4, 2, 2), (3, 1, 1), "fp16")
    x, w = np.ones((4, 2, 2), np.float16), np.ones((3, 4, 1, 1), np.float16)
    x.view(np.uint16)[2, 0, 1], w.view(np.uint16)[1, 3] = 0x7E01, 0xFE05
    after = run(FULL, [*program.commands(), program.wait()], memory(program.contents(x, w)))
    bits = np.ascontiguousarray(program.read(after)).view(np.uint16)
    assert bits[0].tolist() == [[0x4400, 0x7E01], [0x4400, 0x4400]]
    assert (bits[1] == 0xFE05).all()


ZERO, MINUS = np.float32([0.0, -0.0])


@pytest.mark.parametrize(
    ("found", "negative"),
    [
        (fp16.add(np.float32([-3]), np.float32([3])), True),
        (fp16.add(np.float32([3]), np.float32([-3])), False),
        (fp16.add(np.array([MINUS]), np.array([ZERO])), True),
        (fp16.add(np.array([ZERO]), np.array([MINUS])), False),
        (fp16.subtract(np.array([MINUS]), np.array([MINUS])), True),
        (fp16.multiply(np.float32([-3]), np.array([ZERO])), True),
        (fp16.multiply(np.float32([-1e-30]), np.float32([1e-30])), True),  # too small: zero with its sign
        (fp16.maximum(np.array([MINUS]), np.array([ZERO])), False),
        (fp16.minimum(np.array([ZERO]), np.array([MINUS])), True),
        (fp16.relu(np.array([MINUS])), False),
        (fp16.fp17(np.array([-(2.0**-31)])), True),
        (fp16.store(np.float32([-1e-9])), True),
    ],
)
def test_a_zero_has_the_sign_of_the_description(found: Array, negative: bool) -> None:
    assert found.tolist() == [0.0]
    assert bool(np.signbit(found[0])) is negative


def test_fp17_rounds_to_even_and_has_no_infinity() -> None:
    values = np.array([1 + 2.0**-11, 1 + 3 * 2.0**-11, 1e20, -1e20, 2.0**-30, 2.0**-30 * (1 - 2.0**-13)])
    wanted = [1.0, 1 + 2 * 2.0**-10, 4292870144.0, -4292870144.0, 2.0**-30, 2.0**-30]
    assert fp16.fp17(values).tolist() == wanted
