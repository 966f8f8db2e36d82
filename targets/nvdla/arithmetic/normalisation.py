"""Local response normalisation as CDP computes it in integers: two tables of a function of the sum of squares.

CDP squares the centred input (with one extra bit), adds the squares of 3, 5, 7 or 9 neighbouring channels, looks
up the function of the sum in its tables LE (65 entries) or LO (257 entries), interpolates with 16 fractional bits,
multiplies by the centred input and converts. Both tables are linear here; the sum 0 is at distance 1 from their
start, as a value equal to the start counts as below. LO covers every sum; LE, which is used where both hit, has
shorter steps for small sums, where the function bends most.

Source: the test programs cdp_*.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.nvdla.model.arithmetic import shift_right

SIZES = (3, 5, 7, 9)
START = -1
"""The start of both tables: the sum 0 is the first value inside."""
LE_STEPS, LO_STEPS = 64, 256
FRACTION_BITS = 16
MOST_ENTRY = (1 << 15) - 1
LOOKED_AT = 4096
"""Number of sums at which tables are compared with their function."""


@frozen
class ResponseTables:
    """Entries and binary logarithm of the step of LE and LO."""

    le: tuple[int, ...]
    lo: tuple[int, ...]
    le_step: int
    lo_step: int

    @cached_property
    def le_end(self) -> int:
        """The first distance from the start that LE does not cover."""
        return LE_STEPS << self.le_step

    def __call__(self, sums: Array) -> Array:
        """The function of sums of squares (int64)."""
        distance = sums.astype(np.int64) - START
        fine = _interpolate(np.array(self.le, np.int64), np.minimum(distance, self.le_end - 1), self.le_step)
        coarse = _interpolate(np.array(self.lo, np.int64), distance, self.lo_step)
        return np.where(distance < self.le_end, fine, coarse)


def _interpolate(entries: Array, distance: Array, step: int) -> Array:
    index, inside = distance >> step, distance & ((1 << step) - 1)
    below, above = entries[index], entries[index + 1]
    return below + shift_right((above - below) * (inside << FRACTION_BITS >> step), FRACTION_BITS)


def tables_of(function: Callable[[Array], Array], most: int) -> ResponseTables:
    """The tables nearest to a positive, decreasing function of sums from 0 to `most`.

    function: of sums (float64, including START), with values up to MOST_ENTRY.
    """
    lo_step = max((most - START) // LO_STEPS, 1).bit_length()
    sums = np.unique(np.linspace(0, most, LOOKED_AT).astype(np.int64))
    sums = np.union1d(sums, np.unique(np.geomspace(1, most, LOOKED_AT).astype(np.int64)))
    wanted = function(sums.astype(np.float64))
    found = (_tables(function, le_step, lo_step) for le_step in range(lo_step + 1))
    return min(found, key=lambda each: largest_effect(sums, each(sums) - wanted))


def largest_effect(sums: Array, error: Array) -> float:
    """The largest effect of the function's error on a result: the input is at most the square root of its sum."""
    return float((np.sqrt(sums) * np.abs(error)).max())


def _tables(function: Callable[[Array], Array], le_step: int, lo_step: int) -> ResponseTables:
    le, lo = (
        tuple(
            int(each) for each in np.rint(function((np.arange(count + 1.0) * 2**step) + START)).clip(0, MOST_ENTRY)
        )
        for count, step in ((LE_STEPS, le_step), (LO_STEPS, lo_step))
    )
    return ResponseTables(le, lo, le_step, lo_step)


def square_sums(x: Array, size: int) -> Array:
    """Sums of squares over `size` neighbouring channels of (1, C, H, W), 0 beyond the map."""
    reach = size // 2
    squares = np.pad(x * x, ((0, 0), (reach, reach), (0, 0), (0, 0)))
    channels = x.shape[1]
    return sum((squares[:, first : first + channels] for first in range(size)), np.zeros_like(x))
