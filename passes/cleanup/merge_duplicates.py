"""Merges repeated computations."""

from __future__ import annotations

from npuc.ir import Attr, Graph, Node
from npuc.passes.rewriting.rules import Rewriter

Computation = tuple[str, tuple[str, ...], tuple[tuple[str, Attr], ...], tuple[bool, ...]]
"""Operator, inputs, attributes, and which outputs are present."""


def merge_duplicates(graph: Graph) -> Graph:
    """Merges nodes with the same operator, inputs and attributes; graph outputs keep their own.

    Models from TensorFlow transpose a tensor once for every reader.
    """
    rewriter = Rewriter(graph)
    first: dict[Computation, Node] = {}
    for key in rewriter.order():
        node = rewriter.node(key)
        if node is None:
            continue
        given = tuple(bool(name) for name in node.outputs)
        computation = (node.op, node.inputs, tuple(sorted(node.attrs.items())), given)
        same = first.setdefault(computation, node)
        if same is not node and not rewriter.outputs.intersection(node.outputs):
            first[computation] = rewriter.merge(node, same)
    return rewriter.finish()
