"""Data movement by convolutions: channels in another order, every n-th row or column of a map, padding."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from math import inf, isfinite

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Attr, Graph, Node
from npuc.ops.attributes import AXES, BLOCKS, GROUP, PAD_MODE, SIDES, VALUE
from npuc.ops.interpreter import evaluate
from npuc.passes.rewriting.maps import in_lanes, kernels_of, select_channels, slice_channels
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite

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
                _replace(self.lanes, rewriter, node)
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


def _replace(lanes: int, rewriter: Rewriter, node: Node) -> bool:
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
        return slice_channels(found.image, channels, output, name, sources)
    giver = _giver(rewriter, found)
    if giver is not None:
        return replace(
            kernels_of(rewriter, giver, channels, output), name=name, sources=rewriter.sources(giver, *found.nodes)
        )
    return select_channels(rewriter, found.image, channels, output, name, sources)


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


@frozen
class StridedSlicesToConvs:
    """Slice with steps along H or W becomes a Slice without steps and a depthwise 1x1 Conv with strides.

    The map (1, C, H, W) must be computed, and its result used in computations; between data movement, and before
    an output, nothing is done. Steps are at most the largest permitted stride; steps along other axes, and
    backward ones, are left unchanged.
    """

    most_stride: int
    __name__ = "strided_slices_to_convs"

    def __call__(self, graph: Graph) -> Graph:
        """The graph without such slices."""
        return rewrite(graph, partial(_fold_steps, self.most_stride))


def _fold_steps(most: int, rewriter: Rewriter, node: Node) -> bool:
    x, shape = node.inputs[0], rewriter.shape(node.output)
    if node.op != "Slice" or len(shape) != 4 or shape[0] != 1 or not all(shape) or not only_float(rewriter, x):
        return False
    keys = ("starts", "ends", "steps")
    cuts = dict(zip(AXES(node), zip(*(node.integers(key) for key in keys), strict=True), strict=True))
    strides = tuple(cuts[axis][2] if axis in cuts else 1 for axis in (2, 3))
    others = [step for axis, (_, _, step) in cuts.items() if axis < 2]
    if max(strides) == 1 or not 1 <= min(strides) <= max(strides) <= most or any(s != 1 for s in others):
        return False
    if not _is_computed(rewriter, x) or all(reader.op in MOVES for reader in rewriter.readers(node.output)):
        return False
    ends = tuple(start + (shape[axis] - 1) * step + 1 for axis, (start, _, step) in cuts.items())
    unit: dict[str, Attr] = {**node.attrs, "ends": ends, "steps": (1,) * len(cuts)}
    window = rewriter.part(node, "Slice", (x,), f"{node.output}/window", **unit)
    ones = rewriter.constant(np.ones((shape[1], 1, 1, 1), np.float32), f"{node.output}/ones")
    attrs: dict[str, Attr] = {"kernel_shape": (1, 1), "strides": strides, "group": shape[1], "selects": 1}
    rewriter.replace(
        node, window, Node("Conv", (window.output, ones), node.outputs, attrs, node.name, node.sources)
    )
    return True


def _is_computed(rewriter: Rewriter, tensor: str) -> bool:
    """Whether it is more than a rearranged input of the network."""
    node = rewriter.producer(tensor)
    while node is not None and node.op in MOVES:
        node = rewriter.producer(node.inputs[0])
    return node is not None


MOST_PARTS = 8
"""Padding that takes more convolutions is left unchanged."""


@frozen
class PadsToConvs:
    """Pad of an image (1, C, H, W) with zeros becomes a depthwise Conv by 1 with that padding.

    For another number c it is subtracted before and added after: c + pad(x - c). More rows or columns than a
    window may have take several Convs, up to 8. Padding of other axes, with elements of the tensor, or beyond
    that is left unchanged.

    most_padding: before the image; most_behind: behind it.
    """

    most_padding: int
    most_behind: float = inf
    __name__ = "pads_to_convs"

    def __call__(self, graph: Graph) -> Graph:
        """The graph without such padding."""
        return rewrite(
            graph,
            partial(_pad_to_conv, (self.most_padding, self.most_padding, self.most_behind, self.most_behind)),
        )


def _pad_to_conv(most: Sequence[float], rewriter: Rewriter, node: Node) -> bool:
    shape = rewriter.shape(node.inputs[0])
    if node.op != "Pad" or PAD_MODE(node) != "constant" or len(shape) != 4 or shape[0] != 1:
        return False
    begins, ends, value = SIDES(node)[:4], SIDES(node)[4:], VALUE(node)
    spatial = begins[2:] + ends[2:]
    if any(begins[:2] + ends[:2]) or min(spatial) < 0 or not isfinite(value):
        return False
    if not only_float(rewriter, node.inputs[0]) or not rewriter.types[node.inputs[0]].size:
        return False
    if any(side > MOST_PARTS * limit for side, limit in zip(spatial, most, strict=True)):
        return False
    nodes: list[Node] = []
    x = node.inputs[0]
    if value:
        nodes.append(_conv(rewriter, node, x, rewriter.fresh(f"{node.output}/above"), -value, {}))
        x = nodes[-1].output
    *parts, last = _parts(spatial, most)
    for part in parts:
        nodes.append(_conv(rewriter, node, x, rewriter.fresh(f"{node.output}/part"), 0, {"pads": part}))
        x = nodes[-1].output
    rewriter.replace(node, *nodes, _conv(rewriter, node, x, node.output, value, {"pads": last}))
    return True


def _parts(pads: tuple[int, ...], most: Sequence[float]) -> list[tuple[int, ...]]:
    """Pads that add up to these, with at most so many on each side.

    >>> _parts((17, 2, 40, 0), (15, 15, inf, inf))
    [(15, 2, 40, 0), (2, 0, 0, 0)]
    """
    found: list[tuple[int, ...]] = []
    while any(side > limit for side, limit in zip(pads, most, strict=True)):
        found.append(tuple(int(min(side, limit)) for side, limit in zip(pads, most, strict=True)))
        pads = tuple(side - taken for side, taken in zip(pads, found[-1], strict=True))
    return [*found, pads]


def _conv(rewriter: Rewriter, node: Node, x: str, y: str, shift: float, attrs: dict[str, Attr]) -> Node:
    """A depthwise Conv by 1 that adds a number."""
    channels = rewriter.shape(node.inputs[0])[1]
    w = rewriter.constant(np.ones((channels, 1, 1, 1), np.float32), f"{y}/ones")
    bias = (rewriter.constant(np.full(channels, shift, np.float32), f"{y}/shift"),) if shift else ()
    return Node("Conv", (x, w, *bias), (y,), {**attrs, "group": channels}, node.name, node.sources)
