"""PDP's average: the widths of the RTL, and reciprocals with which nothing wraps."""

from __future__ import annotations

import numpy as np
import pytest

from npuc.targets.nvdla.arithmetic.averages import reciprocals
from npuc.targets.nvdla.model.averages import ONE, WIDTHS, divided, multiplied

INT8, INT16 = WIDTHS[1], WIDTHS[2]


@pytest.mark.parametrize(
    ("product", "bits", "found"),
    [
        (1023 * ONE + 0x7FFF, 11, 1023),
        (1023 * ONE + 0x8000, 11, -1024),  # the carry of rounding reaches the sign
        (1024 * ONE, 11, 0),  # a positive product keeps its low 10 bits
        (-1024 * ONE, 11, -1024),
        (-1025 * ONE, 11, 1023),  # a negative one its low 11
        (127 * ONE + 0x8000, 8, -128),
        (-3 * ONE - 0x8000, 8, -4),  # halves go away from zero
        (3 * ONE + 0x8000, 8, 4),
    ],
)
def test_a_product_keeps_the_bits_of_the_reference(product: int, bits: int, found: int) -> None:
    assert multiplied(np.array([product]), 1, bits).tolist() == [found]


@pytest.mark.parametrize("widths", [INT8, INT16], ids=["int8", "int16"])
@pytest.mark.parametrize("taps", [1, 2, 3, 4, 7, 8, 9, 12, 16, 25, 36, 49, 56, 64])
@pytest.mark.parametrize("ratio", [1.0, 0.99, 0.7, 0.5, 1 / 3, 0.02])
def test_no_sum_of_any_elements_wraps(ratio: float, taps: int, widths: object) -> None:
    assert widths in (INT8, INT16)
    kept = INT8 if widths is INT8 else INT16
    factors = reciprocals(ratio, taps, kept)
    assert factors is not None
    most = 1 << (kept.element - 1)
    sums = np.linspace(-most * taps, (most - 1) * taps, 20_001).astype(np.int64)
    exact = sums * ratio / taps
    assert np.abs(divided(sums, factors, kept) - exact).max() < (0.6 if kept is INT8 else 4)


def test_an_average_that_would_have_to_saturate_has_no_reciprocals() -> None:
    assert reciprocals(1.01, 64, INT8) is None
    assert reciprocals(2.0, 4, INT8) is None
    assert reciprocals(1 / 500, 4, INT8) is None  # too small to be precise


def test_up_to_eight_elements_are_rounded_once() -> None:
    factors = reciprocals(1.0, 8, INT8)
    assert factors == (ONE, ONE // 8)
    sums = np.arange(-1024, 1017)
    away = np.sign(sums) * np.floor(np.abs(sums) / 8 + 0.5)
    np.testing.assert_array_equal(divided(sums, (ONE, ONE // 8), INT8), away)
