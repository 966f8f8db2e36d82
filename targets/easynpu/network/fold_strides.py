"""Convolutions whose strides exceed what an instruction word can say, over blocks of pixels as channels."""

from __future__ import annotations

from math import gcd

import numpy as np

from npuc.ir import Array, Attr, Graph, Node
from npuc.ops.attributes import GROUP
from npuc.ops.windows import window_of
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite

MOST_STRIDE = 15
MOST_CHANNELS = 256


def fold_strides(graph: Graph) -> Graph:
    """A Conv of an image with a stride above 15 becomes SpaceToDepth and a Conv with strides that much smaller.

    Exact: the same products, and zeros where the kernel is no multiple of the block. Blocks divide both strides;
    the largest with at most 256 channels is taken, else the smallest that does. Dilated and grouped ones stay.
    """
    return rewrite(graph, _fold)


def _fold(rewriter: Rewriter, node: Node) -> bool:
    if node.op != "Conv" or len(rewriter.shape(node.inputs[0])) != 4 or not only_float(rewriter, *node.inputs[:2]):
        return False
    w = rewriter.constants.get(node.inputs[1])
    if w is None or GROUP(node) != 1:
        return False
    window = window_of(node, w.shape[2:])
    block = _block(window.strides, w.shape[1]) if max(window.strides) > MOST_STRIDE else None
    if block is None or set(window.dilations) != {1}:
        return False
    shape, outputs = rewriter.shape(node.inputs[0]), rewriter.shape(node.output)[2:]
    reached = [
        -(-((count - 1) * stride + kernel) // block) * block
        for count, stride, kernel in zip(outputs, window.strides, w.shape[2:], strict=True)
    ]
    x, nodes = _cut(rewriter, node, shape, reached, window.begins)
    folded = rewriter.fresh(f"{node.output}/blocks")
    nodes.append(Node("SpaceToDepth", (x,), (folded,), {"blocksize": block}, folded, node.sources))
    weights = rewriter.constant(_weights(w, block), f"{node.output}/folded")
    strides = tuple(stride // block for stride in window.strides)
    attrs: dict[str, Attr] = {
        k: v for k, v in node.attrs.items() if k not in ("kernel_shape", "pads", "dilations")
    }
    inputs = (folded, weights, *node.inputs[2:])
    nodes.append(Node("Conv", inputs, node.outputs, {**attrs, "strides": strides}, node.name, node.sources))
    rewriter.replace(node, *nodes)
    return True


def _block(strides: tuple[int, ...], channels: int) -> int | None:
    """The block size, or None if none makes the strides small enough."""
    common = gcd(*strides)
    fitting = [size for size in range(2, common + 1) if common % size == 0 and max(strides) // size <= MOST_STRIDE]
    small = [size for size in fitting if channels * size * size <= MOST_CHANNELS]
    return max(small, default=min(fitting, default=None))


def _cut(
    rewriter: Rewriter, node: Node, shape: tuple[int, ...], reached: list[int], begins: tuple[int, ...]
) -> tuple[str, list[Node]]:
    """The image with its padding, as far as windows reach: its tensor, and the nodes that give it."""
    x, nodes = node.inputs[0], list[Node]()
    ends = [max(extent - begin - size, 0) for extent, begin, size in zip(reached, begins, shape[2:], strict=True)]
    if any((*begins, *ends)):
        padded = rewriter.fresh(f"{node.output}/padded")
        attrs: dict[str, Attr] = {"pads": (0, 0, *begins, 0, 0, *ends), "mode": "constant", "value": 0.0}
        nodes.append(Node("Pad", (x,), (padded,), attrs, padded, node.sources))
        x = padded
    if any(begin + size > extent for extent, begin, size in zip(reached, begins, shape[2:], strict=True)):
        cut = rewriter.fresh(f"{node.output}/cut")
        attrs = {"axes": (2, 3), "starts": (0, 0), "ends": tuple(reached), "steps": (1, 1)}
        nodes.append(Node("Slice", (x,), (cut,), attrs, cut, node.sources))
        x = cut
    return x, nodes


def _weights(w: Array, block: int) -> Array:
    """(Co, Ci, Hk, Wk) as (Co, block * block * Ci, Hk / block, Wk / block), rounded up with zeros."""
    outputs, channels, *kernel = w.shape
    high, wide = (-(-extent // block) for extent in kernel)
    padded = np.zeros((outputs, channels, high * block, wide * block), w.dtype)
    padded[:, :, : kernel[0], : kernel[1]] = w
    tiles = padded.reshape(outputs, channels, high, block, wide, block)
    return tiles.transpose(0, 3, 5, 1, 2, 4).reshape(outputs, block * block * channels, high, wide)
