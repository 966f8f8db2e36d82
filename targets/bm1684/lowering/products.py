"""Matrix products as calls, in the matrix layout; long ones in pieces of the common dimension (result_add)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from npuc.ir import Array, Node
from npuc.targets.bm1684.lowering.context import Lowering
from npuc.targets.bm1684.lowering.elementwise import activation
from npuc.targets.bm1684.lowering.kernel import Call, Local
from npuc.targets.bm1684.lowering.matrices import padded
from npuc.targets.bm1684.lowering.tensors import ELEMENT, Tensor
from npuc.targets.bm1684.machine.local_memory import Dim4, ceil_div
from npuc.targets.bm1684.machine.matrix_width import best_width

PIECE_BYTES = 32 * 1024
"""Of the right matrix in each NPU: small enough to be prefetched step by step."""


def gemm(lo: Lowering, node: Node) -> None:
    """alpha * x * weights^T + beta * bias, weights (N, K) constant."""
    weights, bias = lo.graph.constant(node.inputs[1]), _bias(lo, node)
    if weights is None:
        raise lo.refusal(f"the weights '{node.inputs[1]}' are computed at run time")
    _constant_product(lo, node, weights.T, bias)


def matmul(lo: Lowering, node: Node) -> None:
    """The product of two matrices, of which the right one may be computed at run time."""
    left, right = (lo.graph.shape(name) for name in node.inputs)
    if len(right) != 2 or len(left) < 2 or any(extent != 1 for extent in left[:-2]):
        raise lo.refusal(f"the shapes are {list(left)} and {list(right)}")
    constant = lo.graph.constant(node.inputs[1])
    if constant is not None:
        _constant_product(lo, node, constant, None)
        return
    N = right[1]
    W = best_width(right[0], N, lo.machine).W
    x, y = _left(lo, node.inputs[0]), lo.local(node.inputs[1], W)
    out = lo.output(node.output, _shape(left[-2], N, W))
    lo.emit(_call(_Product(left[-2], right[0], N, x.shape.w, W), out, x.at, y.at, None, add=False))
    _finish(lo, node, out)


def _bias(lo: Lowering, node: Node) -> Array | None:
    if len(node.inputs) < 3 or not node.inputs[2]:
        return None
    bias = lo.graph.constant(node.inputs[2])
    N = lo.graph.shape(node.output)[1]
    if bias is None or bias.size not in (1, N):
        raise lo.refusal("the bias is not a constant per column")
    return np.broadcast_to(bias.reshape(-1), (N,))


@dataclass(frozen=True)
class _Product:
    """Left (rows, K) in channels of `left_width` columns, right (K, N) in channels of `width` columns."""

    rows: int
    K: int
    N: int
    left_width: int
    width: int


def _constant_product(lo: Lowering, node: Node, right: Array, bias: Array | None) -> None:
    K, N = right.shape
    rows = lo.graph.shape(node.output)[-2] if len(lo.graph.shape(node.output)) > 1 else 1
    W = best_width(K, N, lo.machine).W
    x = _left(lo, node.inputs[0])
    out = lo.output(node.output, _shape(rows, N, W))
    p = _Product(rows, K, N, x.shape.w, W)
    row_bytes = ceil_div(ceil_div(N, W), lo.machine.npus) * ceil_div(W, 32) * 128
    room = lo.room(x, out) // row_bytes - 1
    pieces, pairs = [(0, K)], [(x, out)]
    if rows == 1 or room < K:  # a piece for one row after the other: the call has no N stride for a part of them
        pieces = list(_pieces(p, PIECE_BYTES // row_bytes, room))
        pairs = [(x.image(row, lo.machine), out.image(row, lo.machine)) for row in range(rows)]
        p = replace(p, rows=1)
    for first, behind in pieces:
        at, bias_at = _image(lo, right[first:behind], bias if first == 0 else None, W)
        piece = replace(p, K=behind - first, left_width=min(p.left_width, behind - first))
        calls = [_call(piece, b, _columns(a, first, lo), at, bias_at, add=first > 0) for a, b in pairs]
        lo.emit(*calls, *(activation(node, out) if behind == K else ()))
    _finish(lo, node, out)


def _columns(left: Tensor, first: int, lo: Lowering) -> Local:
    """Where one row of the left matrix has its columns from `first` on."""
    channel, column = divmod(first, left.shape.w)
    return left.channels(channel, left.shape.c, lo.machine).at.shifted(ELEMENT * column)


def _pieces(p: _Product, most: int, room: int) -> Iterator[tuple[int, int]]:
    """Rows [first, behind) of the right matrix: whole channels of the left one, or parts of one too large."""
    width = p.left_width
    most = min(most, room)
    step = max(1, most // width) * width if room >= width else max(32, most // 32 * 32)
    first = 0
    while first < p.K:
        behind = min(p.K, first + step, *(() if step >= width else ((first // width + 1) * width,)))
        yield first, behind
        first = behind


def _image(lo: Lowering, right: Array, bias: Array | None, W: int) -> tuple[Local, Local | None]:
    """Rows of the right matrix and, behind them, the bias as one more row, in the matrix layout."""
    rows = right if bias is None else np.concatenate([right, bias[np.newaxis]])
    C, npus = ceil_div(right.shape[1], W), lo.machine.npus
    at = lo.constant(f"{lo.node.output}/weights", padded(rows, Dim4(len(rows), C, 1, W))).at
    row_bytes = ELEMENT * ceil_div(C, npus) * ceil_div(W, 32) * 32
    return at, None if bias is None else at.shifted(row_bytes * len(right))


def _left(lo: Lowering, name: str) -> Tensor:
    """The left operand in local memory, as (rows, C, 1, W)."""
    x, shape = lo.local(name), lo.graph.shape(name)
    if len(shape) < 3:
        return x
    width = max(w for w in range(1, 129) if shape[-1] % w == 0)
    return lo.fetch(f"{name}/matrix", lo.view(name), Dim4(shape[-2], shape[-1] // width, 1, width))


def _shape(rows: int, N: int, W: int) -> Dim4:
    return Dim4(rows, ceil_div(N, W), 1, W)


def _call(p: _Product, out: Tensor, left: Local, right: Local, bias: Local | None, *, add: bool) -> Call:
    columns = ceil_div(p.N, p.width) * p.width  # of a partial last channel too: they repeat the last column
    args = (
        out.at, left, right, bias or right, p.rows, p.K, columns, p.left_width, p.width, bias is not None, add,
    )  # fmt: skip
    reads = (left.buffer, right.buffer, *((out.at.buffer,) if add else ()))
    return Call("bdc_matmul", args, reads, out.at.buffer)


def _finish(lo: Lowering, node: Node, out: Tensor) -> None:
    """Defines the result; one of more than two dimensions goes through system memory."""
    if len(lo.graph.shape(node.output)) < 3:
        lo.define(node.output, out)
        return
    view = lo.destination(node.output)
    matrix = view.reshaped((out.shape.n, lo.graph.shape(node.output)[-1]))
    assert matrix is not None
    lo.store(matrix, out)
    lo.define_view(node.output, view)
