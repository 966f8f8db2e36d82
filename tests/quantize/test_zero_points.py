"""Integers that stand for 0: in biases, around maps, in sums and in averages."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuc.interpreter import run
from npuc.ir import Array, Node, TensorType
from npuc.onnx_files.export import to_onnx
from npuc.ops import build
from npuc.quantize.arithmetic.weights import average_taps, quantise_weights, sum_factors
from npuc.targets.easynpu.layers.borders import border_weights
from tests.passes.networks import node

Reference = Callable[[onnx.ModelProto, Mapping[str, Array]], dict[str, Array]]
SEEDS = st.integers(0, 10_000)
ZEROS = st.integers(-128, 127)


@settings(max_examples=50, deadline=None)
@given(SEEDS, ZEROS, ZEROS)
def test_a_bias_takes_both_zero_points_exactly(seed: int, x_zero: int, y_zero: int) -> None:
    random = np.random.default_rng(seed)
    w, bias = random.standard_normal((3, 8)).astype(np.float32), random.standard_normal(3).astype(np.float32)
    found = quantise_weights(w, bias, 0.1, 0.2, x_zero, y_zero)
    x, factors, power = random.integers(-128, 128, (20, 8)), found.w.T.astype(np.int64), np.exp2(found.shift)
    steps = (x @ factors + found.bias) / power
    expected = (x - x_zero) @ factors / power + bias / 0.2 + y_zero
    assert np.abs(steps - expected).max() <= 0.5 / power.min() + 1e-6 * np.abs(expected).max()


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.integers(1, 200), st.booleans())
def test_words_over_a_constant_map_take_back_exactly_the_weights(seed: int, channels: int, dense: bool) -> None:
    w = np.random.default_rng(seed).integers(-128, 128, (4, channels if dense else 1, 3, 3)).astype(np.int8)
    parts = border_weights(w, dense=dense)
    total = sum(each.astype(np.int64).sum(axis=1) for each in parts)
    np.testing.assert_array_equal(total, -w.astype(np.int64).sum(axis=1))
    assert dense or all(each.shape[1] == 1 for each in parts)


@pytest.mark.parametrize("ratio", [1.0, 0.37, 1.9, 20.0, 1e-4])
@pytest.mark.parametrize("kernel", [(1, 1), (2, 2), (3, 3), (25, 5)])
def test_taps_of_an_average_sum_to_the_ratio_of_the_scales(kernel: tuple[int, int], ratio: float) -> None:
    taps, exponent = average_taps(kernel, ratio)
    assert taps.dtype == np.int8
    assert np.ptp(taps) <= 1
    assert abs(taps.sum(dtype=np.int64) / 2.0**exponent / ratio - 1) < 0.01


@given(st.floats(1e-3, 127), st.floats(1e-3, 127))
def test_factors_of_a_sum_are_the_ratios_to_8_bits(left: float, right: float) -> None:
    first, second, shift = sum_factors(left, right)
    assert 63 <= max(first, second) <= 127
    for factor, ratio in ((first, left), (second, right)):
        assert abs(factor - ratio * 2.0**shift) <= 0.5


def test_a_window_over_a_map_surrounded_by_its_zero_point_is_what_onnxruntime_computes(
    onnxruntime_values: Reference,
) -> None:
    random = np.random.default_rng(0)
    constants = {
        "w": random.integers(-127, 128, (3, 2, 3, 3)).astype(np.int8),
        "b": random.integers(-1000, 1000, 3).astype(np.int32),
        "s": np.full(3, 8, np.int8),
    }
    conv = node("IntConv", "x w b s", "y", pads=(1, 1, 0, 1), padding=-77)
    _assert_exported(conv, {"x": (1, 2, 5, 6)}, constants, onnxruntime_values)


def test_a_sum_with_factors_is_what_onnxruntime_computes(onnxruntime_values: Reference) -> None:
    constants = {"w": np.array([-3, 100], np.int8), "b": np.array(-5000, np.int32)}
    for relu in (0, 1):
        summed = node("IntSum", "x z w b", "y", shift=6, relu=relu)
        _assert_exported(summed, {"x": (1, 4, 5, 6), "z": (1, 4, 1, 6)}, constants, onnxruntime_values)


def _assert_exported(
    made: Node, shapes: Mapping[str, tuple[int, ...]], constants: Mapping[str, Array], reference: Reference
) -> None:
    """numpy's meaning of an integer node is that of its ONNX form under onnxruntime."""
    random = np.random.default_rng(1)
    feeds = {name: random.integers(-128, 128, shape).astype(np.int8) for name, shape in shapes.items()}
    types = {name: TensorType(shape, "int8") for name, shape in shapes.items()}
    graph = build("test", [made], types, ["y"], constants)
    model = to_onnx(graph, ["y"])
    np.testing.assert_array_equal(reference(model, feeds)["y"], run(graph, feeds)["y"])
