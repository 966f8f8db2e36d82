"""Differences of two tensors as sums, for machines that only add."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Graph, Node
from npuc.passes.fusion.fold_batch_norm import fold_batch_norm
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite


def subtract_by_adding(graph: Graph) -> Graph:
    """Sub(a, b) becomes Add(a, -b), and the sign goes into the weights that produce b, if there are any.

    Otherwise a BatchNormalization with the factor -1 computes -b. Both operands are computed at run time, and b is
    (N, C, H, W) or (N, C).
    """
    return fold_batch_norm(rewrite(graph, _subtract))


def _subtract(rewriter: Rewriter, node: Node) -> bool:
    if node.op != "Sub" or any(name in rewriter.constants for name in node.inputs):
        return False
    a, b = node.inputs
    if len(rewriter.shape(b)) not in (2, 4) or not only_float(rewriter, a, b):
        return False
    C, negative = rewriter.shape(b)[1], rewriter.fresh(f"{node.output}/negative")
    parameters = {"factor": -np.ones(C), "shift": np.zeros(C), "mean": np.zeros(C), "variance": np.ones(C)}
    names = [rewriter.constant(v.astype(np.float32), f"{negative}/{stem}") for stem, v in parameters.items()]
    attrs = {"epsilon": 0.0}
    sign = Node("BatchNormalization", (b, *names), (negative,), attrs, negative, node.sources)
    rewriter.replace(node, sign, replace(node, op="Add", inputs=(a, negative)))
    return True
