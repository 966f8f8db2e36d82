"""Averages over whole maps whose last step becomes part of a convolution."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import product

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.ops.attributes import GROUP, KERNEL_SHAPE, PADS
from npuc.ops.windows import window_of
from npuc.passes.rewriting.rules import Rewriter, rewrite


@frozen
class AveragesIntoConvs:
    """A 1x1 Conv that alone reads the average of a whole map becomes one over averages of a few equal blocks.

    Exact in real numbers: the weights of each block are divided by the number of blocks. Averages of int8 that
    keep the scale of the map lose bits; those of blocks lose fewer, and the Conv adds them before it rounds.

    most_extent: of the map and of a block, each way. most_weights: kernels of the Conv times blocks beyond the
    first.
    """

    most_extent: int = 8
    most_weights: int = 256
    __name__ = "averages_into_convs"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with such averages split into blocks."""
        return rewrite(graph, partial(_divided, self))


def _divided(limits: AveragesIntoConvs, rewriter: Rewriter, node: Node) -> bool:
    average = rewriter.private(node.inputs[0]) if node.op == "Conv" and GROUP(node) == 1 else None
    weights = rewriter.constants.get(node.inputs[1]) if average else None
    if average is None or weights is None or weights.shape[2:] != (1, 1) or any(PADS(node)):
        return False
    if not _covers(rewriter, average):
        return False
    extents = rewriter.shape(average.inputs[0])[2:]
    blocks = [each for each in _blocks(extents, limits.most_extent) if each != extents]
    if not blocks or max(extents) > limits.most_extent:
        return False
    block = min(blocks, key=lambda each: (_pieces(extents, each) != FEW, _pieces(extents, each)))
    pieces = _pieces(extents, block)
    if len(weights) * (pieces - 1) > limits.most_weights:
        return False
    kernel = tuple(whole // part for whole, part in zip(extents, block, strict=True))
    taps = np.broadcast_to((weights / np.float32(pieces)).astype(weights.dtype), (*weights.shape[:2], *kernel))
    y = rewriter.fresh(f"{average.output}/blocks")
    w = rewriter.constant(np.ascontiguousarray(taps), f"{node.output}/over_blocks")
    pool = Node("AveragePool", average.inputs, (y,), {"kernel_shape": block, "strides": block}, y, average.sources)
    conv = replace(node, inputs=(y, w, *node.inputs[2:]), sources=rewriter.sources(average, node))
    # strides and dilations had no effect on a map of one pixel; on the blocks they would
    rewriter.replace(node, pool, conv.with_attrs(kernel_shape=kernel, strides=(1, 1), dilations=(1, 1)))
    return True


FEW = 4
"""The preferred number of blocks: each loses a bit less, for few more weights."""


def _covers(rewriter: Rewriter, node: Node) -> bool:
    """Whether a node averages over the whole map and nothing else."""
    if node.op == "GlobalAveragePool":
        return len(rewriter.shape(node.output)) == 4
    extents = rewriter.shape(node.inputs[0])[2:]
    if node.op != "AveragePool" or KERNEL_SHAPE(node) != extents or len(extents) != 2:
        return False
    window = window_of(node, extents)
    return not any((*window.begins, *window.ends)) and max(window.dilations) == 1


def _blocks(extents: tuple[int, ...], most: int) -> Iterator[tuple[int, ...]]:
    """The extents of blocks that divide the map equally."""
    sizes = ([each for each in range(1, most + 1) if extent % each == 0] for extent in extents)
    return product(*sizes)


def _pieces(extents: tuple[int, ...], block: tuple[int, ...]) -> int:
    return int(np.prod(extents)) // int(np.prod(block))
