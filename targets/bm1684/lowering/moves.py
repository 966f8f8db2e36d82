"""GDMA calls between views of system memory and tensors in local memory.

A call moves four dimensions; the innermost one is contiguous on both sides or has one element. A move of more
dimensions takes several calls.

A store can write any order at the cost of its runs; a view that is not contiguous is copied once more before it is
loaded, unless a few calls can load it. So a tensor is stored in the order that later Reshapes and Transposes make
contiguous, where that pays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import product
from math import prod

from npuc.frozen import frozen
from npuc.ir import Graph
from npuc.ops.attributes import PERM
from npuc.targets.bm1684.lowering.kernel import Call, Local, SystemPlace, call
from npuc.targets.bm1684.lowering.tensors import ELEMENT, SystemView, Tensor, local_shape, merge_dims
from npuc.targets.bm1684.machine import timing
from npuc.targets.bm1684.machine.local_memory import Dim4
from npuc.targets.bm1684.machine.parameters import Machine

MOST = 65_535
"""The largest extent of a dimension."""


@frozen
class _Dim:
    """A dimension of a move: its extent, and its stride on either side (a, b)."""

    extent: int
    a: int
    b: int


def loads(tensor: Tensor, view: SystemView, machine: Machine, stride: Dim4 | None = None) -> tuple[Call, ...]:
    """The calls that load a tensor from a view with the same four dimensions.

    stride: the tensor's strides, if it is part of a larger one.
    """
    return tuple(_move_calls(tensor, view, stride or tensor.stride(machine), machine, store=False))


def stores(view: SystemView, tensor: Tensor, machine: Machine, stride: Dim4 | None = None) -> tuple[Call, ...]:
    """The calls that store a tensor to a view with the same four dimensions."""
    return tuple(_move_calls(tensor, view, stride or tensor.stride(machine), machine, store=True))


def copies(to: SystemView, source: SystemView) -> tuple[Call, ...]:
    """The calls that copy a view to another one of the same shape."""
    dims = [dim for a, b in zip(to.axes, source.axes, strict=True) for dim in _refine(a, b)]
    calls: list[Call] = []
    for at, (n, c, h, w) in _blocks(_merge_dims(dims), 4):
        a, b = (_offset(at, side) for side in ("a", "b"))
        args = (
            SystemPlace(to.region, ELEMENT * (to.offset + a)),
            SystemPlace(source.region, ELEMENT * (source.offset + b)),
            Dim4(n.extent, c.extent, h.extent, w.extent),
            Dim4(n.a, c.a, h.a, w.a),
            Dim4(n.b, c.b, h.b, w.b),
        )
        calls.append(call("gdma_32bit_cpy_S2S", *args))
    return tuple(calls)


def price(calls: Iterable[Call], machine: Machine) -> int:
    """GDMA cycles of moves to, from and within system memory."""
    found = 0
    for each in calls:
        shape, to, source = each.args[2:5]
        assert isinstance(shape, Dim4) and isinstance(to, Dim4) and isinstance(source, Dim4)
        one = timing.cpy_L2S if each.name.endswith("L2S") else timing.cpy_S2L
        found += one(timing.move(shape, to, source), machine)
    return found


def copy(to: Tensor, source: Tensor, machine: Machine) -> Call:
    """The copy between local tensors, which may start at different NPUs."""
    return call("gdma_32bit_cpy_L2L", to.at, source.at, to.shape, to.stride(machine), source.stride(machine))


def _move_calls(
    tensor: Tensor, view: SystemView, stride: Dim4, machine: Machine, *, store: bool
) -> Iterator[Call]:
    n, c, h, w = (merge_dims(axis) for axis in view.axes)
    others = [*_steps(n, stride.n), *_steps(h, stride.h), *_steps(w, stride.w)]
    *outer, (channels, c_stride) = c
    blocks = list(_blocks(_merge_dims(others), 3))
    most = MOST // machine.npus * machine.npus
    pieces = [(start, min(most, channels - start)) for start in range(0, channels, most)]
    for index in product(*(range(extent) for extent, _ in outer)):
        first = 0
        for (extent, _), at in zip(outer, index, strict=True):
            first = first * extent + at
        base = sum(at * step for (_, step), at in zip(outer, index, strict=True))
        for (start, count), (at, (dn, dh, dw)) in product(pieces, blocks):
            begin = first * channels + start
            part = tensor.channels(begin, begin + count, machine) if begin else tensor
            system = SystemPlace(view.region, ELEMENT * (view.offset + base + start * c_stride + _offset(at, "a")))
            local = part.at.shift(ELEMENT * _offset(at, "b"))
            shape = Dim4(dn.extent, count, dh.extent, dw.extent)
            outside, inside = Dim4(dn.a, c_stride, dh.a, dw.a), Dim4(dn.b, stride.c, dh.b, dw.b)
            if store:
                yield call("gdma_32bit_cpy_L2S", system, local, shape, outside, inside)
            else:
                yield call("gdma_32bit_cpy_S2L", local, system, shape, inside, outside)


def _steps(axis: Sequence[tuple[int, int]], stride: int) -> list[_Dim]:
    """The dimensions of a view's axis, each with the corresponding stride in the local tensor."""
    found: list[_Dim] = []
    for extent, step in reversed(axis):
        found.insert(0, _Dim(extent, step, stride))
        stride *= extent
    return found


def _refine(a: Sequence[tuple[int, int]], b: Sequence[tuple[int, int]]) -> list[_Dim]:
    """The common refinement of an axis that two views split differently; one side's extents divide the other's."""
    left, right, found = list(merge_dims(a)), list(merge_dims(b)), list[_Dim]()
    while left and right:
        (m, s), (n, t) = left.pop(), right.pop()
        inner = min(m, n)
        found.insert(0, _Dim(inner, s, t))
        if m > inner:
            left.append((m // inner, s * inner))
        if n > inner:
            right.append((n // inner, t * inner))
    return found


def _merge_dims(dims: Sequence[_Dim]) -> list[_Dim]:
    """Equivalent dimensions, merged where possible; the last one is contiguous on both sides or of extent 1."""
    found: list[_Dim] = []
    for dim in dims:
        if dim.extent == 1:
            continue
        last = found[-1] if found else None
        nested = last is not None and (last.a, last.b) == (dim.a * dim.extent, dim.b * dim.extent)
        if last is not None and nested and last.extent * dim.extent <= MOST:
            found[-1] = replace(dim, extent=last.extent * dim.extent)
        else:
            found.append(dim)
    if not found or (found[-1].a, found[-1].b) != (1, 1):
        found.append(_Dim(1, 1, 1))
    return found


def _blocks(dims: list[_Dim], count: int) -> Iterator[tuple[list[tuple[int, _Dim]], list[_Dim]]]:
    """The last `count` dimensions in pieces of at most MOST, for every index of the preceding dimensions."""
    dims = [_Dim(1, 0, 0)] * (count - len(dims)) + dims
    outer, inner = dims[: len(dims) - count], dims[len(dims) - count :]
    starts = [range(0, dim.extent, MOST) for dim in inner]
    for index in product(*(range(dim.extent) for dim in outer), *starts):
        sizes = zip(inner, index[len(outer) :], strict=True)
        piece = [replace(dim, extent=min(MOST, dim.extent - start)) for dim, start in sizes]
        yield list(zip(index, (*outer, *inner), strict=True)), piece


def _offset(at: list[tuple[int, _Dim]], side: str) -> int:
    return sum(index * int(getattr(dim, side)) for index, dim in at)


DIRECT = 8
"""The most calls that load a view without a copy before."""


def order_for_moves(
    graph: Graph, name: str, tensor: Tensor, home: Callable[[str], SystemView], machine: Machine
) -> SystemView | None:
    """Where to store a tensor so that the result of its moves is contiguous; None if that does not pay.

    home: returns the contiguous view that a tensor of the graph is stored to.
    """
    end, moved = _follow_moves(graph, name)
    dims = [dim for axis in moved.axes for dim in axis if dim[0] > 1]
    if dims == sorted(dims, key=lambda dim: -dim[1]) or prod(tensor.shape) != prod(graph.shape(name)):
        return None
    steps = [prod(extent for extent, _ in dims[at + 1 :]) for at in range(len(dims))]
    before = sorted(zip(dims, steps, strict=True), key=lambda each: -each[0][1])
    axis = tuple((extent, step) for (extent, _), step in before)
    view = SystemView("", 0, (axis,)).reshape(graph.shape(name))
    if view is None or not _pays(graph.shape(name), view, moved, tensor, end in graph.outputs, machine):
        return None
    to = home(end)
    return SystemView(to.region, to.offset, view.axes)


def _follow_moves(graph: Graph, name: str) -> tuple[str, SystemView]:
    """The last of a chain of Reshapes and Transposes (sole readers), as a view of the contiguous tensor."""
    view = SystemView.continuous("", 0, graph.shape(name))
    reader = graph.only_reader(name)
    while reader is not None and reader.op in ("Reshape", "Transpose"):
        shape = graph.shape(reader.output)
        after = view.transpose(PERM(reader)) if reader.op == "Transpose" else view.reshape(shape)
        if after is None:
            break
        name, view = reader.output, after
        reader = graph.only_reader(name)
    return name, view


def _pays(
    shape: Sequence[int], view: SystemView, moved: SystemView, tensor: Tensor, delivered: bool, machine: Machine
) -> bool:
    """Whether a store in another order costs less than a plain one with the copy or loads that follow it."""
    stored = _store_calls(view, tensor, machine)
    plain = _store_calls(SystemView.continuous("", 0, shape), tensor, machine)
    if stored is None or plain is None:
        return False
    continuous = SystemView.continuous("", 0, moved.shape)
    after = price(copies(continuous, moved), machine)
    form = local_shape(moved.shape)
    if not delivered and len(moved.shape) > 2:
        local, as_it_is, at_once = Tensor(form, Local("")), moved.reshape(form), continuous.reshape(form)
        assert at_once is not None
        if as_it_is is not None and len(calls := loads(local, as_it_is, machine)) <= DIRECT:
            after = price(calls, machine) - price(loads(local, at_once, machine), machine)
    return price(stored, machine) < price(plain, machine) + after


def _store_calls(view: SystemView, tensor: Tensor, machine: Machine) -> tuple[Call, ...] | None:
    shaped = view.reshape(tensor.shape)
    return None if shaped is None else stores(shaped, tensor, machine)
