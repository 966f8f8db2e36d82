"""Convolutions whose padding value is not 0, on a machine that pads with zeros.

Most read a copy of their map that has the padding: two depthwise words of one tap, a per cent of a layer of 16
channels. The copy itself, and a convolution with less work, takes a second word over the padding value. With a
padding value z, the sum of a convolution is the one with zero padding plus z times the weights of the taps
in the padding: sum(w x) + sum over taps inside the map of (-w z) + z sum(w). The middle term is a convolution of a
constant map of z with the same window: a layer word of its own over one pixel with pitches of 0, whose psums are
kept for the layer's word. It doubles the cost of a depthwise layer; a dense layer gets as many more input channels
as 8-bit weights are needed for its largest sum of weights (border_weights).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

import numpy as np

from npuc.ir import Array, Attr, Graph, Node
from npuc.ops import rebuild
from npuc.ops.attributes import GROUP, PADDING, PADS
from npuc.ops.macs import macs
from npuc.ops.windows import window_of
from npuc.targets.easynpu.layers.fusion import conv_mnemonic
from npuc.targets.easynpu.layers.operators import OPERATORS, PIXEL, VALUE
from npuc.targets.easynpu.machine.memory import LANES, groups


def with_borders(graph: Graph) -> Graph:
    """The integer graph in which maps are surrounded by a padding value other than 0.

    Either a convolution reads a copy of its map that has the padding, or it also reads a pixel of the value:
    whichever takes fewer cycles.
    """
    values = sorted({PADDING(node) for node in graph.nodes if node.op == "IntConv"} - {0})
    if not values:
        return graph
    names, constants, copies = graph.names(), dict(graph.constants), dict[tuple[Any, ...], str]()
    pixels = {value: names.new(f"padding/{value}") for value in values}
    nodes = [Node(PIXEL, (), (name,), {VALUE.name: value}, name) for value, name in pixels.items()]
    for node in graph.nodes:
        if not PADDING(node):
            nodes.append(node)
        elif (pads := _copied(graph, node)) is None:
            nodes.append(replace(node, inputs=(*node.inputs, pixels[PADDING(node)])))
        else:
            x, value = node.inputs[0], PADDING(node)
            if (x, pads, value) not in copies:
                name = names.new(f"{x}/padded{'_'.join(map(str, (*pads, value)))}")
                copies[x, pads, value] = name
                channels = graph.shape(x)[1]
                given = [names.new(f"{name}/{each}") for each in ("w", "bias", "shift")]
                w, none = np.ones((channels, 1, 1, 1), np.int8), np.zeros(channels, np.int32)
                constants |= dict(zip(given, (w, none, none.astype(np.int8)), strict=True))
                told: dict[str, Attr] = {"group": channels, "pads": pads, "padding": value, "selects": 1}
                nodes.append(Node("IntConv", (x, *given, pixels[value]), (name,), told, name, node.sources))
            attrs = {key: each for key, each in node.attrs.items() if key not in (PADDING.name, PADS.name)}
            nodes.append(replace(node, inputs=(copies[x, pads, value], *node.inputs[1:]), attrs=attrs))
    return rebuild(replace(graph, operators=OPERATORS), nodes, constants)


def _copied(graph: Graph, node: Node) -> tuple[int, ...] | None:
    """The padding that a convolution reads as part of a copy of its map; None if that is not cheaper."""
    x, w = node.inputs[0], graph.constants[node.inputs[1]]
    window = window_of(node, w.shape[2:])
    pads = (*window.begins, *(max(end, 0) for end in window.ends))
    height, width = (extent + pads[k] + pads[k + 2] for k, extent in enumerate(graph.shape(x)[2:]))
    channels = graph.shape(x)[1]
    dense = conv_mnemonic(GROUP(node), channels, len(w)) == "conv"
    added = sum(prod(each.shape[1:]) for each in border_weights(w, dense=dense))
    words = added * prod(graph.shape(node.output)[2:]) * groups(len(w))
    return pads if _copy_cycles(channels, (height, width)) < words else None


def _copy_cycles(channels: int, extents: Sequence[int]) -> int:
    """Cycles of a copy: two words of one tap, one over the map and one over the pixel."""
    return 2 * prod(extents) * groups(channels)


LITTLE = 12
"""A copy takes up to a twelfth of the cycles of the convolution that reads it."""


def pads_cheaply(graph: Graph, node: Node) -> bool:
    """Whether a float convolution takes many more cycles than a copy of its map with padding."""
    channels, *extents = graph.shape(node.inputs[0])[1:]
    least = LITTLE * _copy_cycles(channels, extents) * LANES
    return node.op == "Conv" and macs(node, graph.tensors) >= least


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
