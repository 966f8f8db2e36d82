"""The arithmetic of the 16 PEs in a step: products into psums, and int8 out of them.

Shapes: psums (zs, positions, 16) int64; ifmap (taps, positions, 16) int8 as read from the pads, a tap being (hki,
wki). Source: easynpu, PE; rounding as the author's QNT block: (x >> n) + bit n-1 of x.
"""

from __future__ import annotations

import numpy as np

from npuc.ir import Array
from npuc.targets.easynpu.machine.memory import LANES, unpack_table
from npuc.targets.easynpu.simulate.pads import trap

PSUM_MOST = 1 << 31
PRODUCT_MOST = 1 << 14
EXACT_TAPS = 1024
"""This many products sum to 2^24 at most, which float32 represents exactly."""


def broadcast(psums: Array, ifmap: Array, weights: Array) -> Array:
    """Psums after the passes over kzi, hki, wki, in which pad kzi goes to every PE.

    weights: (k, taps, zs, 16). Raises ArtefactError (E503) where a pass takes a psum beyond 32 bits.
    """
    k, taps, zs, _ = weights.shape
    kind = np.float32 if k * taps <= EXACT_TAPS else np.float64
    values = ifmap[..., :k].transpose(2, 0, 1).reshape(k * taps, -1).astype(kind)
    words = weights.reshape(k * taps, zs * LANES).astype(kind)
    if np.abs(psums).max() + k * taps * PRODUCT_MOST >= PSUM_MOST:
        products = values[:, :, None].astype(np.int64) * words[:, None, :].astype(np.int64)
        partial = products.cumsum(axis=0).reshape(k * taps, -1, zs, LANES).transpose(0, 2, 1, 3)
        expect_32_bits(psums + partial)
    return psums + (values.T @ words).astype(np.int64).reshape(-1, zs, LANES).transpose(1, 0, 2)


def multicast(psums: Array, ifmap: Array, weights: Array) -> Array:
    """Psums (1, positions, 16) after the passes over hki, wki, in which pad i goes to PE i; weights (taps, 16)."""
    products = ifmap.astype(np.int64) * weights[:, None, :]
    if np.abs(psums).max() + len(weights) * PRODUCT_MOST >= PSUM_MOST:
        expect_32_bits(psums + products.cumsum(axis=0))
    return psums + products.sum(axis=0)


def largest(psums: Array, ifmap: Array) -> Array:
    """Psums after the passes of max pooling, in which the adder compares."""
    return np.maximum(psums, ifmap.max(axis=0))


def expect_32_bits(psums: Array) -> None:
    """Raises ArtefactError (E503) for psums beyond 32 bits; -2^31 counts as beyond, as in the compiler's proof."""
    most = int(np.abs(psums).max())
    if most >= PSUM_MOST:
        raise trap(f"a psum leaves 32 bits: it reaches {most}", "below 2^31")


def requantised(psums: Array, scale: Array) -> Array:
    """Psums shifted by the scale (zs, 16), rounded half up and saturated to int8, as int64."""
    shift = scale[:, None, :]
    if np.abs(shift).max() > 31:
        raise trap(f"shift scales of {scale.min()}..{scale.max()}", "-31..31")
    right = np.maximum(-shift, 0)
    half = np.where(right > 0, (psums >> np.maximum(right - 1, 0)) & 1, 0)
    shifted = (psums >> right) + half
    if (shift > 0).any():
        shifted = shifted << np.maximum(shift, 0)
        expect_32_bits(shifted)
    return np.clip(shifted, -128, 127)


def tabulated(block: Array, x: Array) -> Array:
    """Psums a*x + b with the segment of each int8; block: the 7 words of a table."""
    table = unpack_table(block)
    segment = (x[..., None] >= table.start).sum(axis=-1) - 1
    psums = table.a[segment].astype(np.int64) * x + table.b[segment]
    expect_32_bits(psums)
    return psums


def sloped(block: Array, x: Array) -> Array:
    """int8 values after a slope per channel for each sign; x: (zs, positions, 16); block: (zs, 4, 16).

    The input's sign selects the slope, so the product is requantised on its way into the psum.
    """
    slopes = block.astype(np.int64)
    above, below = (requantised(x * slopes[:, at, None], slopes[:, at + 1]) for at in (0, 2))
    return np.where(x >= 0, above, below)
