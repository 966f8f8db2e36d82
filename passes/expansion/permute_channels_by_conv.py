"""Reordering of channels by data movement, replaced by convolutions or merged into their weights."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.frozen import frozen
from npuc.interpreter import evaluate
from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import BLOCKS, GROUP
from npuc.passes.rewriting.channels import in_lanes, kernels_of, selected, sliced
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter

MOVES = frozenset(("Reshape", "Transpose", "Slice", "Gather", "Split"))


@frozen
class PermuteChannelsByConv:
    """Channel shuffles, and slices that begin within a word, become weights of convolutions.

    A chain of Reshape, Transpose, Slice, Gather and Split that selects channels of an image (1, C, H, W) in some
    order becomes a Slice if these are consecutive channels that start at a multiple of the lanes, the channels of
    a memory word: they can be read in place. Otherwise the dense Conv before the image computes them in that
    order, if nothing else reads it; or the dense Conv after them reads the image with scattered weights, if that
    is less work; or a 1x1 Conv selects them. The latter is not used for channels of an input, nor if only data
    movement follows, as before an output.
    """

    lanes: int
    __name__ = "permute_channels_by_conv"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with such channels computed by weights."""
        rewriter = Rewriter(graph)
        for key in reversed(rewriter.order()):
            node = rewriter.node(key)
            if node is not None and not _into_reader(self.lanes, rewriter, node):
                _replaced(self.lanes, rewriter, node)
        return rewriter.finish()


@frozen
class Selection:
    """A tensor as channels of an image, and the nodes in between."""

    image: str
    channels: Array
    nodes: tuple[Node, ...]

    def is_window(self, lanes: int) -> bool:
        """Whether they are consecutive channels from the start of a word."""
        first, count = int(self.channels[0]), len(self.channels)
        return first % lanes == 0 and bool((self.channels == np.arange(first, first + count)).all())


def selection(rewriter: Rewriter, tensor: str) -> Selection | None:
    """The tensor as channels of the most distant image from which they are selected."""
    shape = rewriter.shape(tensor)
    if len(shape) != 4 or shape[0] != 1 or not all(shape) or not only_float(rewriter, tensor):
        return None
    path: list[tuple[Node, str]] = []
    found: Selection | None = None
    while (node := rewriter.producer(tensor)) is not None and _moves(rewriter, node):
        path.insert(0, (node, tensor))
        tensor = node.inputs[0]
        before = rewriter.shape(tensor)
        if len(before) == 4 and before[0] == 1 and before[2:] == shape[2:]:
            channels = _channels(rewriter, tensor, path)
            if channels is not None:
                found = Selection(tensor, channels, tuple(each for each, _ in path))
    return found


def _moves(rewriter: Rewriter, node: Node) -> bool:
    return node.op in MOVES and all(name in rewriter.constants for name in node.inputs[1:])


def _channels(rewriter: Rewriter, image: str, path: list[tuple[Node, str]]) -> Array | None:
    """The image's channel for each channel at the end of the path; None if pixels move as well."""
    type_ = rewriter.types[image]
    pixels = type_.shape[2] * type_.shape[3]
    value: Array = np.arange(type_.size).reshape(type_.shape)
    for node, result in path:
        values = evaluate(node, [value, *(rewriter.constants[name] for name in node.inputs[1:])])
        value = values[node.outputs.index(result)]
    places = value.reshape(value.shape[1], pixels)
    channels = places[:, 0] // pixels
    return channels if (places == channels[:, None] * pixels + np.arange(pixels)).all() else None


def _into_reader(lanes: int, rewriter: Rewriter, conv: Node) -> bool:
    """Lets a dense Conv of selected channels read the image itself, if selecting them would be more work."""
    found = selection(rewriter, conv.inputs[0]) if is_dense(rewriter, conv) else None
    if found is None or found.is_window(lanes) or _giver(rewriter, found) is not None:
        return False
    weight, most, count = rewriter.constants[conv.inputs[1]], rewriter.shape(found.image)[1], len(found.channels)
    added = weight[0, 0].size * (most - count) * in_lanes(len(weight), lanes)
    if added > most * in_lanes(count, lanes):
        return False
    scattered = np.zeros((len(weight), most, *weight.shape[2:]), weight.dtype)
    for place, channel in enumerate(found.channels):
        scattered[:, channel] += weight[:, place]
    inputs = (found.image, rewriter.constant(scattered, f"{conv.output}/scattered"), *conv.inputs[2:])
    rewriter.replace(conv, replace(conv, inputs=inputs, sources=rewriter.sources(*found.nodes, conv)))
    return True


def _replaced(lanes: int, rewriter: Rewriter, node: Node) -> bool:
    """Replaces the last of the nodes that select channels, if its results are used in computations."""
    readers = {name: rewriter.readers(name) for name in node.outputs if name}
    if node.op not in MOVES or all(each.op in MOVES for found in readers.values() for each in found):
        return False
    used = [name for name, found in readers.items() if found or name in rewriter.outputs]
    found = {name: each for name in used if (each := selection(rewriter, name)) is not None}
    windows = all(each.is_window(lanes) and len(each.nodes) == 1 for each in found.values())
    of_input = all(each.image in rewriter.graph.inputs for each in found.values())
    if len(found) < len(used) or of_input or (windows and len(used) == len(node.outputs)):
        return False
    rewriter.replace(node, *(_selecting(lanes, rewriter, name, each) for name, each in found.items()))
    return True


def _selecting(lanes: int, rewriter: Rewriter, output: str, found: Selection) -> Node:
    """The node that selects the channels."""
    last, channels = found.nodes[-1], found.channels
    name, sources = last.name if len(last.outputs) == 1 else output, rewriter.sources(*found.nodes)
    if found.is_window(lanes):
        return sliced(found.image, channels, output, name, sources)
    giver = _giver(rewriter, found)
    if giver is not None:
        return replace(
            kernels_of(rewriter, giver, channels, output), name=name, sources=rewriter.sources(giver, *found.nodes)
        )
    return selected(rewriter, found.image, channels, output, name, sources)


def _giver(rewriter: Rewriter, found: Selection) -> Node | None:
    """The dense Conv whose result only the selection reads."""
    inner = [name for node in found.nodes[:-1] for name in node.outputs]
    conv = rewriter.private(found.image)
    if conv is None or not is_dense(rewriter, conv) or not all(rewriter.only_reader(name) for name in inner):
        return None
    return conv


def is_dense(rewriter: Rewriter, node: Node) -> bool:
    """Whether a node is a convolution of one group with constant parameters.

    A block-diagonal one, which another order of channels would fill in, qualifies only if it has few taps anyway.
    """
    if node.op != "Conv" or GROUP(node) != 1:
        return False
    if BLOCKS(node) > 1 and any(extent > 1 for extent in rewriter.shape(node.inputs[1])[2:]):
        return False
    return all(name in rewriter.constants for name in node.inputs[1:] if name)
