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
from npuc.targets.nvdla.quantisation.moments import moments
from npuc.targets.nvdla.quantisation.rounding import rounded
from tests.nvdla.networks import compiled
from tests.onnx_models import network, node, weights

NOTHING = np.zeros(12)


def _weights(*shape: int) -> Array:
    return np.random.default_rng(7).standard_normal(shape)


def _mean_errors(found: Array, w: Array, mean: Array) -> Array:
    return np.abs(((found - w) * mean).sum(axis=(1, 2, 3)))


def test_without_a_mean_every_weight_is_the_nearest() -> None:
    w = _weights(12, 20, 3, 3)
    np.testing.assert_array_equal(rounded(w, np.zeros(1), np.ones(1), NOTHING), w.astype(np.float16))


@pytest.mark.parametrize("mean", [1.0, -3.0])
def test_errors_cancel_on_the_mean_and_each_weight_is_next_to_its_value(mean: float) -> None:
    w = _weights(12, 20, 3, 3)
    found = rounded(w, np.full(1, mean), np.full(1, 0.01), NOTHING)
    nearest = w.astype(np.float16)
    below, above = (np.nextafter(nearest, np.float16(each)) for each in (-np.inf, np.inf))
    assert ((found == nearest) | ((found == below) & (nearest > w)) | ((found == above) & (nearest <= w))).all()
    assert np.count_nonzero(found != nearest) < 0.1 * found.size
    assert _mean_errors(found, w, np.array(mean)).max() < 0.05 * _mean_errors(nearest, w, np.array(mean)).mean()


def test_what_else_results_are_off_by_is_taken_back() -> None:
    w, off = _weights(12, 64, 1, 1), np.linspace(-2e-3, 2e-3, 12)
    found = rounded(w, np.ones(1), np.full(1, 1e-6), off)
    assert np.abs((found - w).sum(axis=(1, 2, 3)) + off).max() < 2e-4


def test_a_variance_that_outweighs_the_mean_leaves_the_nearest() -> None:
    w = _weights(12, 20, 3, 3)
    np.testing.assert_array_equal(rounded(w, np.full(1, 1e-6), np.ones(1), NOTHING), w.astype(np.float16))


def test_zeros_stay_zeros() -> None:
    w = _weights(12, 20, 3, 3)
    w[:, ::2] = 0
    found = rounded(w, np.ones(1), np.full(1, 1e-6), np.full(12, 0.1))
    assert not found[:, ::2].any()


def test_kernels_are_rounded_in_parts_as_they_are_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    w = _weights(12, 20, 3, 3)
    whole = rounded(w, np.ones(1), np.full(1, 0.01), NOTHING)
    monkeypatch.setattr("npuc.targets.nvdla.arithmetic.fixed_point.BLOCK", 5 * w[0].size)
    np.testing.assert_array_equal(rounded(w, np.ones(1), np.full(1, 0.01), NOTHING), whole)


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
