"""Matrix products as calls, in the matrix layout; long ones are split along K (result_add).

W, the columns per channel, is chosen by the cycles of the product first, then by bytes per NPU. A right or output
matrix costs ceil(C / X) * ceil(W / lanes) for each of its rows (timing); the document considers storage only: "W
should be modertately small for using more NPUs to store the matrix, but C is better not greater than the number of
NPUs".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Node
from npuc.targets.bm1684.lowering.context import Lowering
from npuc.targets.bm1684.lowering.elementwise import activation_calls
from npuc.targets.bm1684.lowering.kernel import Call, Local, call
from npuc.targets.bm1684.lowering.matrices import pad_columns
from npuc.targets.bm1684.lowering.tensors import ELEMENT, SystemView, Tensor, expect_view, merge_dims
from npuc.targets.bm1684.machine.local_memory import (
    Dim4,
    ceil_div,
    matrix_bytes,
    matrix_shape,
    okk_channle_num_per_npu,
)
from npuc.targets.bm1684.machine.parameters import Machine

PIECE_BYTES = 32 * 1024
"""Bytes of the right matrix in a piece, per NPU: small enough to be prefetched step by step."""


def gemm(lo: Lowering, node: Node) -> None:
    """Gemm: x * weights^T + bias, with constant weights (N, K)."""
    weights, bias = lo.graph.constant(node.inputs[1]), _bias(lo, node)
    if weights is None:
        raise lo.refusal(f"the weights '{node.inputs[1]}' are computed at run time")
    _constant_product(lo, node, weights.T, bias)


def matmul(lo: Lowering, node: Node) -> None:
    """The product of matrices, or of batches of them; the right one may be computed at run time."""
    right = lo.graph.shape(node.inputs[1])
    constant = lo.graph.constant(node.inputs[1])
    if constant is not None and max(right[:-2], default=1) == 1:
        _constant_product(lo, node, constant.reshape(right[-2:]), None)
    elif len(right) == 2 and len(lo.graph.shape(node.inputs[0])) == 2:
        N = right[1]
        W = best_width(right[0], N, lo.machine).W
        x, y = _load_left(lo, node.inputs[0]), lo.load(node.inputs[1], W)
        rows = lo.graph.shape(node.inputs[0])[0]
        out = lo.output(node.output, _shape(rows, N, W))
        lo.emit(_call(_Product(rows, right[0], N, x.shape.w, W), out, x.at, y.at, None, add=False))
        _finish(lo, node, out)
    else:
        _emit_batches(lo, node)


def _emit_batches(lo: Lowering, node: Node) -> None:
    """Emits one product after the other, with operands and results in system memory; batches are broadcast."""
    result, (left, right) = lo.graph.shape(node.output), (lo.graph.shape(name) for name in node.inputs)
    M, K, N = left[-2], right[-2], right[-1]
    batch = result[:-2]
    count = prod(batch)
    views = [
        _of_batch(lo, lo.view(name).broadcast((*batch, *shape[-2:])), count)
        for name, shape in zip(node.inputs, (left, right), strict=True)
    ]
    to, W = lo.destination(node.output), best_width(K, N, lo.machine).W
    target = expect_view(to.reshape((count, M, N)))
    for index in range(count):
        a, b, c = (_matrix_of(each, index) for each in (*views, target))
        x = lo.fetch(f"{node.output}/left", a, _shape(M, K, ceil_div(K, lo.machine.npus)))
        y = lo.fetch(f"{node.output}/right", b, _shape(K, N, W))
        out = lo.new_tensor(f"{node.output}/product", _shape(M, N, W))
        product = _call(_Product(M, K, N, x.shape.w, W), out, x.at, y.at, None, add=False)
        lo.emit(product, *activation_calls(node, out))
        lo.store(c, out)
    lo.define_view(node.output, to)


def _of_batch(lo: Lowering, view: SystemView, count: int) -> SystemView:
    """A batch as (count, rows, columns), every axis a single dimension."""
    shape = (count, *view.shape[-2:])
    found = view.reshape(shape)
    if found is None or any(len(merge_dims(axis)) > 1 for axis in found.axes):
        return expect_view(lo.make_continuous(view).reshape(shape))
    return found


def _matrix_of(view: SystemView, index: int) -> SystemView:
    return expect_view(expect_view(view.slice_axis(0, index, 1)).reshape(view.shape[1:]))


def _bias(lo: Lowering, node: Node) -> Array | None:
    if len(node.inputs) < 3 or not node.inputs[2]:
        return None
    bias = lo.graph.constant(node.inputs[2])
    N = lo.graph.shape(node.output)[1]
    if bias is None or bias.size not in (1, N):
        raise lo.refusal("the bias is not a constant per column")
    return np.broadcast_to(bias.reshape(-1), (N,))


@frozen
class _Product:
    """A product of left (rows, K), with `left_width` columns per channel, and right (K, N), with `width`."""

    rows: int
    K: int
    N: int
    left_width: int
    width: int


def _constant_product(lo: Lowering, node: Node, right: Array, bias: Array | None) -> None:
    """A product with a constant; if it does not fit, some rows at a time, through system memory."""
    (K, N), rows = right.shape, prod(lo.graph.shape(node.output)[:-1])
    W = best_width(K, N, lo.machine).W
    one = _shape(1, K, _left_width(lo, K)), _shape(1, N, W)
    row_bytes = sum(Tensor(shape, Local("")).bytes(lo.machine) for shape in one)
    most = max(1, lo.machine.local_bytes * 5 // 8 // row_bytes)
    if rows <= most:
        x = _load_left(lo, node.inputs[0])
        out = lo.output(node.output, _shape(rows, N, W))
        _multiply(lo, node, (x, out), right, bias, W)
        _finish(lo, node, out)
        return
    source, to = _rows(lo, lo.view(node.inputs[0])), lo.destination(node.output)
    if len(merge_dims(source.axes[0])) > 1 or len(merge_dims(source.axes[1])) > 1:
        source = lo.make_continuous(source)
    target = expect_view(to.reshape((rows, N)))
    for first in range(0, rows, most):
        count = min(most, rows - first)
        part, place = (expect_view(each.slice_axis(0, first, count)) for each in (source, target))
        x = lo.fetch(f"{node.output}/left", part, one[0]._replace(n=count))
        out = lo.new_tensor(f"{node.output}/product", one[1]._replace(n=count))
        _multiply(lo, node, (x, out), right, bias, W)
        lo.store(place, out)
    lo.define_view(node.output, to)


def _multiply(
    lo: Lowering, node: Node, operands: tuple[Tensor, Tensor], right: Array, bias: Array | None, W: int
) -> None:
    """Emits the product of all rows of the left matrix, with the right one in pieces if necessary."""
    (x, out), (K, N) = operands, right.shape
    rows = x.shape.n
    p = _Product(rows, K, N, x.shape.w, W)
    row_bytes = ceil_div(ceil_div(N, W), lo.machine.npus) * ceil_div(W, 32) * 128
    free = lo.free_bytes(x, out) // row_bytes - 1
    pieces, pairs = [(0, K)], [(x, out)]
    if rows == 1 or free < K:  # one row at a time: the call has no N stride for a part of the columns
        pieces = list(_pieces(p, PIECE_BYTES // row_bytes, free))
        pairs = [(x.image(row, lo.machine), out.image(row, lo.machine)) for row in range(rows)]
        p = replace(p, rows=1)
    for first, behind in pieces:
        part = right[first:behind].copy(order="K")  # read in the order of memory: the matrix is often a transpose
        at, bias_at = _image(lo, part, bias if first == 0 else None, W)
        piece = replace(p, K=behind - first, left_width=min(p.left_width, behind - first))
        calls = [_call(piece, b, _columns(a, first, lo), at, bias_at, add=first > 0) for a, b in pairs]
        lo.emit(*calls, *(activation_calls(node, out) if behind == K else ()))


def _columns(left: Tensor, first: int, lo: Lowering) -> Local:
    """The address of column `first` in a row of the left matrix."""
    channel, column = divmod(first, left.shape.w)
    return left.channels(channel, left.shape.c, lo.machine).at.shift(ELEMENT * column)


def _pieces(p: _Product, most: int, free: int) -> Iterator[tuple[int, int]]:
    """Row ranges [first, behind) of the right matrix: whole channels of the left one, or parts of a large one."""
    width = p.left_width
    most = min(most, free)
    step = max(1, most // width) * width if free >= width else max(32, most // 32 * 32)
    first = 0
    while first < p.K:
        behind = min(p.K, first + step, *(() if step >= width else ((first // width + 1) * width,)))
        yield first, behind
        first = behind


def _image(lo: Lowering, right: Array, bias: Array | None, W: int) -> tuple[Local, Local | None]:
    """Places the right matrix and the bias, as one more row, in the matrix layout; returns both addresses."""
    rows = right if bias is None else np.concatenate([right, bias[np.newaxis]])
    C, npus = ceil_div(right.shape[1], W), lo.machine.npus
    at = lo.constant(f"{lo.node.output}/weights", pad_columns(rows, Dim4(len(rows), C, 1, W))).at
    row_bytes = ELEMENT * ceil_div(C, npus) * ceil_div(W, 32) * 32
    return at, None if bias is None else at.shift(row_bytes * len(right))


def _load_left(lo: Lowering, name: str) -> Tensor:
    """The left operand in local memory, as (rows, C, 1, W)."""
    shape = lo.graph.shape(name)
    if len(shape) < 3:
        return lo.load(name)
    form = _shape(prod(shape[:-1]), shape[-1], _left_width(lo, shape[-1]))
    return lo.fetch(f"{name}/matrix", _rows(lo, lo.view(name)), form)


def _left_width(lo: Lowering, K: int) -> int:
    """W of a left matrix with K columns that is loaded for a product."""
    width = max(w for w in range(1, 129) if K % w == 0)
    return width if K // width <= CHANNELS_MOST else ceil_div(K, lo.machine.npus)


def _rows(lo: Lowering, view: SystemView) -> SystemView:
    """All matrices of a batch, stacked into one."""
    return lo.reshape(view, (prod(view.shape[:-1]), view.shape[-1]))


def _shape(rows: int, N: int, W: int) -> Dim4:
    return Dim4(rows, ceil_div(N, W), 1, W)


def _call(p: _Product, out: Tensor, left: Local, right: Local, bias: Local | None, *, add: bool) -> Call:
    columns = ceil_div(p.N, p.width) * p.width  # with the padding of a partial last channel
    widths = (p.left_width, p.width)
    operands = (left, right, bias or right)
    return call("bdc_matmul", out.at, *operands, p.rows, p.K, columns, *widths, bias is not None, add, adds=add)


def _finish(lo: Lowering, node: Node, out: Tensor) -> None:
    """Defines the result; one of more than two dimensions is stored to system memory."""
    if len(lo.graph.shape(node.output)) < 3:
        lo.define(node.output, out)
        return
    view = lo.destination(node.output)
    lo.store(expect_view(view.reshape((out.shape.n, lo.graph.shape(node.output)[-1]))), out)
    lo.define_view(node.output, view)


CHANNELS_MOST = 4095
"""The most channels of a matrix in a product."""
WORDS = 32
"""Columns of a channel take a multiple of so many words."""


@frozen
class Width:
    """A choice of W for a matrix that starts at an NPU."""

    W: int
    channels: int
    """C = ceil(M / W)."""
    cycles_per_row: int
    """Groups per row of a right or output matrix, to which a product's cost is proportional."""
    bytes_per_npu: int
    """For all rows, empty blocks included."""
    npus: int
    """The number of NPUs with columns."""
    advised: bool
    """Whether the document advises it: C is not greater than the number of NPUs."""


def width(rows: int, cols: int, W: int, machine: Machine, start_idx: int = 0) -> Width:
    """The cost of a matrix with W columns per channel. Raises DoesNotFit (E302) unless W is in 1..cols."""
    channels = matrix_shape(rows, cols, W).c
    groups = okk_channle_num_per_npu(start_idx, channels, machine) * ceil_div(W, machine.lanes)
    size = matrix_bytes(rows, cols, W, start_idx, machine)
    return Width(W, channels, groups, size, min(channels, machine.npus), channels <= machine.npus)


def best_width(rows: int, cols: int, machine: Machine, start_idx: int = 0) -> Width:
    """The W with the fewest cycles, then the fewest bytes, then the one that uses the most NPUs."""
    return min(widths(rows, cols, machine, start_idx), key=_order)


def widths(rows: int, cols: int, machine: Machine, start_idx: int = 0) -> list[Width]:
    """The choices for a product, with at most 4095 channels: of successive W that cost the same, the first."""
    least = ceil_div(cols, CHANNELS_MOST)
    fewer_channels = {ceil_div(cols, channels) for channels in range(1, min(cols, CHANNELS_MOST) + 1)}
    more_groups, more_bytes = (range(1, cols + 1, step) for step in (machine.lanes, WORDS))
    firsts = sorted(W for W in {*fewer_channels, *more_groups, *more_bytes} if least <= W)
    return [width(rows, cols, W, machine, start_idx) for W in firsts]


def alternatives(rows: int, cols: int, machine: Machine, count: int = 8, start_idx: int = 0) -> list[Width]:
    """The best choices in order, one for each pair of cycles and bytes."""
    found: dict[tuple[int, int], Width] = {}
    for each in sorted(widths(rows, cols, machine, start_idx), key=_order):
        found.setdefault((each.cycles_per_row, each.bytes_per_npu), each)
    return list(found.values())[:count]


def _order(choice: Width) -> tuple[int, int, int, int]:
    return choice.cycles_per_row, choice.bytes_per_npu, -choice.npus, choice.W
