"""Multiply-accumulates of a node."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from npuc.ir import Node, TensorType


def macs(node: Node, types: Mapping[str, TensorType]) -> int:
    """Those of a product with weights or of two matrices, per run; 0 for other nodes of the float graph.

    types: of the node's tensors. Padding counts, as it does on every machine.
    """
    if node.op not in ("Conv", "ConvTranspose", "Gemm", "MatMul"):
        return 0
    x, w, y = (types[name] for name in (*node.inputs[:2], node.output))
    match node.op:
        case "Conv":
            return y.size * prod(w.shape[1:])
        case "ConvTranspose":
            return x.size * prod(w.shape[1:])
        case _:
            return y.size * x.shape[-1]
