"""Enlargement that moves or repeats elements as interleaved maps, for machines that do that with strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from npuc.ir import Graph, Node
from npuc.ops.attributes import ACTIVATION, AXIS, BLOCK_MODE, BLOCKSIZE
from npuc.passes.expansion.permute_channels_by_conv import LANES, is_dense
from npuc.passes.expansion.resize_to_copies import repetitions
from npuc.passes.rewriting.channels import kernels_of, selected, sliced
from npuc.passes.rewriting.interleaving import woven
from npuc.passes.rewriting.patterns import along_axis, only_float
from npuc.passes.rewriting.rules import Draft, rewrite
from npuc.quantize.arithmetic.tables import CONVERSIONS
from npuc.quantize.scales.constraints import MOVEMENT

MOST_PHASES = 256
"""A larger enlargement stays as it is."""
ACTIVATIONS = ("Relu", "Clip", "LeakyRelu", "PRelu")
"""Activations that a convolution takes in."""
MOVES = (*MOVEMENT, *CONVERSIONS, "Resize")


def enlargements_to_interleaves(graph: Graph) -> Graph:
    """DepthToSpace, and Resize that repeats pixels, become Interleave along H and along W.

    The phases of a DepthToSpace are those that a Concat joins, else convolutions with the kernels of a phase where
    a dense Conv gives them all to nothing else, else slices of the channels where all begin with a memory word,
    else 1x1 Convs that select them. Of a Resize every phase is the map.
    Where nothing computes the map nor computes with the result, both stay. An activation behind an Interleave of
    convolutions, or of one map, goes before it.
    """
    return rewrite(graph, _depth_to_space, _resize, _activation)


def _resize(draft: Draft, node: Node) -> bool:
    rows, columns = repetitions(draft, node)
    if not 1 < rows * columns <= MOST_PHASES or not is_between(draft, node):
        return False
    draft.replace(node, *woven(draft, node, [[node.inputs[0]] * columns] * rows))
    return True


def _depth_to_space(draft: Draft, node: Node) -> bool:
    if node.op != "DepthToSpace" or not is_between(draft, node):
        return False
    block = BLOCKSIZE(node)
    if block == 1:
        return draft.bypass(node)
    if block**2 > MOST_PHASES:
        return False
    names, made = _phases(draft, node, block)
    grid = [names[row * block : (row + 1) * block] for row in range(block)]
    draft.replace(node, *made, *woven(draft, node, grid))
    return True


def _activation(draft: Draft, node: Node) -> bool:
    moved = draft.private(node.inputs[0]) if node.op in ACTIVATIONS else None
    if (
        moved is None
        or moved.op != "Interleave"
        or not all(_is_alike(draft, node, name) for name in node.inputs[1:])
    ):
        return False
    names = list(dict.fromkeys(moved.inputs))
    if len(names) > 1 and not all(_is_convolved(draft, name) for name in names):
        return False
    before = {name: draft.fresh(f"{node.output}/{number}") for number, name in enumerate(names)}
    made = [
        replace(node, inputs=(name, *node.inputs[1:]), outputs=(result,), name=result)
        for name, result in before.items()
    ]
    inputs = tuple(before[name] for name in moved.inputs)
    draft.replace(node, *made, replace(moved, inputs=inputs, outputs=node.outputs))
    return True


def _is_alike(draft: Draft, node: Node, name: str) -> bool:
    """Whether an operand is constant and the same for all pixels."""
    value = draft.constants.get(name)
    return value is not None and along_axis(value, draft.shape(node.output), 1) is not None


def _is_convolved(draft: Draft, tensor: str) -> bool:
    """Whether convolutions give a tensor, interleaved or as it is, to one reader alone."""
    node = draft.private(tensor)
    if node is not None and node.op == "Interleave":
        return all(_is_convolved(draft, name) for name in node.inputs)
    return node is not None and node.op == "Conv" and not ACTIVATION(node)


def is_between(draft: Draft, node: Node) -> bool:
    """Whether a float image is computed, or something computes with what a node makes of it."""
    if not only_float(draft, node.inputs[0]) or len(draft.shape(node.output)) != 4:
        return False

    def before(each: Node) -> Sequence[Node]:
        return [found for name in each.inputs if (found := draft.producer(name)) is not None]

    def behind(each: Node) -> Sequence[Node]:
        return [reader for name in each.outputs for reader in draft.readers(name)]

    return _computes(node, before) or _computes(node, behind)


def _computes(node: Node, neighbours: Callable[[Node], Sequence[Node]]) -> bool:
    """Whether there is a node on the way that does more than move elements."""
    waiting = list(neighbours(node))
    while waiting:
        each = waiting.pop()
        if each.op not in MOVES:
            return True
        waiting += neighbours(each)
    return False


def _phases(draft: Draft, node: Node, block: int) -> tuple[list[str], list[Node]]:
    """The maps that a DepthToSpace interleaves, row by row, and the nodes that give them."""
    x, channels = node.inputs[0], draft.shape(node.output)[1]
    joined = draft.producer(x)
    if joined is not None and _joins_phases(draft, node, joined, channels):
        return list(joined.inputs), []
    columns = product(range(block), repeat=2)
    names = [draft.fresh(f"{node.output}/phase_{row}_{column}") for row, column in columns]
    places = np.arange(channels * block**2)
    places = places.reshape(channels, -1).T if BLOCK_MODE(node) == "CRD" else places.reshape(-1, channels)
    conv = draft.private(x)
    if conv is not None and is_dense(draft, conv):
        return names, [kernels_of(draft, conv, each, y) for y, each in zip(names, places, strict=True)]
    words = BLOCK_MODE(node) == "DCR" and channels % LANES == 0
    taken = sliced if words else partial(selected, draft)
    return names, [taken(x, each, y, y, node.sources) for y, each in zip(names, places, strict=True)]


def _joins_phases(draft: Draft, node: Node, joined: Node, channels: int) -> bool:
    """Whether a node is the Concat of the phases of a DepthToSpace."""
    concat = joined.op == "Concat" and AXIS(joined) == 1 and BLOCK_MODE(node) == "DCR"
    return concat and all(draft.shape(name)[1] == channels for name in joined.inputs)
