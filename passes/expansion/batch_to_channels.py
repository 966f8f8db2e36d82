"""Samples of a batch as channels of one image, for operators that process channels separately."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Graph, Node
from npuc.ops.attributes import GROUP
from npuc.passes.expansion.images import TIDY
from npuc.passes.rewriting.rules import Rewriter, rewrite

POOLS = ("MaxPool", "AveragePool", "GlobalMaxPool", "GlobalAveragePool")


def batch_to_channels(graph: Graph) -> Graph:
    """Pooling, and depthwise convolutions, of N images become those of one: (1, N * C, H, W).

    A Reshape is added before and after; the weights of a convolution are repeated.
    """
    return rewrite(graph, _as_channels, *TIDY)


def _as_channels(rewriter: Rewriter, node: Node) -> bool:
    shape = rewriter.shape(node.inputs[0])
    if len(shape) != 4 or shape[0] < 2:
        return False
    N, channels = shape[:2]
    inputs: tuple[str, ...] = ()
    attrs = dict(node.attrs)
    if node.op == "Conv":
        depthwise = GROUP(node) == channels == rewriter.shape(node.output)[1]
        values = [rewriter.constants.get(name) for name in node.inputs[1:] if name]
        if not depthwise or any(value is None for value in values):
            return False
        tiled = [np.concatenate([value] * N) for value in values if value is not None]
        inputs = tuple(rewriter.constant(value, f"{node.output}/tiled") for value in tiled)
        attrs["group"] = N * channels
    elif node.op not in POOLS:
        return False
    stem, merged = f"{node.inputs[0]}/channels", (1, N * channels, *shape[2:])
    x = rewriter.part(node, "Reshape", node.inputs[:1], stem, shape=merged)
    y = rewriter.fresh(f"{node.output}/channels")
    inner = replace(node, inputs=(x.output, *inputs), outputs=(y,), attrs=attrs)
    rewriter.replace(node, x, inner, rewriter.back(node, y))
    return True
