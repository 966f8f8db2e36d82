"""The two look-up tables of SDP and CDP: LE (65 entries, exponential or linear) and LO (257 entries, linear).

Each table finds its index and interpolates, or extrapolates with a slope below its start and beyond its end. If
both tables hit, or they miss on different sides, LUT_HYBRID_PRIORITY chooses; if only one hits, it is used; if
both miss below or both above, LUT_UFLOW_PRIORITY or LUT_OFLOW_PRIORITY chooses. A value equal to the start counts
as below.

Source: the test programs sdp_*_ew_* and cdp_*; fp16: values of 11 significant bits and 6 bits of exponent (fp17).
"""

from __future__ import annotations

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.nvdla.model import fp16
from npuc.targets.nvdla.model.arithmetic import saturate, shift_either, shift_right
from npuc.targets.nvdla.model.register_file import LookUpTables, RegisterGroup

LE, LO = "LE", "LO"
FARTHEST = 46
"""Beyond 2^46 no slope leads back to a 38-bit value: every result is saturated."""


@frozen
class Arithmetic:
    """The integer widths of a unit's tables."""

    fraction_bits: int
    slope_bits: int
    """To which the product of distance and slope is saturated."""
    out_bits: int
    rounds_sum: bool
    """Whether the interpolated value is rounded, or only its distance from the entry below."""


SDP = Arithmetic(35, 32, 32, rounds_sum=True)
CDP = Arithmetic(16, 56, 16, rounds_sum=False)


@frozen
class RegisterTable:
    """One table as set up by registers."""

    entries: Array
    start: int
    end: int
    exponential: bool
    select: int
    """Binary logarithm of the step (linear)."""
    offset: int
    """Binary logarithm of the first step (exponential)."""
    slopes: tuple[tuple[int, int], tuple[int, int]]
    """Scale and shift below the start, and beyond the end."""

    @property
    def last_index(self) -> int:
        """Index of the last entry."""
        return len(self.entries) - 1


@frozen
class Found:
    """The results of one table for every value, and where it misses below or beyond."""

    values: Array
    below: Array
    beyond: Array

    @property
    def hit(self) -> Array:
        """Where the value is in the table's range."""
        return ~(self.below | self.beyond)


def tables(group: RegisterGroup, stored: LookUpTables) -> tuple[RegisterTable, RegisterTable]:
    """LE and LO of an operation."""
    exponential = group.value_name("LUT_LE_FUNCTION") == "EXPONENT"
    return _read_table(group, LE, stored.le, exponential=exponential), _read_table(
        group, LO, stored.lo, exponential=False
    )


def _read_table(group: RegisterGroup, name: str, entries: Array, *, exponential: bool) -> RegisterTable:
    slopes = tuple(
        (
            group.signed_value(f"LUT_{name}_SLOPE_{side}_SCALE"),
            group.signed_value(f"LUT_{name}_SLOPE_{side}_SHIFT"),
        )
        for side in ("UFLOW", "OFLOW")
    )
    return RegisterTable(
        entries.copy(),
        _limit(group, name, "START"),
        _limit(group, name, "END"),
        exponential,
        group.signed_value(f"LUT_{name}_INDEX_SELECT"),
        group.signed_value("LUT_LE_INDEX_OFFSET"),
        (slopes[0], slopes[1]),
    )


def _limit(group: RegisterGroup, name: str, side: str) -> int:
    """Start or end of a table: 32 bits in SDP, 38 in CDP."""
    if group.block == "SDP":
        return group.signed_value(f"LUT_{name}_{side}")
    return group.signed_value(f"LUT_{name}_{side}_HIGH") << 32 | group[f"LUT_{name}_{side}_LOW"]


def look_up(
    group: RegisterGroup, stored: LookUpTables, values: Array, unit: Arithmetic
) -> tuple[Array, dict[str, int]]:
    """The function of the tables for integers (int64) or float32, and the counts of hits and misses."""
    floating = np.issubdtype(values.dtype, np.floating)
    le, lo = (
        _found_floating(each, values, unit) if floating else _found(each, values, unit)
        for each in tables(group, stored)
    )
    take_lo = np.where(le.hit ^ lo.hit, lo.hit, bool(group["LUT_HYBRID_PRIORITY"]))
    both_below, both_beyond = le.below & lo.below, le.beyond & lo.beyond
    take_lo = np.where(both_below, bool(group["LUT_UFLOW_PRIORITY"]), take_lo)
    take_lo = np.where(both_beyond, bool(group["LUT_OFLOW_PRIORITY"]), take_lo)
    counts = {
        "LUT_UFLOW": both_below,
        "LUT_OFLOW": both_beyond,
        "LUT_HYBRID": ~(le.hit ^ lo.hit) & ~both_below & ~both_beyond,
        "LUT_LE_HIT": le.hit & ~lo.hit,
        "LUT_LO_HIT": lo.hit & ~le.hit,
    }
    result = np.where(take_lo, lo.values, le.values)
    return result, {name: int(np.count_nonzero(each)) for name, each in counts.items()}


def _found(table: RegisterTable, x: Array, unit: Arithmetic) -> Found:
    """Looks up integers in one table."""
    distance = x - table.start
    inside = np.maximum(distance, 1)
    if table.exponential:
        power = np.frexp(inside.astype(np.float64))[1].astype(np.int64) - 1
        power -= (np.int64(1) << power) > inside
        index = power - table.offset
        fraction = _scale_fraction(inside - (np.int64(1) << power), power, unit.fraction_bits)
    else:
        step = np.int64(max(table.select, 0))
        index = inside << -table.select if table.select < 0 else inside >> step
        fraction = _scale_fraction(
            inside & ((np.int64(1) << step) - 1), np.broadcast_to(step, x.shape), unit.fraction_bits
        )
    below = (distance <= 0) | (index < 0)
    beyond = ~below & (index >= table.last_index)
    at = np.clip(index, 0, table.last_index - 1)
    y0, y1 = table.entries[at], table.entries[at + 1]
    values = _interpolate(y0, y1, fraction, unit)
    base = table.start + (1 << min(table.offset, FARTHEST) if table.exponential and table.offset >= 0 else 0)
    values = np.where(below, _extrapolate(table.entries[0], x - base, table.slopes[0], unit), values)
    values = np.where(beyond, _extrapolate(table.entries[-1], x - table.end, table.slopes[1], unit), values)
    return Found(values, below, beyond)


def _scale_fraction(part: Array, digits: Array, bits: int) -> Array:
    """part / 2^digits as a fraction of `bits` bits, truncated."""
    return np.where(digits > bits, part >> np.maximum(digits - bits, 0), part << np.maximum(bits - digits, 0))


def _interpolate(y0: Array, y1: Array, fraction: Array, unit: Arithmetic) -> Array:
    if unit.rounds_sum:
        return shift_right((y0 << unit.fraction_bits) + (y1 - y0) * fraction, unit.fraction_bits)
    return saturate(y0 + shift_right((y1 - y0) * fraction, unit.fraction_bits), unit.out_bits)


def _extrapolate(entry: Array, distance: Array, slope: tuple[int, int], unit: Arithmetic) -> Array:
    """The entry at an end of the table, continued by a straight line."""
    scale, shift = slope
    return saturate(entry + shift_either(distance * scale, shift, unit.slope_bits), unit.out_bits)


def _found_floating(table: RegisterTable, x: Array, unit: Arithmetic) -> Found:
    """Looks up fp16 values (as float32) in one table; start, end and entries contain bits of floats."""
    start, end = _float32(table.start), _float32(table.end)
    distance = fp16.subtract(x, np.array(start, np.float32))
    inside = np.where(distance > 0, distance, np.float32(1))
    with np.errstate(invalid="ignore"):
        if table.exponential:
            power = np.frexp(inside)[1] - 1
            index, fraction = power - table.offset, np.ldexp(inside.astype(np.float64), -power) - 1
        else:
            steps = np.ldexp(inside.astype(np.float64), -table.select)
            index = np.floor(np.minimum(steps, table.last_index)).astype(np.int64)
            fraction = steps - np.floor(steps)
    below = ~(distance > 0) | (index < 0)
    beyond = ~below & (index >= table.last_index)
    entries = table.entries.astype(np.int16).view(np.float16).astype(np.float32)
    at = np.clip(index, 0, table.last_index - 1)
    cut = np.ldexp(np.floor(np.ldexp(fraction, unit.fraction_bits)), -unit.fraction_bits)
    values = (_blend_entries if unit.rounds_sum else _add_share)(entries[at], entries[at + 1], cut)
    base = start + (2.0**table.offset if table.exponential else 0.0)
    values = np.where(below, _sloped_floating(entries[0], x, base, table.slopes[0][0]), values)
    values = np.where(beyond, _sloped_floating(entries[-1], x, end, table.slopes[1][0]), values)
    return Found(values.astype(np.float32), below, beyond)


def _blend_entries(y0: Array, y1: Array, fraction: Array) -> Array:
    """SDP: the sum of both entries times their shares, which are rounded first."""
    shares = fp16.fp17(1 - fraction), fp16.fp17(fraction)
    first, second = (fp16.multiply(each, entry, fp16.fp17) for each, entry in zip(shares, (y0, y1), strict=True))
    return fp16.add(first, second, fp16.fp17)


def _add_share(y0: Array, y1: Array, fraction: Array) -> Array:
    """CDP: the lower entry plus a share of the way to the next one."""
    rise = fp16.fp17(fp16.subtract(y1, y0))
    return fp16.add(fp16.multiply(rise, fp16.fp17(fraction), fp16.fp17), y0, fp16.fp17)


def _sloped_floating(entry: Array, x: Array, bound: float, scale: int) -> Array:
    """The entry at an end of the table, continued by a straight line."""
    factor = np.array(scale, np.int16).view(np.float16).astype(np.float32)
    distance = fp16.fp17(fp16.subtract(x, np.array(bound, np.float32)))
    return fp16.add(fp16.multiply(distance, factor, fp16.fp17), entry, fp16.fp17)


def _float32(bits: int) -> float:
    return float(np.uint32(bits & 0xFFFFFFFF).view(np.float32))
