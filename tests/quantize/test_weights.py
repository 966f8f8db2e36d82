"""int8 weights, biases and shifts: what is lost, and the limits that are kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuc.ir import Array
from npuc.quantize.arithmetic.weights import average_taps, quantise_weights

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
