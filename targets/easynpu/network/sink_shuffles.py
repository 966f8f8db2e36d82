"""Channel shuffles between grouped convolutions, moved behind the depthwise convolution that reads them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Graph, Node
from npuc.ops.attributes import BLOCKS, GROUP
from npuc.passes.expansion.permute_channels_by_conv import Selection, is_dense, selection
from npuc.passes.rewriting.rules import Rewriter


def sink_shuffles(graph: Graph) -> Graph:
    """A permutation of a block-structured Conv's channels moves behind the depthwise Conv that alone reads it.

    Only where a dense Conv alone reads that result, as its weights will absorb the permutation. In the
    block-structured Conv successive outputs then still read few inputs; the depthwise Conv has its weights
    reordered.
    """
    rewriter = Rewriter(graph)
    for key in rewriter.order():
        node = rewriter.node(key)
        if node is not None and _is_depthwise(rewriter, node):
            found = selection(rewriter, node.inputs[0])
            if found is not None and _sinks(rewriter, node, found):
                _sink(rewriter, node, found)
    return rewriter.finish()


def _is_depthwise(rewriter: Rewriter, node: Node) -> bool:
    if node.op != "Conv" or not all(name in rewriter.constants for name in node.inputs[1:] if name):
        return False
    channels = rewriter.shape(node.inputs[0])[1]
    return GROUP(node) == channels == rewriter.shape(node.inputs[1])[0] > 1


def _sinks(rewriter: Rewriter, node: Node, found: Selection) -> bool:
    """Whether a permutation between a block-structured Conv and this one can move behind it, into a dense Conv."""
    giver, reader = rewriter.private(found.image), rewriter.only_reader(node.output)
    if giver is None or BLOCKS(giver) < 2 or reader is None:
        return False
    private = all(rewriter.only_reader(name) for each in found.nodes for name in each.outputs)
    whole = np.array_equal(np.sort(found.channels), np.arange(rewriter.shape(found.image)[1]))
    return private and whole and is_dense(rewriter, reader) and reader.inputs[0] == node.output


def _sink(rewriter: Rewriter, node: Node, found: Selection) -> None:
    back = np.argsort(found.channels)
    names = [
        rewriter.constant(rewriter.constants[name][back], f"{node.output}/{part}")
        for name, part in zip(node.inputs[1:], ("weight", "bias"), strict=False)
        if name
    ]
    result = rewriter.fresh(f"{node.output}/unshuffled")
    moved = replace(node, inputs=(found.image, *names), outputs=(result,))
    order = rewriter.constant(found.channels.astype(np.int64), f"{node.output}/order")
    sources = rewriter.sources(*found.nodes)
    rewriter.replace(
        node, moved, Node("Gather", (result, order), (node.output,), {"axis": 1}, node.output, sources)
    )
