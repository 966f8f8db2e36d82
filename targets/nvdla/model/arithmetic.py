"""The integer arithmetic of the blocks: rounding shifts and saturation, which all share, and PDP's average.

Every right shift of NVDLA rounds half away from zero and then saturates. An average is a sum times two
reciprocals, each product rounded, in the bit widths of the unit; nothing in it saturates: values that do not fit
wrap.

Source: Arithmetic, PDP, average; seen on the RTL.
"""

from __future__ import annotations

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array


def shift_right(values: Array, shift: int) -> Array:
    """int64 divided by 2^shift, rounded half away from zero."""
    if shift == 0:
        return values
    if shift > 62:
        return np.zeros_like(values)
    rounded = np.asarray(values + (np.int64(1) << (shift - 1)))
    rounded -= values < 0
    rounded >>= shift
    return rounded


def shift_left(values: Array, shift: int, bits: int) -> Array:
    """int64 (of at most 32 bits) times 2^shift, saturated to a number of bits of at most 63."""
    low, high = limits(bits)
    reach = high >> shift
    shifted = np.clip(values, -reach - 1, reach) << shift
    shifted = np.where(values > reach, high, shifted)
    return np.where(values < -reach - 1, low, shifted)


def shift_either(values: Array, shift: int, bits: int) -> Array:
    """Right by a positive shift, left by a negative one, saturated."""
    return saturate(shift_right(values, shift), bits) if shift >= 0 else shift_left(values, -shift, bits)


def limits(bits: int) -> tuple[int, int]:
    """The smallest and largest signed number of so many bits."""
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def saturate(values: Array, bits: int) -> Array:
    """The values, saturated to a signed number of bits."""
    return np.clip(values, *limits(bits))


def sign_extend(value: int, width: int) -> int:
    """The bits of a field as a two's complement number.

    >>> sign_extend(0xFFFF, 16), sign_extend(0x7FFF, 16)
    (-1, 32767)
    """
    return value - (1 << width) if value >> (width - 1) else value


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
    def most_elements(self) -> int:
        """The most elements, whatever their values, whose sum fits the bits of the first product."""
        return 1 << (self.first - self.element)


WIDTHS = {1: Widths(8, 11, 11, 14, 11), 2: Widths(16, 22, 19, 22, 19)}
"""By the bytes of an element."""


def wrap(values: Array, bits: int) -> Array:
    """The lowest bits of int64 values, read as signed numbers."""
    half = np.int64(1) << (bits - 1)
    return ((values + half) & (2 * half - 1)) - half


def multiply_reciprocal(values: Array, reciprocal: int, bits: int) -> Array:
    """Rounded half away from zero and wrapped; a positive product loses its upper bits before the rounding."""
    product = values * np.int64(reciprocal)
    whole, part = product >> RECIPROCAL_BITS, product & (ONE - 1)
    negative = whole + (part > ONE // 2)
    positive = (whole & ((1 << (bits - 1)) - 1)) + (part >= ONE // 2)
    return wrap(np.where(product < 0, negative, positive), bits)


def average_sums(sums: Array, factors: tuple[int, int], widths: Widths) -> Array:
    """Averages from int64 sums: the sums times the reciprocals of width and height."""
    return multiply_reciprocal(multiply_reciprocal(sums, factors[0], widths.first), factors[1], widths.element)
