"""The convolution pipeline in fp16, bit for bit: products aligned in steps of 16, and 39-bit sums.

A group consists of the products of one atom operation of one kernel, for Winograd of those of a tile's 16
positions and four channels. A product is still a carry-save pair when it is shifted to the group's exponent, and
its halves are truncated separately: a shifted product is too small by up to two units of the last place.

Source: Arithmetic, Direct convolution in fp16 (CMAC, CACC); seen on the RTL.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array

STEP = 4
"""Bits of an alignment step: exponents are powers of 16."""
POINT = 25
"""A number is magnitude * 2^(4 * block - 25)."""
UNITS = np.exp2(POINT - STEP * np.arange(8, dtype=np.float32))
"""The factor from a number to its magnitude, by its block."""
ABSENT = -32
"""The block of a zero, below that of any product."""
OUT_OF_REACH = 8
"""Alignment steps that shift a product out completely."""
FARTHEST = 14
"""The most steps between two products, unless one is zero."""
PAIR_BIAS = 0x55550000
"""The excess of a product's two halves: 2^16 for each of the eight rows of the multiplier."""
BOOTH_DIGITS = 8
LARGEST = 2047 << 3
"""The largest magnitude of a number."""
SUM_DROPPED, OUT_DROPPED = 14, 29
"""Mantissa bits of a double beyond a partial sum (39 bits) and a result (24 bits)."""
CHUNK = 1 << 17
"""Products computed at once, so that the arrays stay in the cache."""


@frozen
class HalfOperands:
    """fp16 numbers as the multipliers take them: sign and magnitude, and the block exponent (0..7)."""

    signed: Array
    """int32, up to 2^14 * 2."""
    block: Array
    """int8; ABSENT for zeros."""
    low: Array
    """intp: the last byte of `signed`, and 256 if it is negative."""

    def __getitem__(self, part: Any) -> HalfOperands:
        """A part of the numbers, or all of them with further axes."""
        return HalfOperands(self.signed[part], self.block[part], self.low[part])

    def swap_axes(self) -> HalfOperands:
        """The same with the last two axes exchanged, also in memory."""
        turned = (each.swapaxes(-1, -2) for each in (self.signed, self.block, self.low))
        return HalfOperands(*map(np.ascontiguousarray, turned))


def operands(values: Array) -> HalfOperands:
    """float32 values of fp16 (an infinity is 65536); NaN as zero."""
    finite = np.where(np.isnan(values), np.float32(0), values)
    exponent = (finite.view(np.int32) >> 23 & 0xFF) - 112  # 2^-25 and less for 0
    block = np.clip(exponent >> 2, 0, 7)
    signed = (finite * UNITS[block]).astype(np.int32)
    return HalfOperands(signed, np.where(signed == 0, ABSENT, block).astype(np.int8), _low(signed))


def _low(signed: Array) -> Array:
    return (signed & 0xFF | (signed < 0).astype(np.int32) << 8).astype(np.intp)


@frozen
class GroupSum:
    """Sums of products for every position and kernel (..., positions, kernels)."""

    total: Array
    """int64; for Winograd one sum for each position of the tile."""
    top: Array
    """The largest block of a product, which scales the total: its unit is 2^(4 * top - 50)."""

    def values(self) -> Array:
        """The sums as doubles, exactly."""
        return np.ldexp(self.total.astype(np.float64), STEP * self.top.astype(np.int32) - 2 * POINT)


def multiply(data: HalfOperands, weights: HalfOperands, positions: int = 1) -> GroupSum:
    """The group of data (places, group) and weights (group, kernels); the group has `positions` equal parts.

    Returns a total (places, kernels), or (positions, places, kernels) for several positions.
    """
    places, kernels = data.signed.shape[0], weights.signed.shape[1]
    turned = data.swap_axes()
    used = weights.signed != 0
    most = max(int(used.sum(axis=0).max(initial=0)), 1)
    if positions == 1 and 2 * most <= len(used):  # as in depthwise layers: zeros change neither sums nor tops
        kept = np.argsort(~used, axis=0, kind="stable")[:most]
        one, other = weights[kept, np.arange(kernels)][:, :, None], turned[kept]
    else:
        one, other = weights[:, :, None], turned[:, None, :]
    wide = places >= kernels  # the longer axis comes last
    if not wide:
        one, other = one.swap_axes(), other.swap_axes()
    first, second = max(len(one.signed), 1) * min(places, kernels), max(places, kernels)
    size = max(CHUNK // max(first, 1), 1)
    found = [_chunk(_piece(one, at, size), _piece(other, at, size), positions) for at in range(0, second, size)]
    total, top = (np.concatenate(each, axis=-1) for each in zip(*found, strict=True))
    if wide:
        total, top = np.swapaxes(total, -1, -2), top.T
    return GroupSum(total[0] if positions == 1 else total, top)


def _piece(whole: HalfOperands, first: int, size: int) -> HalfOperands:
    """A part of the last axis, or all of it where it is broadcast."""
    return whole if whole.signed.shape[-1] == 1 else whole[..., first : first + size]


def _chunk(weights: HalfOperands, data: HalfOperands, positions: int) -> tuple[Array, Array]:
    """Totals (positions, first, second) and tops (first, second) of operands that broadcast to (group, ..)."""
    blocks = weights.block + data.block
    top = np.maximum(blocks.max(axis=0), 0)
    steps = top - blocks
    shifted = _shift_products(weights, data, steps)
    parts = shifted.reshape(positions, -1, *shifted.shape[1:])
    return parts.sum(axis=1, dtype=np.int64), top


def _shift_products(weights: HalfOperands, data: HalfOperands, steps: Array) -> Array:
    """The products, each shifted right by its steps, with the halves truncated separately."""
    products = weights.signed * data.signed
    if not steps.any():
        return products
    cut = np.minimum(steps, np.int8(OUT_OF_REACH - 1))  # those of zeros are far larger, and shift nothing
    found = products >> (cut * np.int8(STEP)).astype(np.int32)
    lost = _lost().take((weights.low << 9) | data.low)
    found -= (lost >> cut.view(np.uint8)) & np.uint8(1)
    far = np.flatnonzero((steps > 2) & (steps <= FARTHEST))
    if len(far):
        np.put(found, far, _far(weights, data, products.shape, far, steps.ravel()[far]))
    return found


@cache
def _lost() -> Array:
    """Whether the halves of a product lose a carry when they are shifted by 4 (bit 1) or 8 bits (bit 2).

    This depends on low bytes and signs only: (2^18,) by the operands' `low`, the weight's first.
    """
    signed = np.arange(512) & 0xFF | np.where(np.arange(512) < 256, 1 << 8, -1 << 8)  # numbers with these `low`
    products = np.multiply.outer(signed, signed).ravel()
    total, carries = _low_half(_rows(signed[:, None], signed, 4, np.uint8))
    half = (total ^ carries ^ (total & carries) << np.uint8(1)).ravel()  # the upper rows add nothing here
    found = [((products & mask) < (half & mask)).astype(np.uint8) for mask in (0x0F, 0xFF)]
    return found[0] << np.uint8(1) | found[1] << np.uint8(2)


def _far(weights: HalfOperands, data: HalfOperands, shape: tuple[int, ...], where: Array, steps: Array) -> Array:
    """Products at some places (flat), shifted by 12 bits or more."""
    places = np.unravel_index(where, shape)
    w, d = (np.broadcast_to(each.signed, shape)[places] for each in (weights, data))
    rows = _rows(w, d, BOOTH_DIGITS, np.uint32)
    low, high = _low_half(rows[:5]), _low_half(rows[5:])
    shifted = [each << np.uint32(8) for each in high]
    pair = _add_carry_save(*_add_carry_save(*low, shifted[0]), shifted[1])
    bits = STEP * np.minimum(steps, OUT_OF_REACH - 1).astype(np.uint32)
    found = sum((each >> bits).astype(np.int64) for each in pair) - (PAIR_BIAS >> bits.astype(np.int64))
    return np.where(steps < OUT_OF_REACH, found, 0)


def _rows(weights: Array, data: Array, digits: int, dtype: type[np.unsignedinteger]) -> list[Array]:
    """The multiplier's rows (radix-4 Booth): four rows and their carries as five numbers for each half."""
    found: list[Array] = []
    carries = dtype(0)
    multiplicand, minus = data.astype(dtype), data < 0  # the rows of zeros are never used
    any_minus, bias = minus.any(), dtype(1 << 16 & np.iinfo(dtype).max)
    for digit, recoding in enumerate(_recodings()[:digits]):
        recoded = recoding.take(weights + LARGEST)
        below = ((recoded < 0) ^ minus) & (recoded != 0) if any_minus else recoded < 0
        row = recoded.astype(dtype) * multiplicand + (bias - below.astype(dtype))
        place = digit % 4
        if place == 0:
            found.append(row)
        else:
            found.append((row << dtype(2 * place)) + carries)
        carries = below.astype(dtype) << dtype(2 * place)
        if place == 3:
            found.append(carries)
    return found


@cache
def _recodings() -> Array:
    """The Booth digits, -2 to 2 and lowest first, of -LARGEST to LARGEST: (BOOTH_DIGITS, numbers)."""
    weights = np.arange(-LARGEST, LARGEST + 1)
    magnitude = np.abs(weights) << 1
    bits = np.stack([magnitude >> 2 * digit & 7 for digit in range(BOOTH_DIGITS)])
    return (np.array([0, 1, 1, 2, -2, -1, -1, 0])[bits] * np.sign(weights)).astype(np.int8)


def _low_half(rows: list[Array]) -> tuple[Array, Array]:
    """Reduces five numbers to two with the same sum."""
    pair = _add_carry_save(rows[0], rows[1], rows[2])
    return _add_carry_save(*_add_carry_save(*pair, rows[3]), rows[4])


def _add_carry_save(x: Array, y: Array, z: Array) -> tuple[Array, Array]:
    """Sum and carry of three numbers."""
    either = x ^ y
    return either ^ z, (x & y | either & z) << x.dtype.type(1)


def add(first: Array, second: Array) -> Array:
    """The sum rounded to 39 significant bits, ties away from zero; all are doubles."""
    total = first + second
    beyond = total - first
    error = (first - (total - beyond)) + (second - beyond)  # the rounding error of the double, exactly
    bits = total.view(np.int64)
    tie = (bits & ((1 << SUM_DROPPED) - 1)) == 1 << (SUM_DROPPED - 1)
    bits = bits - (tie & (error != 0) & ((error < 0) != (total < 0)))
    return _round_bits(bits, SUM_DROPPED)


def result(total: Array) -> Array:
    """The result passed to SDP: 24 significant bits, ties away from zero, as float32."""
    return _round_bits(total.view(np.int64), OUT_DROPPED).astype(np.float32)


def _round_bits(bits: Array, dropped: int) -> Array:
    """Doubles without their last `dropped` bits, rounded with ties away from zero."""
    return ((bits + (1 << (dropped - 1))) & -(1 << dropped)).view(np.float64)
