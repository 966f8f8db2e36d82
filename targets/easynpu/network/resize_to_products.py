"""Interpolation as products with constant matrices."""

from __future__ import annotations

from functools import reduce
from math import prod

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import SCALES, SIZES
from npuc.ops.resize import interpolation, matrix_of
from npuc.passes.expansion.images import TIDY
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite

MOST_WEIGHTS = 1 << 22
"""The most elements of a matrix; a Resize that needs a larger one is not changed."""
MOST_JOINT = 64
"""The most elements of several axes together that share one matrix: it is rounded once, but is larger."""


def resize_to_products(graph: Graph) -> Graph:
    """Resize becomes a MatMul per axis whose size changes: the matrix (size, extent) of its weights times x.

    x is reshaped to (elements before the axis, extent, elements after it). Exact in every mode. Successive axes
    with few elements are treated as one, whose matrix is the Kronecker product.
    """
    return rewrite(graph, _resize, *TIDY)


def _resize(rewriter: Rewriter, node: Node) -> bool:
    shape, sizes = rewriter.shape(node.inputs[0]), SIZES(node) if node.op == "Resize" else ()
    axes = [axis for axis, size in enumerate(sizes) if size != shape[axis] or SCALES(node)[axis] != 1]
    if (
        not axes
        or max(shape[axis] * sizes[axis] for axis in axes) > MOST_WEIGHTS
        or not rewriter.types[node.inputs[0]].size
        or not only_float(rewriter, node.inputs[0])
    ):
        return False
    nodes: list[Node] = []
    x = node.inputs[0]

    def step(op: str, inputs: tuple[str, ...], extents: tuple[int, ...]) -> str:
        attrs = {"shape": extents} if op == "Reshape" else {}
        stem = f"{node.output}/{'x'.join(map(str, extents))}"
        nodes.append(rewriter.part(node, op, inputs, stem, **attrs))
        return nodes[-1].output

    for group in _joint(axes, shape):
        first, last = group[0], group[-1] + 1
        matrices = [weights(node, shape[axis], sizes[axis], SCALES(node)[axis]) for axis in group]
        matrix = reduce(np.kron, matrices)
        name = rewriter.constant(matrix, f"{node.output}/weights{first}")
        before, behind = prod(shape[:first]), prod(shape[last:])
        image = step("Reshape", (x,), (before, matrix.shape[1], behind))
        x = step("MatMul", (name, image), (before, matrix.shape[0], behind))
        shape = (*shape[:first], *sizes[first:last], *shape[last:])
    rewriter.replace(node, *nodes, rewriter.back(node, x))
    return True


def _joint(axes: list[int], shape: tuple[int, ...]) -> list[list[int]]:
    """The axes, in groups that share one matrix."""
    found: list[list[int]] = []
    for axis in axes:
        joins = found and found[-1][-1] == axis - 1
        if joins and prod(shape[each] for each in (*found[-1], axis)) <= MOST_JOINT:
            found[-1].append(axis)
        else:
            found.append([axis])
    return found


def weights(node: Node, extent: int, size: int, scale: float) -> Array:
    """(size, extent) float32: the weight of each input element in each output element of an axis."""
    return matrix_of(*interpolation(node, extent, size, scale), extent)
