"""Rounding half away from zero and saturation in standard ONNX operators, in float32 or double."""

from __future__ import annotations

import numpy as np

from npuc.export_onnx import Emitter
from npuc.quantize.arithmetic.onnx_forms import step

Real = type[np.floating]


def half_away(emit: Emitter, x: str, dtype: Real = np.float64, *, positive: bool = False) -> str:
    """x rounded half away from zero; positive: negative results do not matter."""
    half = emit.constant(np.array(0.5, dtype), "half")
    if positive:
        return step(emit, "Floor", step(emit, "Add", x, half))
    magnitude = step(emit, "Floor", step(emit, "Add", step(emit, "Abs", x), half))
    return step(emit, "Mul", magnitude, step(emit, "Sign", x))


def clipped(emit: Emitter, x: str, low: float, high: float, dtype: Real = np.float64) -> str:
    """x within limits."""
    limits = (emit.constant(np.array(each, dtype), "limit") for each in (low, high))
    return step(emit, "Clip", x, *limits)
