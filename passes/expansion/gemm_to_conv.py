"""Fully connected layers as convolutions, so that a flattened feature map needs no data movement."""

from __future__ import annotations

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops import rebuild
from npuc.passes.expansion.images import ImageLimits
from npuc.text.escaping import Names


@frozen
class GemmToConv:
    """Every Gemm on one row becomes a Conv, followed by a Reshape to the Gemm's row.

    After a flattened map (1, C, H, W) the kernel covers the map: (N, C, H, W). A plain vector is a 1x1 map with as
    many channels; a vector with more than the limits allow is folded into a map (C, H, W). The weights keep their
    order, so no value changes.

    limits: of the maps.
    most_extent: of a kernel, in each direction; a larger map is folded like a vector. None: unlimited.
    batches: whether a Gemm on several rows becomes a Conv on as many images.
    """

    limits: ImageLimits
    most_extent: int | None = None
    batches: bool = False
    __name__ = "gemm_to_conv"

    def __call__(self, graph: Graph) -> Graph:
        """The graph without Gemms on one row."""
        nodes: list[Node] = []
        constants, names = dict[str, Array](), graph.names()
        maps = {
            node.output: (node.inputs[0], graph.shape(node.inputs[0]))
            for node in graph.nodes
            if node.op == "Reshape" and self._covers(graph.shape(node.inputs[0]), graph.shape(node.output))
        }
        for node in graph.nodes:
            rows = graph.shape(node.inputs[0])[0] if node.op == "Gemm" else 0
            if (rows == 1 or (rows and self.batches)) and node.inputs[1] in graph.constants:
                nodes += self._as_conv(graph, node, constants, maps, names)
            else:
                nodes.append(node)
        return rebuild(graph, nodes, constants) if constants else graph

    def _covers(self, shape: tuple[int, ...], row: tuple[int, ...]) -> bool:
        """Whether a kernel may cover a map whose images are the rows."""
        limit = self.most_extent or max(shape, default=0)
        images = len(shape) == 4 and row[:1] == shape[:1] and (shape[0] == 1 or self.batches)
        return images and max(shape[2:]) <= limit

    def _as_conv(
        self,
        graph: Graph,
        node: Node,
        constants: dict[str, Array],
        maps: dict[str, tuple[str, tuple[int, ...]]],
        names: Names,
    ) -> list[Node]:
        """The convolution, with a Reshape before it if its input comes from no map, and one after it.

        maps: for every row the map (and its shape) with the same elements; the convolution's own is added.
        """
        before: list[Node] = []
        row, count = node.inputs[0], graph.shape(node.inputs[0])[0]
        if row not in maps:
            shape = (count, *self.limits.folded(graph.shape(row)[1], self.most_extent))
            vector = names.new(f"{node.output}/vector")
            before = [Node("Reshape", (row,), (vector,), {"shape": shape}, f"{node.name}/vector", node.sources)]
            maps[row] = vector, shape
        x, shape = maps[row]
        weights = graph.constants[node.inputs[1]]
        kernel, y = names.new(f"{node.output}/kernel"), names.new(f"{node.output}/map")
        constants[kernel] = np.ascontiguousarray(weights.reshape(len(weights), *shape[1:]))
        maps[node.output] = y, (count, len(weights), 1, 1)
        conv = Node("Conv", (x, kernel, *node.inputs[2:]), (y,), dict(node.attrs), node.name, node.sources)
        after = Node(
            "Reshape", (y,), node.outputs, {"shape": (count, len(weights))}, f"{node.name}/row", node.sources
        )
        return [*before, conv, after]
