"""Channels taken in another order, by operators that only move data, as convolutions or within them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from npuc.interpreter import evaluate
from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import BLOCKS, GROUP
from npuc.passes.rewriting.channels import kernels_of, selected, sliced
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Draft

LANES = 16
"""Channels of a memory word: from a multiple of it on they can be read as they are."""
MOVES = frozenset(("Reshape", "Transpose", "Slice", "Gather", "Split"))


def permute_channels_by_conv(graph: Graph) -> Graph:
    """Channel shuffles, and slices that begin within a word, become weights of convolutions.

    Reshape, Transpose, Slice, Gather and Split in a row that give some channels of an image (1, C, H, W) in some
    order become a Slice where they are successive channels from a multiple of 16 on. Else the dense Conv behind
    the image gives them in that order, if nothing else reads it; or the dense Conv that reads them reads the
    image, with its weights scattered, where that is less work; or a 1x1 Conv selects them. It does not select
    channels of an input, nor where only data movement follows, as before an output.
    """
    draft = Draft(graph)
    for key in reversed(draft.order()):
        node = draft.node(key)
        if node is not None and not _into_reader(draft, node):
            _replaced(draft, node)
    return draft.finish()


@dataclass(frozen=True)
class Selection:
    """A tensor as channels of an image, and the nodes between."""

    image: str
    channels: Array
    nodes: tuple[Node, ...]

    @property
    def is_window(self) -> bool:
        """Whether they are successive channels from the start of a word on."""
        first, count = int(self.channels[0]), len(self.channels)
        return first % LANES == 0 and bool((self.channels == np.arange(first, first + count)).all())


def selection(draft: Draft, tensor: str) -> Selection | None:
    """The tensor as channels of the farthest image of which it is some."""
    shape = draft.shape(tensor)
    if len(shape) != 4 or shape[0] != 1 or not all(shape) or not only_float(draft, tensor):
        return None
    path: list[tuple[Node, str]] = []
    found: Selection | None = None
    while (node := draft.producer(tensor)) is not None and _moves(draft, node):
        path.insert(0, (node, tensor))
        tensor = node.inputs[0]
        before = draft.shape(tensor)
        if len(before) == 4 and before[0] == 1 and before[2:] == shape[2:]:
            channels = _channels(draft, tensor, path)
            if channels is not None:
                found = Selection(tensor, channels, tuple(each for each, _ in path))
    return found


def _moves(draft: Draft, node: Node) -> bool:
    return node.op in MOVES and all(name in draft.constants for name in node.inputs[1:])


def _channels(draft: Draft, image: str, path: list[tuple[Node, str]]) -> Array | None:
    """Which channel of the image each channel at the end of the path is; None if pixels move as well."""
    type_ = draft.types[image]
    pixels = type_.shape[2] * type_.shape[3]
    value: Array = np.arange(type_.size).reshape(type_.shape)
    for node, result in path:
        values = evaluate(node, [value, *(draft.constants[name] for name in node.inputs[1:])])
        value = values[node.outputs.index(result)]
    places = value.reshape(value.shape[1], pixels)
    channels = places[:, 0] // pixels
    return channels if (places == channels[:, None] * pixels + np.arange(pixels)).all() else None


def _into_reader(draft: Draft, conv: Node) -> bool:
    """A dense Conv of selected channels reads the image itself, where to select them would be more work."""
    found = selection(draft, conv.inputs[0]) if is_dense(draft, conv) else None
    if found is None or found.is_window or _giver(draft, found) is not None:
        return False
    weight, most, count = draft.constants[conv.inputs[1]], draft.shape(found.image)[1], len(found.channels)
    added = weight[0, 0].size * (most - count) * _lanes(len(weight))
    if added > most * _lanes(count):
        return False
    scattered = np.zeros((len(weight), most, *weight.shape[2:]), weight.dtype)
    for place, channel in enumerate(found.channels):
        scattered[:, channel] += weight[:, place]
    inputs = (found.image, draft.constant(scattered, f"{conv.output}/scattered"), *conv.inputs[2:])
    draft.replace(conv, replace(conv, inputs=inputs, sources=draft.sources(*found.nodes, conv)))
    return True


def _lanes(channels: int) -> int:
    return -(-channels // LANES) * LANES


def _replaced(draft: Draft, node: Node) -> bool:
    """Other nodes in the place of the last of those that select channels, if its results are computed with."""
    readers = {name: draft.readers(name) for name in node.outputs if name}
    if node.op not in MOVES or all(each.op in MOVES for found in readers.values() for each in found):
        return False
    used = [name for name, found in readers.items() if found or name in draft.outputs]
    found = {name: each for name in used if (each := selection(draft, name)) is not None}
    windows = all(each.is_window and len(each.nodes) == 1 for each in found.values())
    of_input = all(each.image in draft.graph.inputs for each in found.values())
    if len(found) < len(used) or of_input or (windows and len(used) == len(node.outputs)):
        return False
    draft.replace(node, *(_selecting(draft, name, each) for name, each in found.items()))
    return True


def _selecting(draft: Draft, output: str, found: Selection) -> Node:
    """The node that gives the selected channels."""
    last, channels = found.nodes[-1], found.channels
    name, sources = last.name if len(last.outputs) == 1 else output, draft.sources(*found.nodes)
    if found.is_window:
        return sliced(found.image, channels, output, name, sources)
    giver = _giver(draft, found)
    if giver is not None:
        return replace(
            kernels_of(draft, giver, channels, output), name=name, sources=draft.sources(giver, *found.nodes)
        )
    return selected(draft, found.image, channels, output, name, sources)


def _giver(draft: Draft, found: Selection) -> Node | None:
    """The dense Conv whose result nothing but the selection reads."""
    inner = [name for node in found.nodes[:-1] for name in node.outputs]
    conv = draft.private(found.image)
    if conv is None or not is_dense(draft, conv) or not all(draft.only_reader(name) for name in inner):
        return None
    return conv


def is_dense(draft: Draft, node: Node) -> bool:
    """Whether a node is a convolution of one group whose parameters are constants.

    One in blocks, which another order of channels would fill, only if it has few taps anyway.
    """
    if node.op != "Conv" or GROUP(node) != 1:
        return False
    if BLOCKS(node) > 1 and any(extent > 1 for extent in draft.shape(node.inputs[1])[2:]):
        return False
    return all(name in draft.constants for name in node.inputs[1:] if name)
