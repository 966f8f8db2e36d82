"""The arithmetic of fp16: conversion of inputs and outputs, and internal sums and products.

Internal formats are fp32 and fp17 (1 sign, 6 exponent, 10 mantissa bits), both without denormals and infinities,
represented here as float32. Results are rounded to nearest, ties to even; underflow gives zero with the sign of
the result, overflow the largest number. A sum of zero has the sign of its first operand. A NaN keeps its sign and
its ten payload bits; of two NaNs the first operand is kept.

Source: Arithmetic, Common floating-point operators; seen on the RTL.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from npuc.ir import Array

MOST = 65504.0
INFINITY = 65536.0
"""The value of an infinity in the multipliers of the convolution."""
FP32_MOST = float(np.finfo(np.float32).max)
FP17_MOST = 4292870144.0
FP17_SMALLEST = 2.0**-30
FP32_SMALLEST = 2.0**-126
PAYLOAD = 0x3FF
"""The payload bits of a NaN that are preserved, the lowest of the mantissa in every format."""
QUIET_NAN = 0x7FC00000
FP17_DROPPED = 42
"""Mantissa bits of a double beyond those of fp17."""

Rounding = Callable[[Array], Array]


def load(values: Array, infinity: float, *, flush: bool) -> Array:
    """fp16 as float32: infinities become +/-`infinity`, NaN becomes 0 if flushed; denormals are exact."""
    wide = values.astype(np.float32)
    if np.isfinite(wide).all():
        return wide
    wide = np.where(np.isinf(wide), np.copysign(np.float32(infinity), wide), wide)
    return np.where(np.isnan(wide), np.float32(0) if flush else _wide_nans(values), wide)


def _wide_nans(values: Array) -> Array:
    """The bits of fp16 NaNs as float32."""
    bits = values.view(np.uint16).astype(np.uint32)
    return ((bits & 0x8000) << 16 | QUIET_NAN | (bits & PAYLOAD)).view(np.float32)


def store(values: Array) -> Array:
    """float32 as fp16 output: rounded to nearest, clipped to +/-65504, with denormals."""
    narrow = np.clip(values, -MOST, MOST).astype(np.float16)
    absent = np.isnan(values)
    if not absent.any():
        return narrow
    bits = values.astype(np.float32).view(np.uint32)
    nan = (bits >> 16 & 0x8000 | 0x7C00 | (bits & PAYLOAD)).astype(np.uint16).view(np.float16)
    return np.where(absent, nan, narrow)


def round_to_int16(values: Array) -> Array:
    """fp16 as int16: halves away from zero, saturated; a NaN is the lowest number."""
    away = np.trunc(values.astype(np.float64) + np.copysign(0.5, values))
    return np.where(np.isnan(values), -32768, np.clip(away, -32768, 32767)).astype(np.int16)


def nans(values: Array) -> int:
    """The number of NaN, for the counting registers."""
    return int(np.isnan(values).sum())


def infinities(values: Array) -> int:
    """The number of infinities, for the counting registers."""
    return int(np.isinf(values).sum())


def round_to_fp32(values: Array) -> Array:
    """Doubles rounded to fp32 (float32); NaN is unchanged."""
    wide = np.clip(values, -FP32_MOST, FP32_MOST)
    small = np.abs(wide) < FP32_SMALLEST * (1 - 2.0**-25)
    return np.where(small, np.copysign(0.0, wide), wide).astype(np.float32)


def fp17(values: Array) -> Array:
    """Numbers rounded to fp17 (float32), the format of PDP, CDP and tables; NaN is unchanged."""
    wide = np.atleast_1d(np.asarray(values, np.float64))
    bits = wide.view(np.int64)
    even = bits + ((bits >> FP17_DROPPED & 1) + ((1 << (FP17_DROPPED - 1)) - 1)) & -(1 << FP17_DROPPED)
    rounded = np.clip(even.view(np.float64), -FP17_MOST, FP17_MOST)
    rounded = np.where(np.abs(rounded) < FP17_SMALLEST, np.copysign(0.0, wide), rounded)
    absent = np.isnan(wide)
    narrow = np.where(absent, wide, rounded) if absent.any() else rounded
    return narrow.astype(np.float32).reshape(np.shape(values))


def add(first: Array, second: Array, rounding: Rounding = round_to_fp32) -> Array:
    """The sum; the difference of equal numbers has the sign of the first."""
    total = first.astype(np.float64) + second
    found = rounding(np.where(total == 0, np.copysign(0.0, first), total))
    return _with_nans(found, first, second)


def subtract(first: Array, second: Array, rounding: Rounding = round_to_fp32) -> Array:
    """The first number plus the negated second."""
    return add(first, np.negative(second), rounding)


def multiply(first: Array, second: Array, rounding: Rounding = round_to_fp32) -> Array:
    """The product."""
    return _with_nans(rounding(first.astype(np.float64) * second), first, second)


def maximum(first: Array, second: Array) -> Array:
    """The maximum; +0 is larger than -0."""
    return _with_nans(np.where(_key(first) >= _key(second), first, second), first, second)


def minimum(first: Array, second: Array) -> Array:
    """The minimum; -0 is smaller than +0."""
    return _with_nans(np.where(_key(first) <= _key(second), first, second), first, second)


def relu(values: Array) -> Array:
    """ReLU: -0 and negative numbers become +0, NaN passes."""
    return np.where((values > 0) | np.isnan(values), values, np.float32(0))


def _key(values: Array) -> Array:
    """An integer key that orders numbers, -0 below +0."""
    bits = np.asarray(values, np.float32).view(np.int32).astype(np.int64)
    return np.where(bits < 0, -(bits & 0x7FFFFFFF) - 1, bits)


def _with_nans(found: Array, first: Array, second: Array) -> Array:
    """The result, replaced by the first NaN operand where there is one."""
    if not np.isnan(found).any() and not np.isnan(first).any() and not np.isnan(second).any():
        return found
    return np.where(np.isnan(first), first, np.where(np.isnan(second), second, found)).astype(np.float32)
