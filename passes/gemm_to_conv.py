"""Fully connected layers as convolutions, so that a flattened feature map needs no data movement."""

from __future__ import annotations

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.ops import rebuild

MOST_CHANNELS = 256
MOST_POSITIONS = 64


def gemm_to_conv(graph: Graph) -> Graph:
    """Every Gemm on one row becomes a Conv, followed by a Reshape to the row that the Gemm gave.

    Behind a flattened map (1, C, H, W) the kernel covers the map: (N, C, H, W). A plain vector of K <= 256
    elements is a 1x1 map of K channels; a longer one is folded into a map (C, H, W) with C <= 256, H*W <= 64.
    The weights keep their order, so no value changes.
    """
    nodes: list[Node] = []
    constants: dict[str, Array] = {}
    for node in graph.nodes:
        if node.op == "Gemm" and graph.shape(node.inputs[0])[0] == 1 and node.inputs[1] in graph.constants:
            nodes += _as_conv(graph, node, constants)
        else:
            nodes.append(node)
    return rebuild(graph, nodes, constants) if constants else graph


def _as_conv(graph: Graph, node: Node, constants: dict[str, Array]) -> list[Node]:
    weights = graph.constants[node.inputs[1]]
    x, before = _map_behind(graph, node)
    shape = graph.shape(x) if not before else before[0].integers("shape")
    kernel, y = f"{node.output}/kernel", f"{node.output}/map"
    constants[kernel] = np.ascontiguousarray(weights.reshape(len(weights), *shape[1:]))
    inputs = (before[0].output if before else x, kernel, *node.inputs[2:])
    conv = Node("Conv", inputs, (y,), dict(node.attrs), node.name, node.sources)
    row = Node("Reshape", (y,), node.outputs, {"shape": (1, len(weights))}, f"{node.name}/row", node.sources)
    return [*before, conv, row]


def _map_behind(graph: Graph, node: Node) -> tuple[str, list[Node]]:
    """The map (1, C, H, W) that the Gemm reads, through its Reshape or by a new one."""
    x = node.inputs[0]
    producer = graph.producers.get(x)
    if producer is not None and producer.op == "Reshape":
        shape = graph.shape(producer.inputs[0])
        if len(shape) == 4 and shape[0] == 1:
            return producer.inputs[0], []
    shape = (1, *folded(graph.shape(x)[1]))
    name = f"{node.output}/vector"
    return x, [Node("Reshape", (x,), (name,), {"shape": shape}, f"{node.name}/vector", node.sources)]


def folded(elements: int) -> tuple[int, int, int]:
    """(C, H, W) with C*H*W = elements: one position if C <= 256, else as few positions as fill whole words.

    >>> folded(128), folded(640)
    ((128, 1, 1), (160, 2, 2))
    """
    if elements <= MOST_CHANNELS:
        return elements, 1, 1
    for multiple in (16, 1):
        for positions in range(2, MOST_POSITIONS + 1):
            channels = elements // positions
            if elements % positions == 0 and channels <= MOST_CHANNELS and channels % multiple == 0:
                return channels, *_sides(positions)
    return elements, 1, 1


def _sides(positions: int) -> tuple[int, int]:
    """The factors of a number that are nearest to a square, the smaller first."""
    height = next(side for side in range(int(positions**0.5), 0, -1) if positions % side == 0)
    return height, positions // height
