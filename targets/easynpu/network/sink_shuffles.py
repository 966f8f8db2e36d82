"""Channel shuffles between grouped convolutions, behind the depthwise convolution that reads them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Graph, Node
from npuc.ops.attributes import BLOCKS, GROUP
from npuc.passes.expansion.permute_channels_by_conv import Selection, is_dense, selection
from npuc.passes.rewriting.rules import Draft


def sink_shuffles(graph: Graph) -> Graph:
    """A permutation of the channels of a Conv in blocks moves behind the depthwise Conv that alone reads it.

    Only where a dense Conv alone reads that result, whose weights will take the permutation. The Conv in blocks
    then keeps the order in which successive outputs read few inputs; the depthwise one has its weights reordered.
    """
    draft = Draft(graph)
    for key in draft.order():
        node = draft.node(key)
        if node is not None and _is_depthwise(draft, node):
            found = selection(draft, node.inputs[0])
            if found is not None and _sinks(draft, node, found):
                _sink(draft, node, found)
    return draft.finish()


def _is_depthwise(draft: Draft, node: Node) -> bool:
    if node.op != "Conv" or not all(name in draft.constants for name in node.inputs[1:] if name):
        return False
    channels = draft.shape(node.inputs[0])[1]
    return GROUP(node) == channels == draft.shape(node.inputs[1])[0] > 1


def _sinks(draft: Draft, node: Node, found: Selection) -> bool:
    """Whether a permutation between a Conv in blocks and this one may move behind it, into a dense Conv."""
    giver, reader = draft.private(found.image), draft.only_reader(node.output)
    if giver is None or BLOCKS(giver) < 2 or reader is None:
        return False
    private = all(draft.only_reader(name) for each in found.nodes for name in each.outputs)
    whole = np.array_equal(np.sort(found.channels), np.arange(draft.shape(found.image)[1]))
    return private and whole and is_dense(draft, reader) and reader.inputs[0] == node.output


def _sink(draft: Draft, node: Node, found: Selection) -> None:
    back = np.argsort(found.channels)
    names = [
        draft.constant(draft.constants[name][back], f"{node.output}/{part}")
        for name, part in zip(node.inputs[1:], ("weight", "bias"), strict=False)
        if name
    ]
    result = draft.fresh(f"{node.output}/unshuffled")
    moved = replace(node, inputs=(found.image, *names), outputs=(result,))
    order = draft.constant(found.channels.astype(np.int64), f"{node.output}/order")
    sources = draft.sources(*found.nodes)
    draft.replace(node, moved, Node("Gather", (result, order), (node.output,), {"axis": 1}, node.output, sources))
