"""NVDLA's fp16 arithmetic number by number, as its description has it: nothing of npuc is used.

A group of products is aligned in steps of 16, its halves cut separately; partial sums have 39 bits. Exact numbers
are fractions, so that nothing is rounded but where the description says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

BIAS = 0x55550000


def operand(bits: int) -> tuple[int, int, int]:
    """Sign, magnitude and block exponent of 16 bits."""
    sign, exponent, mantissa = bits >> 15, bits >> 10 & 31, bits & 1023
    return (sign, (1024 + mantissa) << exponent % 4, exponent // 4) if exponent else (sign, 2 * mantissa, 0)


def compressed(x: int, y: int, z: int) -> tuple[int, int]:
    """A 3:2 step."""
    return x ^ y ^ z, 2 * (x & y | x & z | y & z)


def pair(weight: int, data: int, *, negative: bool) -> tuple[int, int]:
    """The carry-save halves of a product of magnitudes."""
    rows: list[int] = []
    carries: list[int] = []
    for k in range(8):
        below = weight >> 2 * k - 1 & 1 if k else 0
        digit = -2 * (weight >> 2 * k + 1 & 1) + (weight >> 2 * k & 1) + below
        digit = -digit if negative else digit
        rows.append((1 << 16) + digit * data - (digit < 0))
        carries.append(int(digit < 0))
    halves: list[tuple[int, int]] = []
    for r, c in ((rows[:4], carries[:4]), (rows[4:], carries[4:])):
        found = compressed(r[0], 4 * r[1] + c[0], 16 * r[2] + 4 * c[1])
        found = compressed(*found, 64 * r[3] + 16 * c[2])
        halves.append(compressed(*found, 64 * c[3]))
    (low_sum, low_carry), (high_sum, high_carry) = halves
    return compressed(*compressed(low_sum, low_carry, 256 * high_sum), 256 * high_carry)


def group(data: Sequence[int], weights: Sequence[int]) -> tuple[list[int], int]:
    """Every product of 16-bit patterns after alignment, and the block exponent of the largest."""
    pairs = [(operand(d), operand(w)) for d, w in zip(data, weights, strict=True)]
    top = max((d[2] + w[2] for d, w in pairs if d[1] and w[1]), default=0)
    found: list[int] = []
    for (data_sign, d, data_block), (weight_sign, w, weight_block) in pairs:
        shift = 4 * (top - data_block - weight_block)
        if not d or not w or shift >= 32:
            found.append(0)
            continue
        halves = pair(w, d, negative=data_sign != weight_sign)
        found.append(sum(each >> shift for each in halves) - (BIAS >> shift))
    return found, top


def rounded(value: Fraction, bits: int) -> Fraction:
    """To so many significant bits, ties away from zero."""
    if not value:
        return value
    step = Fraction(1)
    while abs(value) >= step * 2**bits:
        step *= 2
    while abs(value) < step * 2 ** (bits - 1):
        step /= 2
    magnitude = (abs(value) / step + Fraction(1, 2)).__floor__() * step
    return magnitude if value > 0 else -magnitude


def summed(groups: Sequence[tuple[Sequence[int], Sequence[int]]]) -> Fraction:
    """What SDP gets of groups of data and weights."""
    total = Fraction(0)
    for data, weights in groups:
        aligned, top = group(data, weights)
        total = rounded(total + sum(aligned) * Fraction(2) ** (4 * top - 50), 39)
    return rounded(total, 24)
