"""Moves data in float instead of as integers, between a model's own quantisation and the network's boundary."""

from __future__ import annotations

from dataclasses import replace

from npuc.ir import Graph, Node
from npuc.passes.rewriting.rules import Rewriter, rewrite

MOVES = ("Reshape", "Transpose")


def move_as_floats(graph: Graph) -> Graph:
    """DequantizeLinear moved before the Reshape or Transpose it reads, QuantizeLinear after those that read it.

    This is exact: both work on single elements, with one scale and zero point. A machine whose 8-bit layers use
    the model's scales then sees them next to its layers.
    """
    return rewrite(graph, dequantised_first, quantised_last)


def dequantised_first(rewriter: Rewriter, node: Node) -> bool:
    """DequantizeLinear of a move without other readers: the move comes last."""
    move = rewriter.private(node.inputs[0]) if node.op == "DequantizeLinear" else None
    return move is not None and _swapped(rewriter, node, move, node)


def quantised_last(rewriter: Rewriter, node: Node) -> bool:
    """A move of a QuantizeLinear without other readers: the move comes first."""
    steps = rewriter.private(node.inputs[0]) if node.op in MOVES else None
    return steps is not None and steps.op == "QuantizeLinear" and _swapped(rewriter, node, steps, steps)


def _swapped(rewriter: Rewriter, second: Node, first: Node, steps: Node) -> bool:
    """Swaps two consecutive nodes: replaces the second by both in the other order."""
    move = first if steps is second else second
    sizes = (rewriter.shape(name) for name in steps.inputs[1:])
    if move.op not in MOVES or any(extent != 1 for shape in sizes for extent in shape):
        return False
    inner = rewriter.fresh(f"{second.output}@{'moved' if steps is first else 'steps'}")
    before = replace(second, inputs=(first.inputs[0], *second.inputs[1:]), outputs=(inner,))
    rewriter.replace(second, before, replace(first, inputs=(inner, *first.inputs[1:]), outputs=second.outputs))
    return True
