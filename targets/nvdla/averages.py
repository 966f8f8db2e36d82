"""PDP's average of integers: a sum times two reciprocals, each product rounded, in as many bits as the unit has.

Nothing saturates: what does not fit wraps. `reciprocals` gives those with which no sum of any elements does.
Source: Arithmetic, PDP, average; seen on the RTL.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from npuc.ir import Array

RECIPROCAL_BITS = 16
"""PDP multiplies sums by reciprocals of this many fractional bits."""
ONE = 1 << RECIPROCAL_BITS
LEAST = 64
"""The least second reciprocal whose own rounding costs no accuracy."""
GRAIN = 4
"""First reciprocals are multiples of this: so SDP's multipliers of 16 bits can stand for them, too."""


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


def reciprocals(ratio: float, taps: int, widths: Widths) -> tuple[int, int] | None:
    """Those of width and height that give sums of so many elements times ratio / taps, if no sum can wrap.

    The first one keeps as many bits as there are, the second one has the rest of the ratio.
    """
    first = ONE if taps <= widths.room else ONE * widths.room // taps // GRAIN * GRAIN
    wanted = ratio * ONE / (taps * first / ONE)
    most = 1 << (widths.element - 1)
    for second in (round(wanted), round(wanted) - 1):
        second -= second % GRAIN if second >= ONE // 2 else 0
        ends = np.array([-most * taps, (most - 1) * taps])
        inside = np.abs((ends * first / ONE) * (second / ONE)) < (most + 0.5, most - 0.5)
        if LEAST <= second <= ONE and inside.all():
            return first, second
    return None
