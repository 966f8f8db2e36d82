"""Padding beyond what a convolution has, before it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.passes.rewriting.patterns import conv_window
from npuc.passes.rewriting.rules import Rewriter, rewrite


@frozen
class SplitPads:
    """A Conv of an image keeps at most this much padding on each side; a Pad with zeros adds the rest.

    It undoes merge_pads where the sum is too much, and applies to wide kernels.
    """

    most_padding: int
    __name__ = "split_pads"

    def __call__(self, graph: Graph) -> Graph:
        """The graph without larger padding."""
        return rewrite(graph, partial(_split, self.most_padding))


def _split(most: int, rewriter: Rewriter, node: Node) -> bool:
    window = conv_window(rewriter, node)
    if window is None or max(*window.begins, *window.ends) <= most:
        return False
    sides = (*window.begins, *window.ends)
    top, left, bottom, right = (max(side - most, 0) for side in sides)
    pads, stem = (0, 0, top, left, 0, 0, bottom, right), f"{node.output}/padded"
    pad = rewriter.part(node, "Pad", node.inputs[:1], stem, pads=pads, mode="constant", value=0.0)
    rest = tuple(min(side, most) for side in sides)
    rewriter.replace(node, pad, replace(node, inputs=(pad.output, *node.inputs[1:])).with_attrs(pads=rest))
    return True
