"""Matrix products with constant matrices as 1x1 convolutions whose pixels are the rows."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.passes.images import TIDY, Shape, carried, returned, sides
from npuc.passes.patterns import only_float
from npuc.passes.rewriting import Draft, rewrite


def products_to_convs(graph: Graph) -> Graph:
    """Gemm on several rows, and MatMul of which one factor is constant, become a 1x1 Conv.

    The axis that is summed over becomes channels, all others of the computed factor x pixels. Where the constant
    has a matrix for every matrix of x, these axes are channels too, and the Conv has groups. A Gemm on one row
    and a product of two computed tensors stay.
    """
    return rewrite(graph, _gemm, _vectors, _matmul, *TIDY)


def _gemm(draft: Draft, node: Node) -> bool:
    if node.op != "Gemm" or draft.shape(node.inputs[0])[0] == 1 or node.inputs[1] not in draft.constants:
        return False
    rows, columns = draft.shape(node.inputs[0])
    if not rows * columns or not only_float(draft, node.inputs[0]):
        return False
    taps = draft.constants[node.inputs[1]]
    return _as_conv(draft, node, node.inputs[0], taps, (1, columns, *sides(rows)), ((1, 0), (1, 0)))


def _vectors(draft: Draft, node: Node) -> bool:
    """A factor of a MatMul that has one axis gets a second one of extent 1; the result loses it again."""
    if node.op != "MatMul" or all(len(draft.shape(name)) > 1 for name in node.inputs):
        return False
    nodes: list[Node] = []
    inputs: list[str] = []
    for name, axis in zip(node.inputs, (0, 1), strict=True):
        shape = draft.shape(name)
        matrix = tuple(np.insert(shape, axis, 1).tolist()) if len(shape) == 1 else shape
        if name in draft.constants:
            inputs.append(draft.constant(draft.constants[name].reshape(matrix), f"{node.output}/matrix"))
        else:
            x, before = carried(draft, name, range(len(shape)), matrix, node.sources)
            inputs.append(x)
            nodes += before
    product = draft.fresh(f"{node.output}/product")
    back = {"shape": draft.shape(node.output)}
    inner = replace(node, inputs=tuple(inputs), outputs=(product,))
    draft.replace(node, *nodes, inner, Node("Reshape", (product,), node.outputs, back, node.output, node.sources))
    return True


def _matmul(draft: Draft, node: Node) -> bool:
    """x (.., M, K) times w (.., K, N), or w (.., M, K) times x (.., K, N)."""
    constants = [name in draft.constants for name in node.inputs]
    if node.op != "MatMul" or constants.count(True) != 1 or not draft.types[node.output].size:
        return False
    first = constants[1]
    x, w = node.inputs if first else node.inputs[::-1]
    if not only_float(draft, x, w):
        return False
    shape, taps = draft.shape(x), draft.constants[w]
    taps = taps.swapaxes(-1, -2) if first else taps
    rank = len(draft.shape(node.output))
    batch, stacks = ((*(1,) * (rank - len(each)), *each[:-2]) for each in (shape, taps.shape))
    summed, free = (rank - 1, rank - 2) if first else (rank - 2, rank - 1)
    columns, rows = taps.shape[-1], shape[-2 if first else -1]
    inner = (*range(rank - 2), summed, free)
    outer = (summed, *range(rank - 2), free)
    if prod(stacks) == 1:
        image = (1, columns, *sides(prod(batch) * rows))
        return _as_conv(draft, node, x, taps.reshape(-1, columns), image, (outer, outer))
    if prod(batch) == 1:
        return _as_conv(draft, node, x, taps.reshape(-1, columns), (1, columns, *sides(rows)), (inner, inner))
    if any(stack not in (1, extent) for stack, extent in zip(stacks, batch, strict=True)):
        return False
    stacked = np.broadcast_to(taps, (*batch, *taps.shape[-2:])).reshape(-1, columns)
    image = (1, prod(batch) * columns, *sides(rows))
    return _as_conv(draft, node, x, stacked, image, (inner, inner), prod(batch))


def _as_conv(
    draft: Draft,
    node: Node,
    x: str,
    taps: Array,
    image: Shape,
    perms: tuple[Shape, Shape],
    group: int = 1,
) -> bool:
    """A Conv in place of the product.

    taps: (Co, Ci / group); perms: the order of the axes of x, and of those of the result, in the images.
    """
    source, before = carried(draft, x, perms[0], image, node.sources)
    kernel = draft.constant(np.ascontiguousarray(taps[:, :, None, None]), f"{node.output}/kernel")
    y = draft.fresh(f"{node.output}/image")
    conv = Node(
        "Conv",
        (source, kernel, *(node.inputs[2:] if node.op == "Gemm" else ())),
        (y,),
        {**node.attrs, "group": group},
        node.name,
        node.sources,
    )
    draft.replace(node, *before, conv, *returned(draft, y, perms[1], node.output, node.sources))
    return True
