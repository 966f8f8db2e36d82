"""Accumulators of integer layers: their bounds, and their conversion to int8.

An accumulator is requantised by sat8(floor(acc / 2^n + 1/2)): round half up, toward plus infinity, then saturate
to -128..127. Source: easynpu, chapter PE; rounding and saturation as in the author's RTL.
"""

from __future__ import annotations

import numpy as np

from npuc.ir import Array

EXACT_FLOAT32 = 1 << 24
"""Integers below this are exact in float32, and so are sums of them that stay below it."""

KERNELS = 64
"""Kernels whose weights are widened at once: all those of a large layer would fill the memory."""


def requantise(acc: Array, shift: Array | int, relu: bool = False) -> Array:
    """int8 from accumulators: sat8(floor(acc / 2^shift + 1/2)), and with relu the maximum of that and 0.

    acc: any integer type; shift: 0..31, broadcast against acc.
    """
    wide = acc.astype(np.int64)
    amount = np.asarray(shift, np.int64)
    half = np.where(amount > 0, np.int64(1) << np.maximum(amount - 1, 0), 0)
    return np.clip((wide + half) >> amount, 0 if relu else -128, 127).astype(np.int8)


def accumulator_bound(w: Array, bias: Array) -> Array:
    """The largest |accumulator| per output channel for any int8 input: 128 * sum |w| + |bias|.

    w: (Co, ...) integers; bias: (Co,). Result: (Co,) int64.
    """
    sums = np.abs(bias.astype(np.int64))
    for first in range(0, len(w), KERNELS):
        kernels = slice(first, first + KERNELS)
        sums[kernels] += 128 * np.abs(w[kernels], dtype=np.int64).reshape(len(w[kernels]), -1).sum(axis=1)
    return sums
