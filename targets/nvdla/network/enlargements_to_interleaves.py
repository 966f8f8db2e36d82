"""Enlargement that moves or repeats elements, as interleaved maps, for machines that interleave by strides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from npuc.ir import Graph, Node
from npuc.ops.attributes import ACTIVATION, AXIS, BLOCK_MODE, BLOCKSIZE
from npuc.ops.movement import MOVEMENT
from npuc.ops.quantisation import CONVERSIONS
from npuc.passes.expansion.moves_to_convs import is_dense
from npuc.passes.expansion.resizes import repetitions
from npuc.passes.rewriting.maps import kernels_of, selected, sliced, woven
from npuc.passes.rewriting.patterns import along_axis, only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite
from npuc.targets.nvdla.network.limits import LANES

MOST_PHASES = 256
"""Larger enlargements stay as they are."""
ACTIVATIONS = ("Relu", "Clip", "LeakyRelu", "PRelu")
"""Activations that can be fused into a convolution."""
MOVES = (*MOVEMENT, *CONVERSIONS, "Resize")


def enlargements_to_interleaves(graph: Graph) -> Graph:
    """DepthToSpace, and Resize that repeats pixels, become Interleave along H and along W.

    The phases of a DepthToSpace are the inputs of a Concat of them; or convolutions with the kernels of one phase,
    if a dense Conv has no other reader; or slices of the channels, if all begin at a memory word; or 1x1 Convs
    that select the channels. Every phase of a Resize is the map itself.

    Both stay if nothing computes their input and nothing computes with their result. An activation behind an
    Interleave of convolutions, or of one map, moves in front of it.
    """
    return rewrite(graph, _depth_to_space, _resize, _activation)


def _resize(rewriter: Rewriter, node: Node) -> bool:
    rows, columns = repetitions(rewriter, node)
    if not 1 < rows * columns <= MOST_PHASES or not is_between(rewriter, node):
        return False
    rewriter.replace(node, *woven(rewriter, node, [[node.inputs[0]] * columns] * rows))
    return True


def _depth_to_space(rewriter: Rewriter, node: Node) -> bool:
    if node.op != "DepthToSpace" or not is_between(rewriter, node):
        return False
    block = BLOCKSIZE(node)
    if block == 1:
        return rewriter.bypass(node)
    if block**2 > MOST_PHASES:
        return False
    names, made = _phases(rewriter, node, block)
    grid = [names[row * block : (row + 1) * block] for row in range(block)]
    rewriter.replace(node, *made, *woven(rewriter, node, grid))
    return True


def _activation(rewriter: Rewriter, node: Node) -> bool:
    moved = rewriter.private(node.inputs[0]) if node.op in ACTIVATIONS else None
    if (
        moved is None
        or moved.op != "Interleave"
        or not all(_is_alike(rewriter, node, name) for name in node.inputs[1:])
    ):
        return False
    names = list(dict.fromkeys(moved.inputs))
    if len(names) > 1 and not all(_is_convolved(rewriter, name) for name in names):
        return False
    before = {name: rewriter.fresh(f"{node.output}/{number}") for number, name in enumerate(names)}
    made = [
        replace(node, inputs=(name, *node.inputs[1:]), outputs=(result,), name=result)
        for name, result in before.items()
    ]
    inputs = tuple(before[name] for name in moved.inputs)
    rewriter.replace(node, *made, replace(moved, inputs=inputs, outputs=node.outputs))
    return True


def _is_alike(rewriter: Rewriter, node: Node, name: str) -> bool:
    """Whether an operand is constant and the same for all pixels."""
    value = rewriter.constants.get(name)
    return value is not None and along_axis(value, rewriter.shape(node.output), 1) is not None


def _is_convolved(rewriter: Rewriter, tensor: str) -> bool:
    """Whether a tensor has a single reader and is the result of convolutions, interleaved or not."""
    node = rewriter.private(tensor)
    if node is not None and node.op == "Interleave":
        return all(_is_convolved(rewriter, name) for name in node.inputs)
    return node is not None and node.op == "Conv" and not ACTIVATION(node)


def is_between(rewriter: Rewriter, node: Node) -> bool:
    """Whether a node's float image is computed by something, or something computes with the result."""
    image = len(rewriter.shape(node.output)) == 4 and rewriter.types[node.output].size > 0
    if not image or not only_float(rewriter, node.inputs[0]):
        return False

    def before(each: Node) -> Sequence[Node]:
        return [found for name in each.inputs if (found := rewriter.producer(name)) is not None]

    def behind(each: Node) -> Sequence[Node]:
        return [reader for name in each.outputs for reader in rewriter.readers(name)]

    return _computes(node, before) or _computes(node, behind)


def _computes(node: Node, neighbours: Callable[[Node], Sequence[Node]]) -> bool:
    """Whether any node in this direction does more than move elements."""
    waiting = list(neighbours(node))
    while waiting:
        each = waiting.pop()
        if each.op not in MOVES:
            return True
        waiting += neighbours(each)
    return False


def _phases(rewriter: Rewriter, node: Node, block: int) -> tuple[list[str], list[Node]]:
    """The maps that a DepthToSpace interleaves, row by row, and the nodes that compute them."""
    x, channels = node.inputs[0], rewriter.shape(node.output)[1]
    joined = rewriter.producer(x)
    if joined is not None and _joins_phases(rewriter, node, joined, channels):
        return list(joined.inputs), []
    columns = product(range(block), repeat=2)
    names = [rewriter.fresh(f"{node.output}/phase_{row}_{column}") for row, column in columns]
    places = np.arange(channels * block**2)
    places = places.reshape(channels, -1).T if BLOCK_MODE(node) == "CRD" else places.reshape(-1, channels)
    conv = rewriter.private(x)
    if conv is not None and is_dense(rewriter, conv):
        return names, [kernels_of(rewriter, conv, each, y) for y, each in zip(names, places, strict=True)]
    words = BLOCK_MODE(node) == "DCR" and channels % LANES == 0
    taken = sliced if words else partial(selected, rewriter)
    return names, [taken(x, each, y, y, node.sources) for y, each in zip(names, places, strict=True)]


def _joins_phases(rewriter: Rewriter, node: Node, joined: Node, channels: int) -> bool:
    """Whether a node is the Concat of the phases of a DepthToSpace."""
    concat = joined.op == "Concat" and AXIS(joined) == 1 and BLOCK_MODE(node) == "DCR"
    return concat and all(rewriter.shape(name)[1] == channels for name in joined.inputs)
