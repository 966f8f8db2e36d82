"""Precision Type: permitted conversions, and how they are computed.

Source: in-memory formats, Precision Conversion: tables 29 to 32, equations 1 and 3. The rendering with figures
lacks rows of table 29 that the other one has; they are included here. Table 32 lists int16 twice for int8 input;
the second is taken as fp16, as in tables 29 to 31.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from npuc.errors import UnsupportedOperator
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

Table = Mapping[tuple[str, str], str]
"""(input, output) -> the precision inside the pipeline; a missing pair is an invalid case."""

CONVOLUTION: Table = {
    ("integer image", "int8"): "int8",
    ("integer image", "int16"): "int16",
    ("integer image", "fp16"): "fp16",
    ("fp16 image", "fp16"): "fp16",
    ("int8", "int8"): "int8",
    ("int16", "int16"): "int16",
    ("fp16", "fp16"): "fp16",
}
"""Table 29; the weights have the pipeline's precision."""
SDP: Table = {
    ("int8", "int8"): "int32",
    ("int8", "int16"): "int32",
    ("int16", "int8"): "int32",
    ("int16", "int16"): "int32",
    ("int16", "fp16"): "int32",
    ("fp16", "int16"): "fp32",
    ("fp16", "fp16"): "fp32",
}
"""Table 30, offline mode."""
LRN: Table = {(each, each): each for each in DTYPES}
"""Table 31."""
POOLING: Table = {(each, each): each for each in DTYPES}
"""Table 32."""

TABLES: Mapping[str, tuple[str, Table]] = {
    "convolution": ("table 29, Precision conversion for convolutional layer", CONVOLUTION),
    "SDP": ("table 30, Precision conversion for SDP layer (offline mode)", SDP),
    "LRN": ("table 31, Precision conversion for LRN layer", LRN),
    "pooling": ("table 32, Precision conversion for pooling layer", POOLING),
}


def pipeline_precision(layer: str, source: str, result: str) -> str:
    """The precision in which a layer (a key of TABLES) converts `source` to `result`.

    Raises UnsupportedOperator (E202), which names the table, for an invalid case.
    """
    title, table = TABLES[layer]
    found = table.get((source, result))
    if found is None:
        known = ", ".join(f"{x} to {y}" for x, y in table)
        raise UnsupportedOperator(
            "E202", f"{layer} does not convert {source} to {result}", limit=f"{title}: {known}"
        )
    return found


def flying_precision(source: str, result: str) -> str:
    """The precision of SDP behind the convolution (on-flying mode), which keeps the bit depth.

    Raises UnsupportedOperator (E202) if the depth changes, or for an invalid case of table 30.
    """
    if (source == "int8") != (result == "int8"):
        raise UnsupportedOperator(
            "E202",
            f"SDP behind a convolution does not convert {source} to {result}",
            limit="input and output of the same bit depth in on-flying mode",
            remedy="convert in an SDP layer of its own",
        )
    return pipeline_precision("SDP", source, result)


def operand_precision(source: str, result: str) -> str:
    """The precision of batch normalisation and element-wise operands: int8 between int8 and int16."""
    return "int8" if {source, result} == {"int8", "int16"} else source


def precision_of(dtype: str) -> str:
    """NVDLA's precision for tensors of an element type of the graph.

    >>> precision_of("float32")
    'fp16'
    """
    return next(precision for precision, each in HOST_DTYPES.items() if each == dtype)


def received(values: Array, precision: str) -> Array:
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


def half_away(values: Array, shift: int) -> Array:
    """Integers divided by 2^shift, rounded half away from zero like every right shift of NVDLA."""
    wide = values.astype(np.int64)
    half = (1 << shift) >> 1
    return np.sign(wide) * ((np.abs(wide) + half) >> shift)


def converted(values: Array, offset: int, scale: int, truncate: int, precision: str) -> Array:
    """Equations 1 and 3: (d - offset) * SF, where SF is scale / 2^truncate; saturated to int8 or int16, or fp16.

    values: integers (of pixels or features).
    """
    scaled = half_away((values.astype(np.int64) - offset) * scale, truncate)
    if precision == "fp16":
        return scaled.clip(-FP16_MOST, FP16_MOST).astype(np.float16)
    limits = np.iinfo(precision)
    return scaled.clip(limits.min, limits.max).astype(precision)
