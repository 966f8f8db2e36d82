"""Float statistics made safe for decisions: rounded, and compared with a margin.

The last digits of a float result differ between processors. Decisions based on them would make the same model give
different artefacts on different machines. Therefore ranges lie on a grid, corrections have coarse steps, and a
candidate replaces another only if it is better by more than such differences.
"""

from __future__ import annotations

import math

import numpy as np

from npuc.ir import Array

ROOM = 1e-5
"""Relative amount by which another processor's largest value may exceed ours."""
MARGIN = 1e-4
"""A candidate replaces another only if its error is smaller by this share."""
CORRECTION = 64
"""Bias corrections are multiples of 1 / CORRECTION of a step of the result: far finer than a few samples
can resolve, and far coarser than the last digits of floats."""


def octave(largest: float) -> float:
    """The next power of two above a positive magnitude, the same on all processors."""
    return math.ldexp(1.0, math.frexp(largest * (1 + ROOM))[1])


def upward(value: float, bits: int) -> float:
    """The smallest number with `bits` significant bits above a positive value, the same on all processors."""
    mantissa, exponent = math.frexp(value * (1 + ROOM))
    return math.ldexp(math.ceil(math.ldexp(mantissa, bits)), exponent - bits)


def round_to_bits(values: Array, bits: int) -> Array:
    """The values rounded to `bits` significant bits."""
    mantissa, exponent = np.frexp(values)
    return np.ldexp(np.rint(mantissa * 2.0**bits) / 2.0**bits, exponent)


def octaves(values: Array, steps: int) -> Array:
    """The binary logarithms of positive values, rounded to `steps` per octave."""
    return np.rint(np.log2(values) * steps) / steps


def corrections(values: Array) -> Array:
    """Corrections in steps of a result, rounded to multiples of 1 / CORRECTION."""
    return np.rint(values * CORRECTION) / CORRECTION


def better(error: float, least: float) -> bool:
    """Whether an error is less than the least so far, on any processor."""
    return error < least * (1 - MARGIN)
