"""Padding before an image beyond what an instruction word can state."""

from __future__ import annotations

import numpy as np

from npuc.ir import Graph, Node
from npuc.passes.rewriting.patterns import conv_window
from npuc.passes.rewriting.rules import Rewriter, rewrite

MOST_PADDING = 15


def split_padding(graph: Graph) -> Graph:
    """A Conv with more than 15 rows or columns of padding before its image reads a padded image instead.

    A depthwise 1x1 Conv adds up to 15 rows and columns, several Convs add more. Exact: they only copy.
    """
    return rewrite(graph, _split)


def _split(rewriter: Rewriter, node: Node) -> bool:
    window = conv_window(rewriter, node)
    if window is None or max(window.begins) <= MOST_PADDING:
        return False
    before = tuple(min(max(begin - MOST_PADDING, 0), MOST_PADDING) for begin in window.begins)
    x, channels = node.inputs[0], rewriter.shape(node.inputs[0])[1]
    padded = rewriter.fresh(f"{node.output}/padded")
    ones = rewriter.constant(np.ones((channels, 1, 1, 1), np.float32), f"{padded}/ones")
    copy = Node("Conv", (x, ones), (padded,), {"pads": (*before, 0, 0), "group": channels}, padded, node.sources)
    rest = tuple(begin - taken for begin, taken in zip(window.begins, before, strict=True))
    conv = Node("Conv", (padded, *node.inputs[1:]), node.outputs, {**node.attrs}, node.name, node.sources)
    rewriter.replace(node, copy, conv.with_attrs(pads=(*rest, *window.ends)))
    return True
