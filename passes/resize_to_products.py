"""Interpolation as products with constant matrices, one axis after the other."""

from __future__ import annotations

from math import prod

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.ops.resize import interpolation, scales_of
from npuc.passes.images import TIDY
from npuc.passes.rewriting import Draft, rewrite


def resize_to_products(graph: Graph) -> Graph:
    """Resize becomes a MatMul per axis whose size changes: the matrix (size, extent) of its weights times x.

    x is reshaped to (elements before the axis, extent, elements behind it). Exact in every mode.
    """
    return rewrite(graph, _resize, *TIDY)


def _resize(draft: Draft, node: Node) -> bool:
    shape, sizes = draft.shape(node.inputs[0]), node.integers("sizes") if node.op == "Resize" else ()
    axes = [axis for axis, size in enumerate(sizes) if size != shape[axis] or scales_of(node)[axis] != 1]
    if not axes or not draft.types[node.inputs[0]].size:
        return False
    nodes: list[Node] = []
    x = node.inputs[0]

    def step(op: str, inputs: tuple[str, ...], extents: tuple[int, ...]) -> str:
        y = draft.fresh(f"{node.output}/{'x'.join(map(str, extents))}")
        attrs = {"shape": extents} if op == "Reshape" else {}
        nodes.append(Node(op, inputs, (y,), attrs, y, node.sources))
        return y

    for axis in axes:
        extent, size = shape[axis], sizes[axis]
        before, behind = prod(shape[:axis]), prod(shape[axis + 1 :])
        matrix = draft.constant(weights(node, extent, size, scales_of(node)[axis]), f"{node.output}/weights{axis}")
        image = step("Reshape", (x,), (before, extent, behind))
        x = step("MatMul", (matrix, image), (before, size, behind))
        shape = (*shape[:axis], size, *shape[axis + 1 :])
    back = Node("Reshape", (x,), node.outputs, {"shape": sizes}, node.output, node.sources)
    draft.replace(node, *nodes, back)
    return True


def weights(node: Node, extent: int, size: int, scale: float) -> Array:
    """(size, extent) float32: how much of each input element is in each output element of an axis."""
    matrix = np.zeros((size, extent), np.float32)
    for index, weight in zip(*interpolation(node, extent, size, scale), strict=True):
        np.add.at(matrix, (np.arange(size), index), weight)
    return matrix
