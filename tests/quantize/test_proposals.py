"""Other weights and biases for a layer: by hand where they are few, against float64 where they are many."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from npuc.ir import Array
from npuc.quantize.arithmetic.weights import quantise_weights
from npuc.quantize.improvement import proposals
from npuc.quantize.improvement.proposals import (
    JudgedLayer,
    bias_by_results,
    bias_by_weights,
    rounded_in_turn,
    solved,
)
from npuc.quantize.network.layers import LayerWeights


def layer(
    exact: Array, inputs: Array, results: Array | None = None, sample: Array | None = None, x_zero: int = 0
) -> tuple[JudgedLayer, LayerWeights]:
    """A fully connected layer with these inputs (windows, K); every fourth window is held out."""
    rounded = quantise_weights(exact, None, 1.0, 1.0, x_zero)
    weights = LayerWeights(rounded.w, rounded.bias.astype(np.int64), np.exp2(rounded.shift.astype(np.float64)))
    found = inputs[:, None].astype(np.float32)
    training = np.arange(len(inputs)) % 4 != 3
    return JudgedLayer(
        exact=exact.astype(np.float64),
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


def test_rounding_in_turn_loses_less_of_correlated_inputs_than_rounding_each() -> None:
    random = np.random.default_rng(1)
    causes, mixture = random.integers(-10, 11, (256, 3)), random.integers(-2, 3, (3, 24))
    inputs = causes @ mixture + random.integers(-2, 3, (256, 24))
    found, weights = layer(random.standard_normal((8, 24)) / 3, inputs)

    def error(each: LayerWeights) -> float:
        """By float64, without the mean, which the bias takes."""
        lost = inputs @ (each.w / each.power[:, None] - found.exact).T
        return float(np.square(lost - lost.mean(axis=0)).sum())

    assert error(solved(found, weights)) < 0.5 * error(weights)
    assert error(rounded_in_turn(found, weights)) < 0.5 * error(weights)


def test_weights_of_inputs_that_do_not_resemble_each_other_are_rounded_each() -> None:
    inputs = np.kron(np.eye(4), np.array([[60], [-60]])).repeat(4, axis=0)
    found, weights = layer(np.random.default_rng(2).standard_normal((5, 4)), inputs)
    found = replace(found, training=np.ones(len(inputs), bool))
    rounded = np.rint(found.exact * weights.power[:, None])
    assert np.array_equal(solved(found, weights).w, rounded)


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
        found.append(solved(made, weights).w)
    assert np.array_equal(found[0], found[1])
    assert np.array_equal(found[0], found[2])
