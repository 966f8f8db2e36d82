"""Rounding half away from zero, and saturation, in standard ONNX operators in float32 or double."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npuc.ir import Array

if TYPE_CHECKING:
    from npuc.onnx_files.export import OnnxEmitter


Real = type[np.floating]


def half_away(emit: OnnxEmitter, x: str, dtype: Real = np.float64) -> str:
    """x rounded half away from zero."""
    half = emit.constant(np.array(0.5, dtype), "half")
    magnitude = emit.step("Floor", emit.step("Add", emit.step("Abs", x), half))
    return emit.step("Mul", magnitude, emit.step("Sign", x))


EXACT_PRODUCTS = 2.0**48
"""Products of integers below this are rounded by `scaled` in three operators."""


def scaled(emit: OnnxEmitter, x: str, bound: float, factor: Array | np.integer, shift: int) -> str:
    """Integers x, a double, with |x| <= bound, times integers over 2^shift, rounded half away from zero.

    The factor is larger by 2^-50 of itself, and so is a product: one halfway between two integers lies beyond that
    half, away from zero, where Floor(product + 1/2) rounds as it should for both signs. No other product reaches a
    half: all are multiples of 2^-shift, and below 2^48 that is twice what the increase and rounding move them.
    """
    exact = np.ldexp(np.asarray(factor, np.float64), -shift)
    if bound * float(np.abs(exact).max(initial=0)) * 2.0**shift >= EXACT_PRODUCTS:
        return half_away(emit, emit.step("Mul", x, emit.constant(exact, "factor")))
    product = emit.step("Mul", x, emit.constant(exact * (1 + 2.0**-50), "factor"))
    return emit.step("Floor", emit.step("Add", product, emit.constant(np.float64(0.5), "half")))


def clipped(emit: OnnxEmitter, x: str, low: float, high: float, dtype: Real = np.float64) -> str:
    """x clipped to limits."""
    limits = (emit.constant(np.array(each, dtype), "limit") for each in (low, high))
    return emit.step("Clip", x, *limits)
