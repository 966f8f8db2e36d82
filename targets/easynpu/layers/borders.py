"""Maps surrounded by another integer than 0, on a machine that pads with zeros.

With x surrounded by z the sum of a convolution is that with zeros plus, where the window reaches into the padding,
z times the weights there: sum(w x) + sum over taps inside of (-w z) + z sum(w). The middle term is a convolution
of a map that is z everywhere, in the same window: a word of its own over one pixel with pitches of 0, whose psums
are kept for the layer's word. It costs a depthwise layer as much again, a dense one as many input channels as the
largest sum of weights takes 8-bit weights (border_weights).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import PADDING
from npuc.targets.easynpu.layers.operators import OPERATORS, PIXEL, VALUE


def with_borders(graph: Graph) -> Graph:
    """The integer graph whose convolutions read the pixel that surrounds their map, where that is not 0."""
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
    """Weights (Co, channels, Hk, Wk) int8 over the constant map; over channels they sum up as -w does.

    Channel-wise words have one channel; a weight of -128 takes two words.
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
