"""Normalisations with constant or computed statistics."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npuc.ir import Array, Node
from npuc.ops.attributes import EPSILON, LRN_ALPHA, LRN_BETA, LRN_BIAS, SIZE
from npuc.ops.declaration import Meaning, Op, Parameter, Requirement, along, has_elements

X, Y = Parameter("x", shape="N C *S"), Parameter("y", shape="N C *S")


def _batch_normalization(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, *vectors = inputs
    scale, bias, mean, var = (along(each, 1, x.ndim) for each in vectors)
    factor = scale / np.sqrt(var + np.float32(EPSILON(node)))
    return (x * factor + (bias - mean * factor),)


def _instance_normalization(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, scale, bias = inputs
    axes = tuple(range(2, x.ndim))
    centred = x - x.mean(axis=axes, keepdims=True)
    deviation = np.sqrt(np.square(centred).mean(axis=axes, keepdims=True) + EPSILON(node))
    y = along(scale, 1, x.ndim) * centred / deviation + along(bias, 1, x.ndim)
    return (y.astype(np.float32),)


def _lrn(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    (x,) = inputs
    size = SIZE(node)
    before, after = (size - 1) // 2, size // 2
    squares = np.pad(np.square(x), [(0, 0), (before, after), *[(0, 0)] * (x.ndim - 2)])
    total = sum(squares[:, start : start + x.shape[1]] for start in range(size))
    return (np.asarray(x / (LRN_BIAS(node) + LRN_ALPHA(node) / size * total) ** LRN_BETA(node), np.float32),)


def _per_channel(name: str, summary: str, compute: Meaning, vectors: Sequence[str], *requires: Requirement) -> Op:
    """A normalisation whose other inputs are vectors over the channels."""
    inputs = (X, *(Parameter(each, shape="C") for each in vectors))
    return Op(name, summary, inputs, (Y,), compute, (EPSILON,), requires)


OPERATORS = (
    _per_channel(
        "BatchNormalization",
        "Normalisation per channel with constant statistics.",
        _batch_normalization,
        ("scale", "bias", "mean", "var"),
    ),
    _per_channel(
        "InstanceNormalization",
        "Normalisation per channel with the statistics of each sample.",
        _instance_normalization,
        ("scale", "bias"),
        has_elements,  # onnxruntime crashes without elements
    ),
    Op(
        "LRN",
        "Local response normalisation across channels.",
        (X,),
        (Y,),
        _lrn,
        (SIZE, LRN_ALPHA, LRN_BETA, LRN_BIAS),
    ),
)
