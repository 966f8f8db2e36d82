"""Statistics of floats as decisions may rest on them: rounded, and compared with room.

The last digits of a float result differ from processor to processor. What depends on them would make another
artefact of the same model on another machine: so ranges lie on a grid, corrections have coarse steps, and a
candidate takes another's place only where it is better by more than such digits.
"""

from __future__ import annotations

import math

import numpy as np

from npuc.ir import Array

ROOM = 1e-5
"""How far, relative to it, another processor's largest value may lie beyond ours."""
MARGIN = 1e-4
"""A candidate replaces another only if its error is smaller by this share."""
CORRECTION = 64
"""Corrections of a bias are whole multiples of this fraction of a step of the result: far finer than what some
samples can tell, and far coarser than the last digits of floats."""


def octave(largest: float) -> float:
    """The power of two above a positive magnitude, also on other processors."""
    return math.ldexp(1.0, math.frexp(largest * (1 + ROOM))[1])


def upward(value: float, bits: int) -> float:
    """The least number of so many significant bits that is above a positive one, also on other processors."""
    mantissa, exponent = math.frexp(value * (1 + ROOM))
    return math.ldexp(math.ceil(math.ldexp(mantissa, bits)), exponent - bits)


def rounded(values: Array, bits: int) -> Array:
    """The values to so many significant bits."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.rint(mantissa * 2.0**bits) / 2.0**bits, exponent)


def octaves(values: Array, steps: int) -> Array:
    """The binary logarithms of positive values in so many steps an octave."""
    return np.rint(np.log2(values) * steps) / steps


def corrections(values: Array) -> Array:
    """Corrections in steps of a result, as whole multiples of 1 / CORRECTION."""
    return np.rint(values * CORRECTION) / CORRECTION


def better(error: float, least: float) -> bool:
    """Whether an error is less than the least so far, on any processor."""
    return error < least * (1 - MARGIN)
