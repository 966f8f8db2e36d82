"""The rules of fp16: what infinities, NaN and denormals become on the way in, and how results are stored.

Values inside are float32 without denormals; on the way out they are rounded to nearest and clipped to +/-65504,
denormals included. NaN stays NaN unless a register flushes it to zero. Source: in-memory formats, FP16 Supporting.
"""

from __future__ import annotations

import numpy as np

from npuc.ir import Array

MOST = 65504.0
FP17_MOST = 4292870144.0
FP17_SMALLEST = 2.0**-30
SMALLEST = np.float32(2.0**-126)
"""Below this, float32 has denormals, which the data path has not."""


def received(values: Array, infinity: float, *, flush: bool) -> Array:
    """fp16 as float32: infinities become +/-`infinity`, NaN 0 where it is flushed; fp16 denormals are exact."""
    wide = values.astype(np.float32)
    wide = np.where(np.isinf(wide), np.copysign(np.float32(infinity), wide), wide)
    return np.where(np.isnan(wide), np.float32(0), wide) if flush else wide


def inner(values: Array) -> Array:
    """A result of the data path as float32: rounded to nearest, no denormals, no infinities."""
    with np.errstate(over="ignore", invalid="ignore"):
        wide = values.astype(np.float32)
    most = np.finfo(np.float32).max
    wide = np.clip(wide, -most, most)
    return np.where(np.abs(wide) < SMALLEST, np.float32(0), wide)


def stored(values: Array) -> Array:
    """float32 as the fp16 that is written: rounded to nearest, clipped to +/-65504, with denormals."""
    return np.clip(values, -MOST, MOST).astype(np.float16)


def nans(values: Array) -> int:
    """How many are NaN: for the counting registers."""
    return int(np.isnan(values).sum())


def infinities(values: Array) -> int:
    """How many are infinite: for the counting registers."""
    return int(np.isinf(values).sum())


def fp17(values: Array) -> Array:
    """Rounded to 11 significant bits, within +/-4292870144, 0 below 2^-30: what CDP and tables compute in."""
    mantissa, exponent = np.frexp(values.astype(np.float64))
    rounded = np.ldexp(np.rint(np.ldexp(mantissa, 11)), exponent - 11)
    rounded = np.clip(rounded, -FP17_MOST, FP17_MOST)
    return np.where(np.abs(rounded) < FP17_SMALLEST, 0.0, rounded)
