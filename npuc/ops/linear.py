"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops.activation import activate
from npuc.ops.attributes import FUSED
from npuc.ops.declaration import Op, Parameter, broadcast, given

if TYPE_CHECKING:
    from npuc.onnx_files.export import OnnxEmitter


def _gemm(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    y = inputs[0] @ inputs[1].T
    if given(node, 2):
        y += inputs[2]
    return (activate(node, y),)


def _gemm_onnx(node: Node, emit: OnnxEmitter) -> None:
    emit.activated(node, "Gemm", node.inputs, transB=1)


def _chained(_node: Node, types: Sequence[TensorType]) -> bool:
    """Both have two axes or more, and the last extent of a is the last but one of b."""
    a, b = (each.shape for each in types)
    return min(len(a), len(b)) > 1 and a[-1] == b[-2]


def _matmul_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    a, b = (each.shape for each in types)
    return (TensorType((*broadcast(node, a[:-2], b[:-2]), a[-2], b[-1])),)


def _matmul(_node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    return (np.asarray(inputs[0] @ inputs[1], np.float32),)


OPERATORS = (
    Op(
        "Gemm",
        "Fully connected layer: x times the transposed weight, plus a bias.",
        (Parameter("x", shape="M K"), Parameter("w", shape="N K"), Parameter("bias", shape="N", optional=True)),
        (Parameter("y", shape="M N"),),
        _gemm,
        FUSED,
        to_onnx=_gemm_onnx,
    ),
    Op(
        "MatMul",
        "Matrix product of two tensors, batched as in numpy.",
        (Parameter("a"), Parameter("b")),
        (Parameter("y"),),
        _matmul,
        requires=(_chained,),
        infer=_matmul_types,
    ),
)
