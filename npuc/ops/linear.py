"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops.activation import activate
from npuc.ops.rules import broadcast, expect_float, expect_rank, expect_shape, given
from npuc.ops.table import Op, bad_node, register


def _gemm_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    expect_float(node, types)
    x, w = types[0], types[1]
    expect_rank(node, x, 2, 2)
    if len(w.shape) != 2 or w.shape[1] != x.shape[1]:
        reason = f"weight of shape {list(w.shape)} for an input of shape {list(x.shape)}"
        limit = f"weight of shape [N, {x.shape[1]}] (after transB)"
        raise bad_node(node, reason, tensor=node.inputs[1], limit=limit)
    if given(node, 2):
        expect_shape(node, 2, types[2], (w.shape[0],))
    return (TensorType((x.shape[0], w.shape[0])),)


def _gemm(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    y = inputs[0] @ inputs[1].T
    if given(node, 2):
        y += inputs[2]
    return (activate(node, y),)


def _matmul_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    expect_float(node, types)
    x, y = (each.shape for each in types)
    if not x or not y:
        raise bad_node(node, f"product of shapes {list(x)} and {list(y)}", limit="at least one dimension")
    if x[-1] != y[-2 if len(y) > 1 else 0]:
        reason = f"shapes {list(x)} and {list(y)} do not chain"
        raise bad_node(node, reason, tensor=node.inputs[1], limit="the last of x is the last but one of y")
    batch = broadcast(node, x[:-2], y[:-2])
    return (TensorType((*batch, *x[-2:-1], *(y[-1:] if len(y) > 1 else ()))),)


def _matmul(_node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return (np.asarray(inputs[0] @ inputs[1], np.float32),)


register(
    Op("Gemm", "Fully connected layer: x times the transposed weight, plus a bias.", _gemm_types, _gemm),
    Op("MatMul", "Matrix product of two tensors, batched as in numpy.", _matmul_types, _matmul),
)
