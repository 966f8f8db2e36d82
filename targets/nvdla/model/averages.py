"""PDP's integer average: a sum times two reciprocals, each product rounded, in the bit widths of the unit.

Nothing saturates: values that do not fit wrap.

Source: Arithmetic, PDP, average; seen on the RTL.
"""

from __future__ import annotations

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array

RECIPROCAL_BITS = 16
"""Fractional bits of the reciprocals by which PDP multiplies sums."""
ONE = 1 << RECIPROCAL_BITS


@frozen
class Widths:
    """Bits of the sums and products of an average, all signed."""

    element: int
    row: int
    """Of the sum of one row of the window."""
    pad: int
    """Of the PAD_VALUE added to a row."""
    window: int
    first: int
    """Of the product with the first reciprocal."""

    @property
    def room(self) -> int:
        """The most elements, whatever their values, whose sum fits the bits of the first product."""
        return 1 << (self.first - self.element)


WIDTHS = {1: Widths(8, 11, 11, 14, 11), 2: Widths(16, 22, 19, 22, 19)}
"""By the bytes of an element."""


def wrapped(values: Array, bits: int) -> Array:
    """The lowest bits of int64 values, read as signed numbers."""
    half = np.int64(1) << (bits - 1)
    return ((values + half) & (2 * half - 1)) - half


def multiplied(values: Array, reciprocal: int, bits: int) -> Array:
    """Rounded half away from zero and wrapped; a positive product loses its upper bits before the rounding."""
    product = values * np.int64(reciprocal)
    whole, part = product >> RECIPROCAL_BITS, product & (ONE - 1)
    negative = whole + (part > ONE // 2)
    positive = (whole & ((1 << (bits - 1)) - 1)) + (part >= ONE // 2)
    return wrapped(np.where(product < 0, negative, positive), bits)


def divided(sums: Array, factors: tuple[int, int], widths: Widths) -> Array:
    """Averages from int64 sums: the sums times the reciprocals of width and height."""
    return multiplied(multiplied(sums, factors[0], widths.first), factors[1], widths.element)
