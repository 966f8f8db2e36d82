"""Convolutions whose weights Winograd transforms before they are rounded, exactly as NVDLA computes them.

G g G^T has fractions and a larger range than g; C^T d C has up to four times the range of d. As integers both must
be rounded: the weights U = G g G^T with a scale of their own, the data by PRA_TRUNCATE. The result differs from
that of rounded weights, so the integer operator has attributes for it: `winograd` = 1, `pra_truncate`, and
`kernel_shape` for the window. Its weights are (K, C, 4 * stride_y, 4 * stride_x): phase by phase, 4x4 positions.

Source: Winograd in integers, as on the nv_full RTL; channel extension as in formats.winograd.
"""

from __future__ import annotations

import numpy as np

from npuc.ir import Array, Node
from npuc.ops.attributes import KERNEL_SHAPE, PADDING, STRIDES
from npuc.ops.windows import window_of
from npuc.targets.nvdla.arithmetic.attributes import PRA_TRUNCATE
from npuc.targets.nvdla.formats import winograd
from npuc.targets.nvdla.formats.winograd import TILE, extended_extent
from npuc.targets.nvdla.model.arithmetic import shift_right

DATA = np.array([[1, 0, -1, 0], [0, 1, 1, 0], [0, -1, 1, 0], [0, 1, 0, -1]])
"""C^T, which transforms the data from both sides."""
RESULT = np.array([[1, 1, 1, 0], [0, 1, -1, -1]])
"""A^T, which transforms the sums of products back."""
GAIN = 4
"""The factor by which mean (at one position) and variance (at every one) of C^T d C exceed those of d."""
STEP = 2
"""Rows and columns of a tile's results."""


def kernel_extents(node: Node, weights: tuple[int, ...]) -> tuple[int, ...]:
    """Height and width of a convolution's kernel, even if its weights are transformed."""
    return KERNEL_SHAPE(node) or weights[2:]


def strides(node: Node) -> tuple[int, int]:
    """The strides along rows and columns."""
    along, across = STRIDES(node) or (1, 1)
    return along, across


def transformed(w: Array, stride_y: int, stride_x: int) -> Array:
    """G g G^T of every phase of weights (K, C, R, S): float32 (K, C, 4 * stride_y, 4 * stride_x)."""
    kernels, channels, *_ = w.shape
    u = winograd.transformed(winograd.extended(w, stride_y, stride_x))
    split = u.reshape(kernels, stride_y, stride_x, channels, TILE, TILE)
    return split.transpose(0, 3, 1, 4, 2, 5).reshape(kernels, channels, stride_y * TILE, stride_x * TILE)


def by_phase(u: Array, stride_y: int, stride_x: int) -> Array:
    """The same weights with phases as channels: (K, strides * C, 4, 4)."""
    kernels, channels, *_ = u.shape
    split = u.reshape(kernels, channels, stride_y, TILE, stride_x, TILE)
    return split.transpose(0, 2, 4, 1, 3, 5).reshape(kernels, -1, TILE, TILE)


def common(stride_y: int, stride_x: int) -> Array:
    """The positions (4 * stride_y, 4 * stride_x) of the weights that multiply the data's constant part."""
    one = np.zeros((TILE, TILE), bool)
    one[1, 1] = True
    return np.tile(one, (stride_y, stride_x))


def around(node: Node, x: tuple[int, ...], y: tuple[int, ...]) -> tuple[tuple[int, int], tuple[int, int]]:
    """Padding before and after rows and columns of x, so that tiles cover the result y; negative: cropping."""
    window = window_of(node, KERNEL_SHAPE(node))
    before = window.begins
    whole = [extended_extent(count) * stride for count, stride in zip(y[2:], window.strides, strict=True)]
    behind = [size - extent - begin for size, extent, begin in zip(whole, x[2:], before, strict=True)]
    return (before[0], behind[0]), (before[1], behind[1])


def sums(node: Node, x: Array, u: Array) -> Array:
    """Sums (N, K, Ho, Wo), int64 or real, of data (N, C, H, W) and transformed weights."""
    stride_y, stride_x = strides(node)
    y = window_of(node, KERNEL_SHAPE(node)).extents(node, x.shape[2:])
    rows, columns = around(node, x.shape, (*x.shape[:2], *y))
    pads = [(0, 0), (0, 0), (rows[0], max(rows[1], 0)), (columns[0], max(columns[1], 0))]
    real = np.issubdtype(x.dtype, np.floating)
    padded = np.pad(x, pads, constant_values=PADDING(node)).astype(np.float64 if real else np.int64)
    height, width = (extended_extent(count) for count in y)
    cut = padded[:, :, : height * stride_y, : width * stride_x]
    split = cut.reshape(len(x), x.shape[1], height, stride_y, width, stride_x).transpose(0, 3, 5, 1, 2, 4)
    tiles = np.lib.stride_tricks.sliding_window_view(
        split.reshape(len(x), -1, height, width), (TILE, TILE), (2, 3)
    )
    d = tiles[:, :, ::STEP, ::STEP]
    t = np.einsum("ip,nctupq,jq->nctuij", DATA, d, DATA, optimize=True)
    if not real:
        limits = np.iinfo(x.dtype)
        t = np.clip(shift_right(t, PRA_TRUNCATE(node)), limits.min, limits.max)
    m = np.einsum("nctuij,kcij->nktuij", t, by_phase(u, stride_y, stride_x).astype(t.dtype), optimize=True)
    results = np.einsum("ai,nktuij,bj->nktaub", RESULT, m, RESULT, optimize=True)
    whole = results.reshape(len(x), len(u), STEP * results.shape[2], -1)
    return whole[:, :, : y[0], : y[1]]
