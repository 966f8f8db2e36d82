"""The integer arithmetic that all blocks share: rounding shifts and saturation.

Every right shift of NVDLA rounds half away from zero and then saturates.
"""

from __future__ import annotations

import numpy as np

from npuc.ir import Array


def shift_right(values: Array, shift: int) -> Array:
    """int64 divided by 2^shift, rounded half away from zero."""
    if shift == 0:
        return values
    if shift > 62:
        return np.zeros_like(values)
    rounded = np.asarray(values + (np.int64(1) << (shift - 1)))
    rounded -= values < 0
    rounded >>= shift
    return rounded


def shift_left(values: Array, shift: int, bits: int) -> Array:
    """int64 (of at most 32 bits) times 2^shift, saturated to a number of bits of at most 63."""
    low, high = limits(bits)
    reach = high >> shift
    shifted = np.clip(values, -reach - 1, reach) << shift
    shifted = np.where(values > reach, high, shifted)
    return np.where(values < -reach - 1, low, shifted)


def shift_either(values: Array, shift: int, bits: int) -> Array:
    """Right by a positive shift, left by a negative one, saturated."""
    return saturate(shift_right(values, shift), bits) if shift >= 0 else shift_left(values, -shift, bits)


def limits(bits: int) -> tuple[int, int]:
    """The smallest and largest signed number of so many bits."""
    return -(1 << (bits - 1)), (1 << (bits - 1)) - 1


def saturate(values: Array, bits: int) -> Array:
    """The values, saturated to a signed number of bits."""
    return np.clip(values, *limits(bits))


def signed(value: int, width: int) -> int:
    """The bits of a field as a two's complement number.

    >>> signed(0xFFFF, 16), signed(0x7FFF, 16)
    (-1, 32767)
    """
    return value - (1 << width) if value >> (width - 1) else value
