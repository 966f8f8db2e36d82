"""HardSwish as a product, for machines without tables that can multiply and clip."""

from __future__ import annotations

from npuc.ir import Graph, Node
from npuc.passes.rewriting.rules import Rewriter, rewrite


def hard_swish_to_product(graph: Graph) -> Graph:
    """HardSwish(x) becomes x * HardSigmoid(x) with alpha 1/6 and beta 1/2: the same by definition."""
    return rewrite(graph, _as_product)


def _as_product(rewriter: Rewriter, node: Node) -> bool:
    if node.op != "HardSwish":
        return False
    gate = rewriter.part(node, "HardSigmoid", node.inputs, f"{node.output}/gate", alpha=1 / 6, beta=0.5)
    product = Node("Mul", (node.inputs[0], gate.output), node.outputs, {}, node.name, node.sources)
    rewriter.replace(node, gate, product)
    return True
