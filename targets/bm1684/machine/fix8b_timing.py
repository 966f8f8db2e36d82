"""Cycles of the firmware library's 8-bit layers, as the vendor's chip model counts them.

Measured call by call on that model; they agree to the cycle. A group is `lanes` words of every NPU, where a word
has an element of four images; pooling and depthwise convolution compute four times as many elements of one image.
"""

from __future__ import annotations

import numpy as np

IMAGES = 4
"""Images in a word."""
CHANNELS = 4
"""Input channels that a convolution multiplies in a cycle."""
# fmt: off
LOADING = (
    (6.82, 7.89, 9.56, 9.94, 11.27, 12.04, 7.31, 13.78, 14.18, 15.62),
    (3.91, 4.43, 5.26, 5.43, 6.07, 6.51, 5.11, 7.36, 7.56, 8.3),
    (1.55, 3.29, 3.84, 3.95, 4.38, 4.67, 3.98, 5.24, 5.37, 5.84),
    (1.3, 1.35, 3.12, 3.21, 3.53, 3.75, 3.4, 4.18, 4.28, 4.63),
    (1.15, 1.2, 1.34, 2.77, 3.02, 3.2, 3.04, 3.54, 3.62, 3.9),
    (1.05, 1.09, 1.21, 1.24, 1.23, 2.83, 2.74, 3.11, 3.18, 3.42),
    (1.0, 1.03, 1.12, 1.14, 1.15, 1.28, 2.5, 2.81, 2.87, 3.07),
    (1.0, 1.0, 1.05, 1.07, 1.09, 1.19, 1.22, 2.59, 2.64, 2.81),
    (1.0, 1.0, 1.01, 1.02, 1.04, 1.13, 1.16, 1.22, 2.42, 2.61),
    (1.0, 1.0, 1.0, 1.0, 1.01, 1.07, 1.1, 1.15, 1.19, 2.45),
    (1.0, 1.0, 1.0, 1.0, 1.0, 1.03, 1.05, 1.1, 1.13, 2.24),
    (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.02, 1.05, 1.09, 1.14),
    (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.02, 1.05, 1.09),
    (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.01, 1.06),
    (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.02),
    (1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0),
)
# fmt: on
"""The factor on a convolution's multiply cycles where loading its input takes longer: by input channels / 4, and
by the smaller of its strides."""


def conv2d(groups: int, IC: int, kernel_h: int, kernel_w: int, stride: int, limited: bool) -> int:
    """Convolution with a bias. stride: the smaller of the two; limited: it has an upper limit."""
    channels = -(-IC // CHANNELS)
    row = LOADING[min(channels, len(LOADING)) - 1]
    products = np.float32(channels * kernel_h * kernel_w) * np.float32(row[min(stride, len(row)) - 1])
    return int(np.float32(groups) * (products + np.float32(10 + limited)))


def pool2d(groups: int, kernel_h: int, kernel_w: int, stride_w: int, weighted: bool) -> int:
    """Depthwise convolution or max pooling. groups: of four times `lanes` elements of one image."""
    return groups * (kernel_h * kernel_w * (stride_w + 1) - 1 + 2 * weighted)


def product(groups: int, limited: bool) -> int:
    """A product. limited: its result has no sign."""
    return groups * (25 + 3 * limited)


def lookup(groups: int, images: int) -> int:
    """Entries of a table. groups: of one word; images: in all words together."""
    return groups * (32 * images - 5 * -(-images // IMAGES))


def elementwise(groups: int, operands: int, limited: bool) -> int:
    """A sum. limited: it ends with a ReLU, and an operand is signed."""
    return groups * (2 + 4 * operands + 3 * limited)
