"""Calibration: histograms of magnitudes, and the error that a scale will cause."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npuc.errors import DataError
from npuc.ir import Graph, Node, TensorType
from npuc.ops import build
from npuc.quantize.calibration.histograms import (
    BINS,
    EMPTY,
    MOST_COUNTED,
    NOTHING,
    Histogram,
    histograms,
    histograms_of_finite,
    output_gains,
)

FLOATS = st.floats(-1e6, 1e6, width=32)


def _spread(*batches: object) -> Histogram:
    found = EMPTY
    for batch in batches:
        found = found.with_values(np.asarray(batch, np.float32))
    return found


@given(st.lists(st.lists(FLOATS, max_size=8), max_size=5))
def test_every_value_but_zero_is_counted_near_where_it_lies(batches: list[list[float]]) -> None:
    found = _spread(*batches)
    magnitudes = sorted(abs(float(np.float32(x))) for batch in batches for x in batch if abs(x) > NOTHING)
    if not magnitudes and any(map(any, batches)):
        magnitudes = [NOTHING / 2]
    assert found.counts.sum() == len(magnitudes)
    placed = np.repeat(found.centres, found.counts)
    assert np.abs(placed - magnitudes).max(initial=0) <= 1.01 * found.width
    if magnitudes:
        assert magnitudes[-1] <= found.largest * (1 + 1e-6)
        # bins are no wider than needed: at most four times the widest needed for the first batch's largest value
        assert found.width * BINS <= max(4 * magnitudes[-1], 1e-9) * 1.01


@given(st.lists(FLOATS, min_size=1, max_size=20), st.integers(1, 19))
def test_the_order_and_the_cuts_of_the_data_hardly_matter(values: list[float], cut: int) -> None:
    whole, parts = _spread(values), _spread(values[:cut], values[cut:])
    assert whole.counts.sum() == parts.counts.sum()
    assert parts.largest == pytest.approx(
        whole.largest, rel=4 / BINS + 2 * parts.width / max(whole.largest, 1e-30)
    )


@pytest.mark.parametrize("values", [[], [0.0, -0.0]])
def test_zeros_do_not_count(values: list[float]) -> None:
    found = _spread(values)
    assert (found.largest, found.energy) == (0.0, 0.0)


def test_values_too_small_for_a_scale_show_only_where_there_are_no_larger_ones() -> None:
    assert 0 < _spread([1e-42, -1e-38]).largest <= NOTHING
    both = _spread([1e-42], [1.0], [1e-38])
    assert (both.counts.sum(), both.width) == (1, _spread([1.0]).width)


def test_magnitudes_of_any_size_share_a_histogram() -> None:
    found = _spread([1e-15], [3e38], [-1e-15])
    assert found.counts.sum() == 3
    assert found.largest == pytest.approx(3e38, rel=1e-2)


def test_tensors_count_every_value_in_its_bin() -> None:
    random = np.random.default_rng(0)
    values = np.maximum(random.normal(0, 1, (3, MOST_COUNTED // 3)), -0.5).astype(np.float32)
    values[:, ::5] = 0
    values[:, 1::9] *= 2.0**-62
    found = _spread(values)
    magnitudes = np.abs(values[np.abs(values) > NOTHING].astype(np.float64))
    wanted, _ = np.histogram(magnitudes, np.arange(BINS + 1) * found.width)
    assert found.counts.sum() == magnitudes.size == wanted.sum()
    # values within 1e-5 of an edge may count beyond it
    assert np.abs(np.cumsum(found.counts) - np.cumsum(wanted)).max() < 20
    assert np.abs(found.counts - wanted).sum() < magnitudes.size / 200


@pytest.mark.parametrize("columns", [7, 28, 112, 113])
def test_of_large_tensors_the_largest_value_counts_and_the_others_in_proportion(columns: int) -> None:
    random = np.random.default_rng(0)
    values = np.maximum(random.normal(0, 1, (24, 20 * MOST_COUNTED // 24 // columns, columns)), 0)
    values = (values * np.linspace(0.1, 1, 24)[:, None, None]).astype(np.float32)
    values[3, 1, 2] = 10
    found = _spread(values)
    assert found.largest == pytest.approx(10, rel=1e-2)
    magnitudes = np.abs(values[values > NOTHING].astype(np.float64))
    assert found.counts.sum() == pytest.approx(magnitudes.size, rel=0.02)
    assert found.energy == pytest.approx((magnitudes**2).sum(), rel=0.03)
    for bins in (16, 64, 128, 256):
        limit = bins * found.width
        assert found.within(limit).counts.sum() == pytest.approx((magnitudes < limit).sum(), rel=0.02)


def test_the_smallest_values_that_count_lie_beside_those_that_do_not() -> None:
    found = _spread([2 * NOTHING, NOTHING, NOTHING / 2, -4 * NOTHING])
    assert found.counts.sum() == 2
    assert found.energy / NOTHING**2 == pytest.approx(4 + 16, rel=1e-2)


def test_a_spread_never_changes() -> None:
    before = _spread([1.0])
    before.with_values(np.array([100.0], np.float32))
    assert before.counts.sum() == 1
    assert before.largest == pytest.approx(1.0, rel=1e-3)
    assert EMPTY.counts.sum() == 0


@pytest.mark.parametrize("scale", [0.5, 0.05, 0.02, 0.004, 0.0001])
def test_the_expected_error_is_near_that_of_quantising_the_values(scale: float) -> None:
    values = np.random.default_rng(0).standard_normal(20000).astype(np.float32)
    quantised = np.clip(np.rint(values / scale), -127, 127) * scale
    measured = float(((quantised - values) ** 2).sum())
    assert _spread(values).error(np.array([scale]))[0] == pytest.approx(measured, rel=0.05)


@given(st.lists(FLOATS, min_size=1, max_size=30), st.lists(st.floats(1e-6, 1e6), min_size=1, max_size=5))
def test_the_expected_error_is_its_formula_summed_bin_by_bin(values: list[float], scales: list[float]) -> None:
    """Rounding never costs more than where everything becomes 0."""
    found = _spread(values)
    filled = list(zip(found.centres[found.counts > 0], found.counts[found.counts > 0], strict=True))
    expected: list[float] = []
    for scale in scales:
        inside = [(centre, count) for centre, count in filled if centre <= 127 * scale]
        beyond = sum(count * (centre - 127 * scale) ** 2 for centre, count in filled if centre > 127 * scale)
        rounded = sum(count * scale**2 / 12 for _, count in inside)
        expected.append(beyond + min(rounded, sum(count * centre**2 for centre, count in inside)))
    np.testing.assert_allclose(found.error(np.array(scales)), expected, rtol=1e-6, atol=1e-9 * found.energy)


def _graph() -> Graph:
    nodes = [Node("Relu", ("x",), ("a",), {}, "a"), Node("Exp", ("a",), ("y",), {}, "y")]
    return build("g", nodes, {"x": TensorType((1, 4))}, ("y",), {})


def test_every_sample_counts_with_its_own_values() -> None:
    samples = [{"x": np.array([[-3, 1, 2, 0]], np.float32) + shift} for shift in (0.0, 4.0, 0.5)]
    found = histograms(_graph(), samples, ("x", "a", "y"))
    x = np.concatenate([each["x"] for each in samples])
    for name, values in (("x", x), ("a", np.maximum(x, 0)), ("y", np.exp(np.maximum(x, 0)))):
        magnitudes = np.sort(np.abs(values[values != 0]))
        placed = np.repeat(found[name].centres, found[name].counts)
        np.testing.assert_allclose(placed, magnitudes, atol=found[name].width)


def test_the_spreads_of_a_graph_are_those_of_its_tensors() -> None:
    samples = [{"x": np.array([[-1, 2, 0, -3]], np.float32)}, {"x": np.array([[0, 0, 0, 1]], np.float32)}]
    found = histograms(_graph(), samples, ("x", "a", "y"))
    assert list(found) == ["x", "a", "y"]
    assert [histogram.counts.sum() for histogram in found.values()] == [4, 2, 8]
    assert found["x"].largest == pytest.approx(3, rel=1e-3)
    assert found["a"].largest == pytest.approx(2, rel=1e-3)
    assert found["y"].largest == pytest.approx(np.exp(2), rel=1e-3)


def test_values_beyond_a_domain_count_as_its_limit() -> None:
    samples = [{"x": np.array([[-9, 0.5, 0, 7]], np.float32)}]
    found = histograms(_graph(), samples, ("x",), {"x": (-2.0, 3.0)})
    assert found["x"].largest == pytest.approx(3, rel=1e-3)
    assert found["x"].counts.sum() == 3


@pytest.mark.parametrize("value", [100.0, np.inf, np.nan])
def test_a_tensor_that_is_not_finite_is_refused_by_name(value: float) -> None:
    samples = [{"x": np.array([[value, 0, 0, 0]], np.float32)}]  # exp(100) is beyond 32-bit floats
    with pytest.raises(DataError) as caught:
        histograms(_graph(), samples, ("y",))
    (problem,) = caught.value.problems
    assert (problem.code, problem.tensor) == ("E402", "y")


@pytest.mark.parametrize("value", [100.0, np.inf, np.nan])
def test_of_made_up_samples_only_finite_values_count(value: float) -> None:
    samples = [{"x": np.array([[value, 0.5, -1, 0]], np.float32)}]
    found = histograms_of_finite(_graph(), samples, ("x", "y"))
    kept = [0.5, 1, *([value] if value == 100 else [])]
    assert found["x"].counts.sum() == len(kept)
    assert found["x"].largest == pytest.approx(max(kept), rel=1e-3)
    assert found["y"].largest == pytest.approx(np.exp(0.5), rel=1e-3)  # of relu(x), so nothing is below 1


@pytest.mark.parametrize(("group", "squares"), [(1, [25, 49, 1, 1]), (2, [50, 98, 50, 98]), (4, [25, 49, 25, 49])])
def test_an_error_gains_by_the_weights_of_its_own_channel(group: int, squares: list[float]) -> None:
    rows = {
        1: [[5, 7, 1, 1], [0, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]],
        2: [[5, 7], [5, 7], [-5, -7], [5, 7]],
        4: [[5], [7], [-5], [7]],
    }  # fmt: skip
    w = np.array(rows[group], np.float32)[:, :, None, None]
    node = Node("Conv", ("x", "w"), ("y",), {"group": group})
    graph = build("net", [node], {"x": TensorType((1, 4, 2, 2), "float32")}, ("y",), {"w": w})
    found = output_gains(graph, graph.nodes)["x"]
    assert found.shape == (1, 4, 1, 1)
    assert found.ravel() == pytest.approx(np.array(squares) / np.mean(squares))
