"""Powers with small constant exponents as products and square roots."""

from __future__ import annotations

from dataclasses import replace

from npuc.ir import Graph, Node
from npuc.ops.attributes import ACTIVATION
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite


def expand_powers(graph: Graph) -> Graph:
    """Pow by 1, 2, 3 or 4 becomes at most two products, by 0.5 a Sqrt. Other exponents stay."""
    return rewrite(graph, _expand)


def _expand(rewriter: Rewriter, node: Node) -> bool:
    exponent = rewriter.constants.get(node.inputs[1]) if node.op == "Pow" and not ACTIVATION(node) else None
    x = node.inputs[0]
    if exponent is None or exponent.size != 1 or not only_float(rewriter, x, node.output):
        return False
    if rewriter.shape(x) != rewriter.shape(node.output) or x in rewriter.constants:
        return False
    number = float(exponent.reshape(-1)[0])
    if number == 1:
        identity = replace(node, op="Identity", inputs=(x,))
        rewriter.replace(node, identity)
        return rewriter.bypass(identity) or True
    if number == 0.5:
        rewriter.replace(node, replace(node, op="Sqrt", inputs=(x,)))
        return True
    if number not in (2, 3, 4):
        return False
    if number == 2:
        rewriter.replace(node, replace(node, op="Mul", inputs=(x, x)))
        return True
    square = rewriter.part(node, "Mul", (x, x), f"{node.output}/square")
    y = square.output
    rewriter.replace(node, square, replace(node, op="Mul", inputs=(y, x if number == 3 else y)))
    return True
