"""Multiply-accumulates of a node."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from npuc.ir import Node, TensorType
from npuc.ops.attributes import AVERAGE, BLOCKS, SELECTS


def macs(node: Node, types: Mapping[str, TensorType]) -> int:
    """Those of a product with weights or of two matrices, per run; 0 for other nodes.

    types: of the node's tensors. Padding counts, as on every machine. Zeros that make a grouped convolution
    dense do not count, nor do integer convolutions that average or only move channels.
    """
    if node.op not in ("Conv", "ConvTranspose", "Gemm", "MatMul", "IntConv"):
        return 0
    x, w, y = (types[name] for name in (*node.inputs[:2], node.output))
    match node.op:
        case "Conv":
            return y.size * prod(w.shape[1:])
        case "IntConv":
            return 0 if AVERAGE(node) or SELECTS(node) else y.size * prod(w.shape[1:]) // BLOCKS(node)
        case "ConvTranspose":
            return x.size * prod(w.shape[1:])
        case _:
            return y.size * x.shape[-1]
