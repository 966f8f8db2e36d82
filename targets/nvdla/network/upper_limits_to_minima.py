"""Upper limits that saturation cannot implement, as minima with a constant."""

from __future__ import annotations

from dataclasses import replace
from math import inf

import numpy as np

from npuc.ir import Graph, Node
from npuc.ops.attributes import MAX, MIN
from npuc.passes.rewriting.rules import Rewriter, rewrite


def upper_limits_to_minima(graph: Graph) -> Graph:
    """A Clip whose upper limit is not the larger in magnitude becomes Max and Min with constants.

    For machines that implement the upper limit by saturation, which also cuts off values below its negative. If
    the limits contradict each other the result is the upper one, as in ONNX.
    """
    return rewrite(graph, _minimum)


def _minimum(rewriter: Rewriter, node: Node) -> bool:
    low, high = MIN(node), MAX(node)
    if node.op != "Clip" or high == inf or (-high <= low < high):
        return False
    x, before = node.inputs[0], []
    if low > -inf:
        x = rewriter.fresh(f"{node.output}/raised")
        before = [replace(node.with_attrs(min=low, max=inf), outputs=(x,), name=x)]
    limit = rewriter.constant(
        np.full((1,) * len(rewriter.shape(node.output)), high, np.float32), f"{node.output}/limit"
    )
    rewriter.replace(node, *before, Node("Min", (x, limit), node.outputs, {}, node.name, node.sources))
    return True
