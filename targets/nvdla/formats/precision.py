"""Precision Type: element types of the three precisions, and the numbers that they have in common.

Source: in-memory formats, FP16 Supporting.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from npuc.ir import Array

DTYPES: Mapping[str, str] = {"int8": "int8", "int16": "int16", "fp16": "float16"}
"""The numpy type of a precision's elements."""

FP16_MOST = 65504.0
"""The largest fp16 number, which saturation gives (FP16 Supporting)."""
FP16_SMALLEST = 2.0**-24
"""The smallest positive fp16 number."""

HOST_DTYPES: Mapping[str, str] = {"int8": "int8", "int16": "int16", "fp16": "float32"}
"""The element type of a precision's tensors in the graph and on the host, converted on transfer to NVDLA."""

LOADED: Mapping[str, str] = {**HOST_DTYPES, "uint8": "uint8"}
"""The same, with frames, whose bytes CDMA converts."""


def precision_of(dtype: str) -> str:
    """NVDLA's precision for tensors of an element type of the graph.

    >>> precision_of("float32")
    'fp16'
    """
    return next(precision for precision, each in HOST_DTYPES.items() if each == dtype)


def round_to_precision(values: Array, precision: str) -> Array:
    """A host tensor's values as NVDLA receives them: fp16 rounded to nearest, within +/-65504 (no infinities)."""
    limited = np.clip(values, -FP16_MOST, FP16_MOST) if precision == "fp16" else values
    return limited.astype(DTYPES.get(precision, precision))


def fp17_of_bits(bits: int) -> float:
    """The value of 17 bits: sign, 6 bits of exponent (bias 31), 10 of mantissa.

    >>> fp17_of_bits(0x7C00), fp17_of_bits(0x7800)
    (1.0, 0.5)
    """
    exponent, mantissa = bits >> 10 & 0x3F, bits & 0x3FF
    if exponent == 0:
        return 0.0
    return (-1.0 if bits >> 16 & 1 else 1.0) * (1 + mantissa / 1024) * 2.0 ** (exponent - 31)


def bits_of_fp17(value: float) -> int:
    """The 17 bits of the nearest number; magnitudes below 2^-30 are not supported.

    >>> hex(bits_of_fp17(1.0)), fp17_of_bits(bits_of_fp17(1 / 3))
    ('0x7c00', 0.333251953125)
    """
    mantissa, exponent = np.frexp(abs(value))
    digits = round(float(mantissa) * 2**11)
    if digits == 2**11:
        digits, exponent = 2**10, exponent + 1
    return (value < 0) << 16 | (int(exponent) + 30) << 10 | (digits - 2**10)
