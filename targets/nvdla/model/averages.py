"""PDP's average of integers: a sum times two reciprocals, each product rounded, in as many bits as the unit has.

Nothing saturates: what does not fit wraps.
Source: Arithmetic, PDP, average; seen on the RTL.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npuc.ir import Array

RECIPROCAL_BITS = 16
"""PDP multiplies sums by reciprocals of this many fractional bits."""
ONE = 1 << RECIPROCAL_BITS


@dataclass(frozen=True)
class Widths:
    """Bits of the sums and products of an average; all are signed."""

    element: int
    row: int
    """The sum of a row of the window."""
    pad: int
    """What PAD_VALUE adds to a row."""
    window: int
    first: int
    """Behind the first reciprocal."""

    @property
    def room(self) -> int:
        """How many elements of any value the bits behind the first reciprocal hold."""
        return 1 << (self.first - self.element)


WIDTHS = {1: Widths(8, 11, 11, 14, 11), 2: Widths(16, 22, 19, 22, 19)}
"""By the bytes of an element."""


def wrapped(values: Array, bits: int) -> Array:
    """int64, the lowest bits of each read as a signed number."""
    half = np.int64(1) << (bits - 1)
    return ((values + half) & (2 * half - 1)) - half


def multiplied(values: Array, reciprocal: int, bits: int) -> Array:
    """Rounded half away from zero, in so many bits: a positive product loses upper ones before the rounding."""
    product = values * np.int64(reciprocal)
    whole, part = product >> RECIPROCAL_BITS, product & (ONE - 1)
    negative = whole + (part > ONE // 2)
    positive = (whole & ((1 << (bits - 1)) - 1)) + (part >= ONE // 2)
    return wrapped(np.where(product < 0, negative, positive), bits)


def divided(sums: Array, factors: tuple[int, int], widths: Widths) -> Array:
    """Sums (int64) times the reciprocals of width and height."""
    return multiplied(multiplied(sums, factors[0], widths.first), factors[1], widths.element)
