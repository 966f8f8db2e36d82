"""Matrix products with constant matrices as 1x1 convolutions whose pixels are the rows."""

from __future__ import annotations

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.passes.expansion.images import TIDY, Shape, carried, extents, returned, sides
from npuc.passes.rewriting.patterns import only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite


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
    source, before = carried(rewriter, x, perms[0], image, node.sources)
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
    rewriter.replace(node, *before, conv, *returned(rewriter, y, perms[1], node.output, node.sources))
    return True
