"""Moves of matrices whose last channel is partial, which leave no word in local memory undefined.

A matrix (M, K) is stored as (M, C, 1, W) with C * W >= K columns. The padding columns repeat the last column, so
that calls on whole channels only compute with values that the tensor contains anyway.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from npuc.ir import Array
from npuc.targets.bm1684.lowering import moves
from npuc.targets.bm1684.lowering.kernel import Call, SystemPlace, call
from npuc.targets.bm1684.lowering.tensors import ELEMENT, SystemView, Tensor, expect_view, merge_dims
from npuc.targets.bm1684.machine.local_memory import Dim4, block
from npuc.targets.bm1684.machine.parameters import Machine


def pad_columns(values: Array, shape: Dim4) -> Array:
    """A matrix (M, K) as (M, C, 1, W), padded with copies of its last column."""
    columns = shape.c * shape.w
    if columns == values.shape[1]:
        return values.reshape(shape)
    return np.pad(values, ((0, 0), (0, columns - values.shape[1])), mode="edge").reshape(shape)


def loads(tensor: Tensor, view: SystemView, machine: Machine) -> tuple[Call, ...]:
    """The calls that fill (M, C, 1, W) from a view (M, K) whose column axis is a single dimension."""
    (_, columns), shape = view.shape, tensor.shape
    parts = list(_parts(tensor, columns, machine))
    calls = [
        each
        for part, first, stride in parts
        for each in moves.loads(part, _columns(view, first, part.shape), machine, stride)
    ]
    row_stride = _whole_rows(view, tensor)
    if row_stride is not None:
        system = SystemPlace(view.region, ELEMENT * view.offset)
        extents = (shape.n, columns, shape.w, row_stride)
        calls = [call("gdma_32bit_matrix_S2L", tensor.at, system, *extents)]
    rest = shape.c * shape.w - columns
    if rest == 0:
        return tuple(calls)
    last, first, stride = parts[-1]
    behind = Tensor(Dim4(shape.n, 1, rest, 1), last.at.shift(ELEMENT * (columns - first)))
    column = expect_view(view.slice_axis(1, columns - 1, 1))
    repeated = expect_view(column.broadcast((shape.n, rest)).reshape(behind.shape))
    return (*calls, *moves.loads(behind, repeated, machine, stride._replace(h=1)))


def stores(view: SystemView, tensor: Tensor, machine: Machine) -> tuple[Call, ...]:
    """The calls that store the K columns of (M, C, 1, W) to a view (M, K) whose column axis is one dimension."""
    columns, shape = view.shape[1], tensor.shape
    row_stride = _whole_rows(view, tensor)
    if row_stride is not None:
        system = SystemPlace(view.region, ELEMENT * view.offset)
        return (call("gdma_32bit_matrix_L2S", system, tensor.at, shape.n, columns, shape.w, row_stride),)
    calls: list[Call] = []
    for part, first, stride in _parts(tensor, columns, machine):
        calls += moves.stores(_columns(view, first, part.shape), part, machine, stride)
    return tuple(calls)


def _parts(tensor: Tensor, columns: int, machine: Machine) -> Iterator[tuple[Tensor, int, Dim4]]:
    """The whole channels, then the partial one, each with its first column and the strides of the matrix."""
    stride, shape = tensor.stride(machine), tensor.shape
    whole, rest = divmod(columns, shape.w)
    if whole:
        yield replace(tensor, shape=shape._replace(c=whole)), 0, stride
    if rest:
        npu, row = block(whole, tensor.at.npu, machine)
        at = replace(tensor.at, npu=npu).shift(ELEMENT * row * stride.c)
        yield Tensor(Dim4(shape.n, 1, 1, rest), at), whole * shape.w, stride


def _columns(view: SystemView, first: int, shape: Dim4) -> SystemView:
    return expect_view(expect_view(view.slice_axis(1, first, shape.c * shape.w)).reshape(shape))


def _whole_rows(view: SystemView, tensor: Tensor) -> int | None:
    """The row stride if one matrix call can move the view: from NPU 0, extents up to 65,535; else None."""
    rows, columns = (merge_dims(axis) for axis in view.axes)
    if len(rows) != 1 or columns != ((view.shape[1], 1),) or tensor.at.npu or max(view.shape) > moves.MOST:
        return None
    ((count, stride),) = rows
    if count == 1:
        return view.shape[1]
    return stride if stride >= view.shape[1] else None
