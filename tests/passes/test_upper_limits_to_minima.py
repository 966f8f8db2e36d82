"""upper_limits_to_minima."""

from __future__ import annotations

import pytest

from npuc.targets.nvdla.network.passes import upper_limits_to_minima
from tests.passes.networks import assert_same_meaning, network, node, operators


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({"max": 0.5}, ["Min"]),
        ({"max": -0.5}, ["Min"]),
        ({"min": -1.0, "max": -0.25}, ["Clip", "Min"]),
        ({"min": -1.0, "max": 0.0}, ["Clip", "Min"]),
        ({"min": 1.0, "max": 0.5}, ["Clip", "Min"]),
    ],
)
def test_limits_that_saturation_cannot_be_become_minima(limits: dict[str, float], found: list[str]) -> None:
    before = network((1, 3, 4, 4), "y", node("Clip", "x", "y", **limits))
    after = upper_limits_to_minima(before)
    assert operators(after) == found
    assert_same_meaning(before, after)
    assert upper_limits_to_minima(after) is after


@pytest.mark.parametrize("limits", [{"min": 0.0, "max": 6.0}, {"min": -1.0, "max": 1.0}, {"min": 0.5}])
def test_other_limits_stay(limits: dict[str, float]) -> None:
    before = network((1, 3, 4, 4), "y", node("Clip", "x", "y", **limits))
    assert upper_limits_to_minima(before) is before
