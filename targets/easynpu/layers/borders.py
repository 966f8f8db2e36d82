"""Convolutions whose padding value is not 0, on a machine that pads with zeros.

With a padding value z, the sum of a convolution is the one with zero padding plus z times the weights of the taps
in the padding: sum(w x) + sum over taps inside the map of (-w z) + z sum(w). The middle term is a convolution of a
constant map of z with the same window: a layer word of its own over one pixel with pitches of 0, whose psums are
kept for the layer's word. It doubles the cost of a depthwise layer; a dense layer gets as many more input channels
as 8-bit weights are needed for its largest sum of weights (border_weights).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import PADDING
from npuc.targets.easynpu.layers.operators import OPERATORS, PIXEL, VALUE


def with_borders(graph: Graph) -> Graph:
    """The integer graph in which convolutions with a padding value other than 0 also read a pixel of it."""
    values = sorted({PADDING(node) for node in graph.nodes if node.op == "IntConv"} - {0})
    if not values:
        return graph
    names = {value: f"padding/{value}" for value in values}
    pixels = [Node(PIXEL, (), (name,), {VALUE.name: value}, name) for value, name in names.items()]
    nodes = [
        replace(node, inputs=(*node.inputs, names[PADDING(node)])) if PADDING(node) else node
        for node in graph.nodes
    ]
    return rebuild(replace(graph, operators=OPERATORS), [*pixels, *nodes])


def border_weights(w: Array, *, dense: bool) -> list[Array]:
    """Weights (Co, channels, Hk, Wk) int8 over the constant map, which add up to the negated channel sums of w.

    Dense: one array of several channels. Channel-wise: arrays of one channel each; a weight of -128 takes two.
    """
    rest = -w.astype(np.int64).sum(axis=1, keepdims=True)
    if dense:
        channels = max(1, -(-int(np.abs(rest).max()) // 127))
        shares = np.diff(rest * np.arange(channels + 1)[:, None, None] // channels, axis=1)
        return [shares.astype(np.int8)]
    found: list[Array] = []
    while rest.any() or not found:
        found.append(np.clip(rest, -127, 127).astype(np.int8))
        rest = rest - found[-1]
    return found
