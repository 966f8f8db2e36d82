"""Rounding half away from zero, and saturation, in standard ONNX operators in float32 or double."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from npuc.export_onnx import Emitter


Real = type[np.floating]


def half_away(emit: Emitter, x: str, dtype: Real = np.float64, *, positive: bool = False) -> str:
    """x rounded half away from zero; positive: negative results need not be correct."""
    half = emit.constant(np.array(0.5, dtype), "half")
    if positive:
        return emit.step("Floor", emit.step("Add", x, half))
    magnitude = emit.step("Floor", emit.step("Add", emit.step("Abs", x), half))
    return emit.step("Mul", magnitude, emit.step("Sign", x))


def clipped(emit: Emitter, x: str, low: float, high: float, dtype: Real = np.float64) -> str:
    """x clipped to limits."""
    limits = (emit.constant(np.array(each, dtype), "limit") for each in (low, high))
    return emit.step("Clip", x, *limits)
