"""Weight for deconvolution: set split, then the order of direct convolution.

A transposed convolution with strides is stride_y * stride_x convolutions without strides, each with every
stride-th tap of the kernel, in descending order, as the taps run backward over the input.

Source: in-memory formats, Weight Format (the set split is named, not described) and NVDLA's compiler; there is no
outside data of the bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npuc.ir import Array


def split(w: Array, stride_y: int, stride_x: int) -> list[Array]:
    """The sub-kernels of weights (K, C, R, S): phase by phase, row phases first, taps descending."""
    return [
        w[:, :, row::stride_y, column::stride_x][:, :, ::-1, ::-1]
        for row in range(min(stride_y, w.shape[2]))
        for column in range(min(stride_x, w.shape[3]))
    ]


def joined(parts: Sequence[Array], shape: tuple[int, ...], stride_y: int, stride_x: int) -> Array:
    """The weights of a shape from their sub-kernels; the inverse of split."""
    w = np.zeros(shape, parts[0].dtype)
    for part, place in zip(parts, split(w, stride_y, stride_x), strict=True):
        place[...] = part
    return w
