"""Normalisations with constant or computed statistics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops.rules import along, expect_float, expect_rank, expect_shape
from npuc.ops.table import Op, bad_node, register
from npuc.ops.windows import LARGEST


def _per_channel_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Every input after the first is a vector over the channels."""
    expect_float(node, types)
    x = types[0]
    expect_rank(node, x, 2)
    for index, each in enumerate(types[1:], start=1):
        expect_shape(node, index, each, (x.shape[1],))
    return (x,)


def _batch_normalization(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, *vectors = inputs
    scale, bias, mean, var = (along(each, 1, x.ndim) for each in vectors)
    factor = scale / np.sqrt(var + np.float32(node.number("epsilon", 1e-5)))
    return (x * factor + (bias - mean * factor),)


def _instance_normalization(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, scale, bias = inputs
    axes = tuple(range(2, x.ndim))
    centred = x - x.mean(axis=axes, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(axis=axes, keepdims=True) + node.number("epsilon", 1e-5))
    y = along(scale, 1, x.ndim) * centred / deviation + along(bias, 1, x.ndim)
    return (y.astype(np.float32),)


def _lrn_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    expect_float(node, types)
    expect_rank(node, types[0], 2)
    if not 1 <= node.integer("size") <= LARGEST:
        raise bad_node(node, f"size is {node.integer('size')}", limit=f"1..{LARGEST}")
    return (types[0],)


def _lrn(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,) = inputs
    size = node.integer("size")
    before, after = (size - 1) // 2, size // 2
    squares = np.pad(np.square(x), [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)])
    total = sum(squares[:, start : start + x.shape[1]] for start in range(size))
    alpha, beta, bias = node.number("alpha", 1e-4), node.number("beta", 0.75), node.number("bias", 1.0)
    return (np.asarray(x / (bias + alpha / size * total) ** beta, np.float32),)


register(
    Op(
        "BatchNormalization",
        "Normalisation per channel with constant statistics.",
        _per_channel_types,
        _batch_normalization,
    ),
    Op(
        "InstanceNormalization",
        "Normalisation per channel with the statistics of each sample.",
        _per_channel_types,
        _instance_normalization,
    ),
    Op("LRN", "Local response normalisation across channels.", _lrn_types, _lrn),
)
