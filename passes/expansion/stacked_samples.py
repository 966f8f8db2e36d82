"""Computation of all samples of a batch at once: fully connected layers, and the functions after them.

Their map is (1, C, N * H, W): the samples are stacked as rows of an image. A fully connected layer is a
convolution whose window covers one sample and advances by a whole one, so that its weights are needed once.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Attr, Graph, Node
from npuc.ops.attributes import GROUP
from npuc.ops.windows import window_of
from npuc.passes.expansion.images import ImageLimits
from npuc.passes.rewriting.layout import BINARY, UNARY
from npuc.text.escaping import Names

Extents = tuple[int, int, int]
"""Channels, height and width of a sample."""


@frozen
class Covering:
    """A fully connected layer: its map, and one sample of it."""

    map: str
    sample: Extents


def stacked_layers(
    graph: Graph, nodes: Collection[str], limits: ImageLimits, most_lines: int
) -> Mapping[str, Covering | None]:
    """The nodes, by result, that can be computed for all samples at once, among those with these first outputs.

    These are fully connected layers on samples of at most `most_lines` lines, with their map; elementwise
    functions, and reshapes of pixels to rows, that follow them have None.
    """
    found: dict[str, Covering | None] = {}
    for node in graph.nodes:
        if node.output not in nodes:
            continue
        layer = _covering(graph, node, found, limits)
        if layer is not None and layer.sample[1] <= most_lines:
            found[node.output] = layer
        elif layer is None and _follows(graph, node, found):
            found[node.output] = None
    return found


def _covering(graph: Graph, node: Node, stacked: Collection[str], limits: ImageLimits) -> Covering | None:
    """The map and sample of a fully connected layer; None for any other node."""
    if len(node.inputs) < 2 or node.inputs[1] not in graph.constants:
        return None
    x, shape = node.inputs[0], graph.shape(node.inputs[0])
    if node.op == "Gemm":
        before = graph.producers.get(x)
        source = graph.shape(before.inputs[0]) if before is not None and before.op == "Reshape" else ()
        if before is not None and len(source) == 4 and source[0] == shape[0]:
            x, shape = before.inputs[0], source
        row = len(shape) == 2 and x not in stacked
        return Covering(x, limits.folded(shape[1]) if row else _extents(shape))
    if node.op != "Conv" or len(shape) != 4 or GROUP(node) != 1:
        return None
    window = window_of(node, graph.shape(node.inputs[1])[2:])
    whole = window.reach == window.kernel == shape[2:] and not any((*window.begins, *window.ends))
    return Covering(x, _extents(shape)) if whole else None


def _extents(shape: tuple[int, ...]) -> Extents:
    channels, height, width = (*shape[1:], 1, 1, 1)[:3]
    return channels, height, width


def _follows(graph: Graph, node: Node, stacked: Collection[str]) -> bool:
    """Whether a node computes only elements of stacked maps, with constants that are equal for all channels."""
    constants = [graph.constants[name] for name in node.inputs if name in graph.constants]
    computed = [name for name in node.inputs if name and name not in graph.constants]
    if not computed or not all(name in stacked for name in computed):
        return False
    if node.op == "Reshape":
        return _extents(graph.shape(node.inputs[0])) == _extents(graph.shape(node.output))
    return node.op in UNARY | BINARY and all(each.size == 1 for each in constants)


def stacked_convolution(
    graph: Graph, node: Node, layer: Covering, names: tuple[str, str], fresh: Names
) -> tuple[Node, dict[str, Array]]:
    """The convolution of a fully connected layer between two stacked maps, and its weights if they change."""
    window: dict[str, Attr] = {"strides": (layer.sample[1], 1)}
    weight, constants = node.inputs[1], dict[str, Array]()
    if node.op == "Gemm":
        weights = graph.constants[weight]
        weight = fresh.new(f"{node.output}/kernel")
        constants[weight] = np.ascontiguousarray(weights.reshape(len(weights), *layer.sample))
    inputs = (names[0], weight, *node.inputs[2:])
    return replace(node, op="Conv", inputs=inputs, outputs=names[1:], attrs={**node.attrs, **window}), constants
