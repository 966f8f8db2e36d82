"""Scales: constraints hold exactly, and tiny groups get the optimum that exhaustive search finds."""

from __future__ import annotations

from itertools import product
from math import log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuc.quantize.calibration.clipping import METHODS
from npuc.quantize.calibration.histograms import EMPTY, Histogram
from npuc.quantize.scales.assignment import FRACTIONS, Ratio, ScaleConstraints, choose_scales


def _spread(seed: int, size: float) -> Histogram:
    values = np.random.default_rng(seed).standard_normal(500) * size
    return EMPTY.with_values(values.astype(np.float32))


@st.composite
def problems(draw: st.DrawFn, most: int = 8) -> tuple[dict[str, Histogram], ScaleConstraints]:
    """Tensors of any size with constraints as additions, pools and movements give them."""
    count = draw(st.integers(1, most))
    names = [f"t{k}" for k in range(count)]
    histograms = {
        name: EMPTY
        if draw(st.integers(0, 9)) == 0
        else _spread(draw(st.integers(0, 99)), 2.0 ** draw(st.floats(-8, 8)))
        for name in names
    }
    pairs = st.tuples(st.sampled_from(names), st.sampled_from(names))
    equal = tuple(draw(st.lists(pairs, max_size=4)))
    ratios = []
    for coarse, fine in draw(st.lists(pairs, max_size=4)):
        exponent = draw(st.sampled_from([0, 0, 8, 12]))  # additions; pools of 2x2 and 7x7
        ratios.append(Ratio(coarse, fine, -exponent, 31 - exponent))
    ceilings = draw(st.dictionaries(st.sampled_from(names), st.sampled_from([6 / 127, 1 / 127]), max_size=2))
    return histograms, ScaleConstraints(equal, tuple(ratios), ceilings)


@settings(deadline=None, max_examples=120)
@given(problems(), st.sampled_from(["mse", "minmax"]))
def test_ties_hold_exactly(problem: tuple[dict[str, Histogram], ScaleConstraints], method: str) -> None:
    histograms, constraints = problem
    scales = choose_scales(histograms, constraints, method)
    assert list(scales) == list(histograms)
    assert all(scale > 0 for scale in scales.values())
    for left, right in constraints.equal:
        assert scales[left] == scales[right]
    for ratio in constraints.ratios:
        exponent = log2(scales[ratio.coarse] / scales[ratio.fine])
        assert exponent == round(exponent)
        assert ratio.least <= exponent <= ratio.most
        # and as the 32-bit floats that are written to the program
        single = np.float32(scales[ratio.coarse]) / np.float32(scales[ratio.fine])
        assert np.frexp(single)[0] == 0.5


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("size", [0.1, 3.0, 40.0])
def test_a_tensor_alone_does_not_exceed_its_ceiling(size: float, method: str) -> None:
    values = np.clip(np.random.default_rng(0).standard_normal(5000) * size, 0, 6).astype(np.float32)
    constraints = ScaleConstraints(ceilings={"y": 6 / 127}, unsaturated=frozenset("y"))
    scales = choose_scales({"y": EMPTY.with_values(values[:9]).with_values(values)}, constraints, method)
    assert scales["y"] <= 6 / 127 * (1 + 1e-9)


def test_a_clip_that_fills_its_range_gets_exactly_its_ceiling() -> None:
    """Values spread evenly over 0..6: 127 * scale = 6, so that saturation is the Clip."""
    values = np.linspace(0, 6, 1000).astype(np.float32)
    scales = choose_scales({"y": EMPTY.with_values(values)}, ScaleConstraints(ceilings={"y": 6 / 127}))
    assert scales["y"] == pytest.approx(6 / 127, rel=1e-12)


def test_free_tensors_get_scales_of_their_own() -> None:
    histograms = {"a": _spread(0, 1.0), "b": _spread(1, 3.0)}
    scales = choose_scales(histograms, ScaleConstraints())
    for name, histogram in histograms.items():
        candidates = np.array([2.0 ** (k / FRACTIONS) for k in range(-20 * FRACTIONS, 20 * FRACTIONS)])
        assert scales[name] == pytest.approx(candidates[np.argmin(histogram.error(candidates))], rel=1e-9)


def test_min_max_scales_saturate_nothing() -> None:
    histograms = {"a": _spread(0, 1.0), "b": _spread(1, 3.0), "c": _spread(2, 0.1)}
    constraints = ScaleConstraints((("a", "b"),), (Ratio("c", "a", 0, 31),))
    scales = choose_scales(histograms, constraints, "minmax")
    for name, histogram in histograms.items():
        assert scales[name] * 127 * (1 + 1e-5) >= histogram.largest


def test_a_tensor_of_zeros_does_not_disturb_the_others() -> None:
    alone = choose_scales({"a": _spread(0, 1.0)}, ScaleConstraints())
    tied = choose_scales({"a": _spread(0, 1.0), "z": EMPTY}, ScaleConstraints((("a", "z"),)))
    assert tied == {"a": alone["a"], "z": alone["a"]}


def _cost(histograms: dict[str, Histogram], scales: dict[str, float]) -> float:
    return sum(
        float(histogram.error(np.array([scales[name]]))[0]) / histogram.energy
        for name, histogram in histograms.items()
        if histogram.energy
    )


@settings(deadline=None, max_examples=40)
@given(problems(most=3))
def test_tiny_groups_get_the_best_scales_there_are(problem: tuple[dict[str, Histogram], ScaleConstraints]) -> None:
    """All bases of an octave, all exponents of every class: at most three classes of +-12 octaves."""
    histograms, constraints = problem
    constraints = ScaleConstraints(constraints.equal, constraints.ratios)
    names = list(histograms)
    best = np.inf
    errors = {
        name: (np.zeros((FRACTIONS, 29)) if not s.energy else np.stack(
            [s.error(2.0 ** (k / FRACTIONS + np.arange(-20, 9))) / s.energy for k in range(FRACTIONS)]))
        for name, s in histograms.items()
    }  # fmt: skip
    linked = {name for each in constraints.ratios for name in (each.coarse, each.fine)}
    linked |= {name for pair in constraints.equal for name in pair}
    groups = [[n] for n in names if n not in linked] + ([[n for n in names if n in linked]] if linked else [])
    if len(linked) == 3 and not _connected(linked, constraints):
        return
    best = 0.0
    for group in groups:
        found = np.inf
        for exponents in product(range(29), repeat=len(group)):
            at = dict(zip(group, exponents, strict=True))
            if all(at[a] == at[b] for a, b in constraints.equal if a in at) and all(
                r.least <= at[r.coarse] - at[r.fine] <= r.most for r in constraints.ratios if r.coarse in at
            ):
                found = min(found, float(sum(errors[n][:, at[n]] for n in group).min()))
        best += found
    assert _cost(histograms, choose_scales(histograms, constraints)) <= best * 1.0001 + 1e-12


def _connected(names: set[str], constraints: ScaleConstraints) -> bool:
    links = [*constraints.equal, *((r.coarse, r.fine) for r in constraints.ratios)]
    reached = {min(names)}
    for _ in names:
        reached |= {b for a, b in links if a in reached} | {a for a, b in links if b in reached}
    return reached == names
