"""Basic Weight for Winograd Convolution: channel extension, G g G^T, and channels padded to 32 bytes.

The document multiplies "W, each 4x4x1" with "G, 4x4x3"; W is 3x3 and G 4x3 (the matrix it prints). Its figure 15
calls a 5x5 kernel of 64 bytes "5x5x488": with stride 2 it becomes 3x3 of 256 bytes. weights.winograd defines the
order of the result.

Source: in-memory formats, Basic Weight for Winograd Convolution; the integer form as on the RTL.
"""

from __future__ import annotations

import numpy as np

from npuc.errors import UnsupportedOperator
from npuc.ir import Array
from npuc.targets.nvdla.formats.alignment import aligned
from npuc.targets.nvdla.machine.parameters import BYTES

G = np.array([[1, 0, 0], [0.5, 0.5, 0.5], [0.5, -0.5, 0.5], [0, 0, 1]], np.float32)
KERNEL = 3
CUBE = 32
"""The channels of a pixel are padded to a multiple of this many bytes."""
TILE = 4
"""Rows and columns of data and weights that are multiplied at once; outputs are also multiples of 4."""


def extended_extent(outputs: int) -> int:
    """Rows or columns of data, padding included, for so many outputs: both are multiples of 4.

    >>> extended_extent(8), extended_extent(7)
    (12, 12)
    """
    return aligned(outputs, TILE) + TILE


def extended(w: Array, stride_y: int, stride_x: int) -> Array:
    """Weights (K, C, R, S) of a strided convolution as those of one without strides: (K, strides * C, 3, 3).

    Channel (row phase * stride_x + column phase) * C + c, as CDMA extends the data. Raises UnsupportedOperator
    (E202) if the kernel does not become 3x3.
    """
    kernels, channels, height, width = w.shape
    if -(-height // stride_y) > KERNEL or -(-width // stride_x) > KERNEL:
        raise UnsupportedOperator(
            "E202",
            f"a {height}x{width} kernel with strides {stride_y}, {stride_x} for Winograd",
            limit="3x3 after channel extension",
        )
    filled = np.zeros((kernels, channels, KERNEL * stride_y, KERNEL * stride_x), w.dtype)
    filled[:, :, :height, :width] = w
    split = filled.reshape(kernels, channels, KERNEL, stride_y, KERNEL, stride_x)
    return split.transpose(0, 3, 5, 1, 2, 4).reshape(kernels, -1, KERNEL, KERNEL)


def transformed(w: Array) -> Array:
    """G g G^T of weights (K, C, 3, 3): (K, C, 4, 4) float32, without further scaling."""
    return np.einsum("ir,kcrs,js->kcij", G, w.astype(np.float32), G, optimize=True)


def filled(w: Array, precision: str) -> Array:
    """Weights with channels padded with zeros to 32 bytes."""
    channels = aligned(w.shape[1] * BYTES[precision], CUBE) // BYTES[precision]
    found = np.zeros((len(w), channels, *w.shape[2:]), w.dtype)
    found[:, : w.shape[1]] = w
    return found
