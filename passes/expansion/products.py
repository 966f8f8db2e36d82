"""Fully connected layers and products with constant matrices as convolutions.

A flattened feature map then needs no data movement; the rows of a product are pixels.
"""

from __future__ import annotations

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops import rebuild
from npuc.passes.expansion.images import TIDY, ImageLimits, Shape, extents, from_image, sides, to_image
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite
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
            shape = (count, *self.limits.fold(graph.shape(row)[1], self.most_extent))
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


def products_to_convs(graph: Graph) -> Graph:
    """Gemm on several rows, and MatMul by a constant, become a 1x1 Conv.

    The summed axis becomes channels, all other axes of the computed factor pixels. If the constant has a matrix
    for every matrix of x, the Conv has groups. A Gemm on one row and a product of two computed tensors are left
    unchanged.
    """
    return rewrite(graph, _gemm, _matmul, *TIDY)


def _gemm(rewriter: Rewriter, node: Node) -> bool:
    if node.op != "Gemm" or rewriter.shape(node.inputs[0])[0] == 1 or node.inputs[1] not in rewriter.constants:
        return False
    rows, columns = rewriter.shape(node.inputs[0])
    if not rows * columns or not only_float(rewriter, node.inputs[0]):
        return False
    taps = rewriter.constants[node.inputs[1]]
    return _as_conv(rewriter, node, node.inputs[0], taps, (1, columns, *sides(rows)), ((1, 0), (1, 0)))


def _matmul(rewriter: Rewriter, node: Node) -> bool:
    """x (.., M, K) times w (.., K, N), or w (.., M, K) times x (.., K, N).

    Of the axes before the matrices, those that only x has become pixels, those that only w has output channels,
    and those that both have groups.
    """
    constants = [name in rewriter.constants for name in node.inputs]
    if node.op != "MatMul" or constants.count(True) != 1 or not rewriter.types[node.output].size:
        return False
    first = constants[1]
    x, w = node.inputs if first else node.inputs[::-1]
    if not only_float(rewriter, x, w) or not rewriter.types[x].size:
        return False
    shape, taps = rewriter.shape(x), rewriter.constants[w]
    taps = taps.swapaxes(-1, -2) if first else taps
    rank = len(rewriter.shape(node.output))
    batch, stacks = ((*(1,) * (rank - len(each)), *each[:-2]) for each in (shape, taps.shape))
    summed, free = (rank - 1, rank - 2) if first else (rank - 2, rank - 1)
    alone = [axis for axis in range(rank - 2) if batch[axis] == 1]
    shared = [axis for axis in range(rank - 2) if batch[axis] > 1 == stacks[axis]]
    paired = [axis for axis in range(rank - 2) if batch[axis] > 1 < stacks[axis]]
    matrices = taps.reshape(*stacks, *taps.shape[-2:]).transpose(*paired, *alone, *shared, rank - 2, rank - 1)
    columns, rows, group = taps.shape[-1], shape[-2 if first else -1], extents(batch, paired)
    image = (1, group * columns, *sides(extents(batch, shared) * rows))
    inner, outer = (*alone, *paired, summed, *shared, free), (*paired, *alone, summed, *shared, free)
    return _as_conv(rewriter, node, x, matrices.reshape(-1, columns), image, (inner, outer), group)


def _as_conv(
    rewriter: Rewriter, node: Node, x: str, taps: Array, image: Shape, perms: tuple[Shape, Shape], group: int = 1
) -> bool:
    """Replaces the product by a Conv.

    taps: (Co, Ci / group); perms: the order of the axes of x, and of the result, in the images.
    """
    source, before = to_image(rewriter, x, perms[0], image, node.sources)
    kernel = rewriter.constant(np.ascontiguousarray(taps[:, :, None, None]), f"{node.output}/kernel")
    y = rewriter.fresh(f"{node.output}/image")
    conv = Node(
        "Conv",
        (source, kernel, *(node.inputs[2:] if node.op == "Gemm" else ())),
        (y,),
        {**node.attrs, "group": group},
        node.name,
        node.sources,
    )
    rewriter.replace(node, *before, conv, *from_image(rewriter, y, perms[1], node.output, node.sources))
    return True
