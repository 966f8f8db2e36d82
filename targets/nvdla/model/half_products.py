"""The convolution pipeline in fp16, bit for bit: products aligned in steps of 16, and 39-bit sums.

A group consists of the products of one atom operation of one kernel, for Winograd of those of a tile's 16
positions and four channels. A product is still a carry-save pair when it is shifted to the group's exponent, and
its halves are truncated separately: a shifted product is too small by up to two units of the last place.

Source: Arithmetic, Direct convolution in fp16 (CMAC, CACC); seen on the RTL.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array

STEP = 4
"""Bits of an alignment step: exponents are powers of 16."""
POINT = 25
"""A number is magnitude * 2^(4 * block - 25)."""
ABSENT = -32
"""The block of a zero, below that of any product."""
OUT_OF_REACH = 8
"""Alignment steps that shift a product out completely."""
PAIR_BIAS = 0x55550000
"""The excess of a product's two halves: 2^16 for each of the eight rows of the multiplier."""
BOOTH_DIGITS = 8
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

    def __getitem__(self, part: Any) -> HalfOperands:
        """A part of the numbers, or all of them with further axes."""
        return HalfOperands(self.signed[part], self.block[part])


def operands(values: Array) -> HalfOperands:
    """float32 values of fp16 (an infinity is 65536); NaN as zero."""
    finite = np.where(np.isnan(values), np.float32(0), values)
    exponent = np.frexp(finite)[1] + 14
    block = np.clip(exponent >> 2, 0, 7)
    signed = np.ldexp(finite.astype(np.float64), POINT - STEP * block).astype(np.int32)
    return HalfOperands(signed, np.where(signed == 0, ABSENT, block).astype(np.int8))


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
    turned = HalfOperands(data.signed.T, data.block.T)
    used = weights.signed != 0
    most = max(int(used.sum(axis=0).max(initial=0)), 1)
    if positions == 1 and 2 * most <= len(used):  # as in depthwise layers: zeros change neither sums nor tops
        kept = np.argsort(~used, axis=0, kind="stable")[:most]
        one, other = weights[kept, np.arange(kernels)][:, :, None], turned[kept]
    else:
        one, other = weights[:, :, None], turned[:, None, :]
    wide = places >= kernels  # the longer axis comes last
    if not wide:
        one, other = (HalfOperands(each.signed.swapaxes(1, 2), each.block.swapaxes(1, 2)) for each in (one, other))
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
    shifted = _shifted(weights, data, steps)
    parts = shifted.reshape(positions, -1, *shifted.shape[1:])
    return parts.sum(axis=1, dtype=np.int64), top


def _shifted(weights: HalfOperands, data: HalfOperands, steps: Array) -> Array:
    """The products, each shifted right by its steps, with the halves truncated separately."""
    products = weights.signed * data.signed
    reached = steps < OUT_OF_REACH
    cut = np.where(reached, steps, 0)
    if not cut.any():
        return np.where(reached, products, 0)
    found = products >> (STEP * cut.astype(np.int32))
    found -= _lost(weights, data, products, cut)
    far = np.nonzero(cut > 2)
    if len(far[0]):
        found[far] = _far(weights, data, products.shape, far, cut[far])
    found[~reached] = 0
    return found


def _lost(weights: HalfOperands, data: HalfOperands, products: Array, cut: Array) -> Array:
    """1 where the halves of products shifted by 4 or 8 bits lose a carry; this depends on low bytes only."""
    total, carries = _low_half(_rows(weights.signed, data.signed, 4, np.uint8))
    half = total ^ carries ^ (total & carries) << np.uint8(1)  # the upper rows add nothing here
    mask = np.array([0, 0x0F, 0xFF, 0, 0, 0, 0, 0], np.uint8)[cut]
    return (products.astype(np.uint8) & mask) < (half & mask)


def _far(
    weights: HalfOperands, data: HalfOperands, shape: tuple[int, ...], where: tuple[Array, ...], cut: Array
) -> Array:
    """Products at some places, shifted by 12 bits or more."""
    w, d = (np.broadcast_to(each.signed, shape)[where] for each in (weights, data))
    rows = _rows(w, d, BOOTH_DIGITS, np.uint32)
    low, high = _low_half(rows[:5]), _low_half(rows[5:])
    shifted = [each << np.uint32(8) for each in high]
    pair = _compressed(*_compressed(*low, shifted[0]), shifted[1])
    bits = STEP * cut.astype(np.uint32)
    return sum((each >> bits).astype(np.int64) for each in pair) - (PAIR_BIAS >> bits.astype(np.int64))


def _rows(weights: Array, data: Array, digits: int, dtype: type[np.unsignedinteger]) -> list[Array]:
    """The multiplier's rows (radix-4 Booth): four rows and their carries as five numbers for each half."""
    magnitude, negative = np.abs(weights), weights < 0
    found: list[Array] = []
    carries = dtype(0)
    multiplicand, minus = data.astype(dtype), data < 0  # the rows of zeros are never used
    any_minus, bias = minus.any(), dtype(1 << 16 & np.iinfo(dtype).max)
    for digit in range(digits):
        low = (magnitude >> (2 * digit - 1)) & 1 if digit else 0
        recoded = low + (magnitude >> 2 * digit & 1) - 2 * (magnitude >> 2 * digit + 1 & 1)
        recoded = np.where(negative, -recoded, recoded)
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


def _low_half(rows: list[Array]) -> tuple[Array, Array]:
    """Reduces five numbers to two with the same sum."""
    pair = _compressed(rows[0], rows[1], rows[2])
    return _compressed(*_compressed(*pair, rows[3]), rows[4])


def _compressed(x: Array, y: Array, z: Array) -> tuple[Array, Array]:
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
    return _rounded(bits, SUM_DROPPED)


def result(total: Array) -> Array:
    """The result passed to SDP: 24 significant bits, ties away from zero, as float32."""
    return _rounded(total.view(np.int64), OUT_DROPPED).astype(np.float32)


def _rounded(bits: Array, dropped: int) -> Array:
    """Doubles without their last `dropped` bits, rounded with ties away from zero."""
    return ((bits + (1 << (dropped - 1))) & -(1 << dropped)).view(np.float64)
