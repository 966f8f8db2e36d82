"""SpaceToDepth as part of the convolution that reads it, or as strided convolutions."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Array, Attr, Graph, Node
from npuc.ops.attributes import BLOCKSIZE
from npuc.ops.windows import window_of
from npuc.passes.expansion.permute_channels_by_conv import is_dense
from npuc.passes.rewriting.rules import Rewriter, rewrite
from npuc.targets.nvdla.machine.parameters import MOST_KERNEL, MOST_STRIDE, MOST_WINDOW_PADDING
from npuc.targets.nvdla.network.enlargements_to_interleaves import is_between


def space_to_depth_to_convs(graph: Graph) -> Graph:
    """A dense Conv that reads a SpaceToDepth reads its input instead, with kernel and strides scaled by the block.

    Exact: the same products, in another order. Other readers, and Convs whose kernel would exceed 32, stride 8 or
    padding 31, read a Concat of strided Slices, one for each position in a block. A SpaceToDepth stays if nothing
    computes its input and nothing computes with its result.
    """
    return rewrite(rewrite(graph, _into_conv), _to_slices)


def _into_conv(rewriter: Rewriter, node: Node) -> bool:
    before = rewriter.producer(node.inputs[0]) if is_dense(rewriter, node) else None
    if before is None or before.op != "SpaceToDepth":
        return False
    w, block = rewriter.constants[node.inputs[1]], BLOCKSIZE(before)
    window = window_of(node, w.shape[2:])
    sizes = (max(window.kernel), MOST_KERNEL), (max(window.strides), MOST_STRIDE)
    padding = max(*window.begins, *window.ends), MOST_WINDOW_PADDING
    if max(window.dilations) > 1 or any(size * block > most for size, most in (*sizes, padding)):
        return False
    attrs: dict[str, Attr] = {key: value for key, value in node.attrs.items() if key != "kernel_shape"}
    attrs["strides"] = tuple(block * each for each in window.strides)
    attrs["pads"] = tuple(block * each for each in (*window.begins, *window.ends))
    inputs = (before.inputs[0], rewriter.constant(_spread(w, block), f"{node.output}/spread"), *node.inputs[2:])
    rewriter.replace(node, replace(node, inputs=inputs, attrs=attrs, sources=rewriter.sources(before, node)))
    return True


def _spread(w: Array, block: int) -> Array:
    """Weights (K, block * block * C, R, S) rearranged for the pixels: (K, C, R * block, S * block)."""
    kernels, channels, height, width = w.shape
    apart = w.reshape(kernels, block, block, channels // block**2, height, width).transpose(0, 3, 4, 1, 5, 2)
    return np.ascontiguousarray(apart.reshape(kernels, -1, height * block, width * block))


def _to_slices(rewriter: Rewriter, node: Node) -> bool:
    if node.op != "SpaceToDepth" or not is_between(rewriter, node):
        return False
    block, (height, width) = BLOCKSIZE(node), rewriter.shape(node.inputs[0])[2:]
    made: list[Node] = []
    for row in range(block):
        for column in range(block):
            cut: dict[str, Attr] = {"axes": (2, 3), "starts": (row, column), "ends": (height, width)}
            name = rewriter.fresh(f"{node.output}/phase_{row}_{column}")
            made.append(Node("Slice", node.inputs, (name,), {**cut, "steps": (block, block)}, name, node.sources))
    names = tuple(each.output for each in made)
    rewriter.replace(node, *made, Node("Concat", names, node.outputs, {"axis": 1}, node.name, node.sources))
    return True
