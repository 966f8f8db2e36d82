"""The best activation table for a function on int8, by search over all 256 inputs.

A table has at most 16 segments (one per lane of its block, memory.pack_table), placed freely, coefficients a int8
and b int32, and one right shift s: y = sat8(floor((a*x + b) / 2^s + 1/2)). Source: easynpu, Activation operator.

Let y be any integer within 1/2 + slack of f(x), in units of y's scale. A segment admits the slope a iff every pair
of its inputs does, which bounds a / 2^s by rational numbers that do not depend on s. Every part of a feasible
segment is feasible, so taking the longest segment repeatedly gives the fewest segments. The optimum is the least
slack for which 16 segments suffice, over all s; with slack 0 every result is f(x) rounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.quantize.arithmetic.tables import INPUTS, SegmentTable

SEGMENTS = 16
SHIFTS = np.arange(16)
"""Beyond 2^15 the largest slope, 127 / 2^s, is below one LSB in 256 inputs."""
NEAR_TIE = 1e-4
"""This close to half an LSB, both roundings are right: f is known only to about 1e-5 LSB."""
SLACKS = (
    0.0, 1 / 32, 1 / 16, 3 / 32, 1 / 8, 3 / 16, 1 / 4, 3 / 8, 1 / 2, 3 / 4, 1.0,
    1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0, 32.0, 64.0, 256.0,
)  # fmt: skip
"""The slacks to try, in LSB; below 1 no result is off by more than one."""
BEYOND = 1 << 15
"""Means no limit where saturation does the rest: no slope reaches it within 256 inputs."""

_DISTANCE = np.maximum(INPUTS - INPUTS[:, None], 1).astype(np.float32)
_UNORDERED = np.where(np.greater(INPUTS, INPUTS[:, None]), 0, np.inf).astype(np.float32)


@frozen
class TableLimits:
    """The least and the largest result, before saturation, that is allowed for each input: (256,) int64."""

    low: Array
    high: Array

    @classmethod
    def around(cls, values: Array, slack: float) -> TableLimits:
        """The integers within 1/2 + slack of the values; any result where a value is NaN."""
        reach = 0.5 + slack + NEAR_TIE
        low = np.nan_to_num(np.ceil(values - reach), nan=-128.0).clip(-128, 127).astype(np.int64)
        high = np.nan_to_num(np.floor(values + reach), nan=127.0).clip(-128, 127).astype(np.int64)
        return cls(np.where(low == -128, -BEYOND, low), np.where(high == 127, BEYOND, high))

    def part(self, inputs: slice) -> TableLimits:
        """The limits of some of the inputs."""
        return TableLimits(self.low[inputs], self.high[inputs])


@frozen
class Slopes:
    """For a segment from input i to input j, at [i, j]: a / 2^s lies strictly between low and high."""

    low: Array
    high: Array

    @classmethod
    def within(cls, limits: TableLimits) -> Slopes:
        """Of every pair x1 < x2: low(x2) - high(x1) - 1 < a / 2^s * (x2 - x1) < high(x2) - low(x1) + 1.

        float32 suffices: where 2^s times a quotient matters (|a| <= 128), it is an integer exactly or at least
        1/255 away from one.
        """
        least, most = limits.low.astype(np.float32), limits.high.astype(np.float32)
        low = (most[:, None] - least + 1) / _DISTANCE + _UNORDERED
        high = (most - least[:, None] + 1) / _DISTANCE + _UNORDERED
        return cls(-_least_inside(low), _least_inside(high))

    def coefficients(self, first: Array | int, shift: Array | int) -> tuple[Array, Array]:
        """The least and the largest a for segments from each first input to every last one: (.., 256) each."""
        power = np.exp2(shift)[..., None]
        least = np.maximum(np.floor(self.low[first] * power) + 1, -128)
        return least, np.minimum(np.ceil(self.high[first] * power) - 1, 127)


def _least_inside(pairs: Array) -> Array:
    """At [i, j] the least of pairs[x1, x2] for i <= x1 and x2 <= j: by windows of doubling width, in place."""
    for step in (1, 2, 4, 8, 16, 32, 64, 128):
        np.minimum(pairs[:, step:], pairs[:, :-step].copy(), out=pairs[:, step:])
    for step in (1, 2, 4, 8, 16, 32, 64, 128):
        np.minimum(pairs[:-step], pairs[step:].copy(), out=pairs[:-step])
    return pairs


def best_table(values: Array) -> SegmentTable:
    """The table with the least slack; with slack 0 the fewest segments, else the least and then the fewest errors.

    values: f(x) / y_scale for x = -128..127, (256,) float64; NaN where any result will do.
    """
    values = values.clip(-128.5, 127.5)
    starts, slack = _least_slack(values)
    exact, allowed = TableLimits.around(values, 0.0), TableLimits.around(values, slack)
    slopes = Slopes.within(allowed)
    if slack == 0:
        shift = min(starts, key=lambda each: len(starts[each]))
        return _fit_table(starts[shift], shift, slopes, allowed, exact)[0]
    tables = [_fit_table(first, shift, slopes, allowed, exact) for shift, first in starts.items()]
    return min(tables, key=lambda found: (found[0].error, found[1], len(found[0].starts)))[0]


def _least_slack(values: Array) -> tuple[Mapping[int, Sequence[int]], float]:
    """The least slack that suffices and, for every shift that does, the first inputs of the segments."""
    if starts := _partitions(values, SLACKS[0]):
        return starts, SLACKS[0]
    short, enough = 0, len(SLACKS) - 1
    while enough - short > 1:
        middle = (short + enough) // 2
        if _partitions(values, SLACKS[middle]):
            enough = middle
        else:
            short = middle
    return _partitions(values, SLACKS[enough]), SLACKS[enough]


def _partitions(values: Array, slack: float) -> dict[int, list[int]]:
    """By shift, for shifts with at most SEGMENTS longest segments: the positions 0..255 at which these start."""
    slopes = Slopes.within(TableLimits.around(values, slack))
    last = np.arange(256)
    at = np.zeros(len(SHIFTS), np.int64)
    starts: list[Array] = []
    while len(starts) < SEGMENTS and (at < 256).any():
        starts.append(at)
        first = np.minimum(at, 255)
        least, most = slopes.coefficients(first, SHIFTS)
        infeasible = (least > most) & (last > first[:, None])
        at = np.where(infeasible.any(axis=1) & (at < 256), infeasible.argmax(axis=1), 256)
    return {int(s): [int(each[s]) for each in starts if each[s] < 256] for s in SHIFTS[at == 256]}


def _fit_table(
    starts: Sequence[int], shift: int, slopes: Slopes, allowed: TableLimits, exact: TableLimits
) -> tuple[SegmentTable, int]:
    """The table with the best line for each segment, and the number of inputs at which it is off."""
    lines: list[tuple[int, int]] = []
    errors: list[Array] = []
    for first, after in zip(starts, [*starts[1:], 256], strict=True):
        least, most = (int(each[after - 1]) for each in slopes.coefficients(first, shift))
        inputs = slice(first, after)
        a = np.unique(np.linspace(least, most, 9).astype(np.int64))
        line, error = _best_line(a, INPUTS[inputs], shift, allowed.part(inputs), exact.part(inputs))
        lines.append(line)
        errors.append(error)
    off = np.concatenate(errors)
    a, b = np.array(lines).T
    found = SegmentTable(
        INPUTS[list(starts)].astype(np.int8), a.astype(np.int8), b.astype(np.int32), shift, int(off.max())
    )
    return found, int((off > 0).sum())


def _best_line(
    a: Array, x: Array, shift: int, allowed: TableLimits, exact: TableLimits
) -> tuple[tuple[int, int], Array]:
    """The allowed (a, b) with the least largest error, then the fewest errors, of these slopes; and its errors.

    For a slope, only an offset at which an input starts to be exact, or the middle one, can be the best.
    """
    half, base = (1 << shift) >> 1, a[:, None] * x
    low = ((allowed.low << shift) - half - base).max(axis=1, keepdims=True)
    high = (((allowed.high + 1) << shift) - 1 - half - base).min(axis=1, keepdims=True)
    entering = (exact.low << shift) - half - base
    b = np.concatenate([(low + high) >> 1, entering.clip(low, high)], axis=1)
    y = ((base[:, None, :] + b[:, :, None] + half) >> shift).clip(-128, 127)
    error = np.maximum(np.maximum(exact.low - y, y - exact.high), 0)
    worst, count = error.max(axis=2), (error > 0).sum(axis=2)
    row, column = np.unravel_index(np.argmin(worst * 256 + count), count.shape)
    return (int(a[row]), int(b[row, column])), error[row, column]
