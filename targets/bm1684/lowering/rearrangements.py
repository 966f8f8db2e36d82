"""Operators that only move elements: views of system memory where that is free, copies where it is not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import prod

import numpy as np

from npuc.ir import Node
from npuc.ops.attributes import (
    AXES,
    AXIS,
    BLOCK_MODE,
    BLOCKSIZE,
    PAD_MODE,
    PERM,
    SIDES,
    SPLIT,
    STARTS,
    STEPS,
    VALUE,
)
from npuc.targets.bm1684.lowering import moves
from npuc.targets.bm1684.lowering.context import WEIGHTS, Lowering
from npuc.targets.bm1684.lowering.kernel import call
from npuc.targets.bm1684.lowering.tensors import ELEMENT, SystemView, Tensor, expect_view, local_shape
from npuc.targets.bm1684.machine.local_memory import Dim4


def reshape(lo: Lowering, node: Node) -> None:
    """Reshape: free between (N, C, H, W) and a matrix (N, C * H * W) with H * W columns per channel."""
    name, shape = node.inputs[0], lo.graph.shape(node.output)
    if lo.is_local(name):
        same = _same_bytes(lo.load(name), lo.graph.shape(name), shape)
        if same is not None:
            lo.define(node.output, same)
            return
        if node.output in lo.outputs and len(lo.graph.shape(name)) == 4:
            lo.define_view(node.output, lo.destination(node.output))
            lo.store(lo.reshape(lo.view(node.output), lo.graph.shape(name)), lo.load(name))
            return
    lo.define_view(node.output, lo.reshape(lo.view(name), shape))


def _same_bytes(x: Tensor, old: tuple[int, ...], new: tuple[int, ...]) -> Tensor | None:
    n, c, h, w = x.shape
    if len(old) >= 3 and len(new) == 2 and new[0] == n:
        return x.reshape(Dim4(n, c, 1, h * w))
    if len(new) >= 3:
        shape = local_shape(new)
        if (shape.n, shape.c, shape.h * shape.w) == (n, c, h * w) and prod(new) == n * c * h * w:
            return x.reshape(shape)
    return x if len(old) <= 2 and len(new) <= 2 and old[-1:] == new[-1:] else None


def transpose(lo: Lowering, node: Node) -> None:
    """Transpose: a view of system memory."""
    lo.define_view(node.output, lo.view(node.inputs[0]).transpose(PERM(node)))


def concat(lo: Lowering, node: Node) -> None:
    """Concat: channels are already in place or are copied; other axes are copied, or go through system memory."""
    axis = AXIS(node)
    if lo.inside and of_pixels(lo.graph.shape(node.output), axis):
        extents = [lo.graph.shape(name)[axis] for name in node.inputs]
        _merge(lo, node, axis, [sum(extents[:number]) for number in range(len(extents))], 1)
        return
    if not joins_channels(lo.graph.shape(node.output), axis):
        _concat_in_system(lo, node, axis)
        return
    whole = lo.home(node.output) or _concat_tensor(lo, node)
    first = 0
    for name in node.inputs:
        behind = first + lo.graph.shape(name)[1]
        part = whole.channels(first, behind, lo.machine)
        found = lo.load(name)
        if found != part:
            lo.emit(moves.copy(part, found, lo.machine))
        first = behind
    lo.define(node.output, whole)


def joins_channels(shape: tuple[int, ...], axis: int) -> bool:
    """Whether a Concat with this result shape and axis joins the channels of a single image."""
    return len(shape) > 2 and axis == 1 and shape[0] == 1


def of_pixels(shape: tuple[int, ...], axis: int) -> bool:
    """Whether an axis of a tensor counts the rows or columns of images."""
    return len(shape) == 4 and axis % 4 >= 2


def _merge(lo: Lowering, node: Node, axis: int, firsts: Sequence[int], step: int) -> None:
    """Copies each input to every step-th row or column of the result from its first one on, in local memory."""
    out = lo.output(node.output, Dim4(*lo.graph.shape(node.output)), lo.load(node.inputs[0]).at.npu)
    parts = [lo.load(name, npu=out.at.npu) for name in node.inputs]
    stride = out.stride(lo.machine)
    along, spaced = _step_strides(stride, axis, step)
    places = [out.at.shift(ELEMENT * first * along) for first in firsts]
    copied = [call("bdc_32bit_cpy", at, x.at, x.shape, spaced, None) for at, x in zip(places, parts, strict=True)]
    lo.emit(*copied)
    lo.define(node.output, out)


def _step_strides(stride: Dim4, axis: int, step: int) -> tuple[int, Dim4]:
    """The stride of rows (2) or columns (3), and the strides of every step-th one."""
    spaced = stride._replace(h=stride.h * step) if axis % 4 == 2 else stride._replace(w=stride.w * step)
    return stride[axis], spaced


def _concat_tensor(lo: Lowering, node: Node) -> Tensor:
    if lo.is_local(node.output):
        return lo.load(node.output)
    return lo.new_tensor(node.output, local_shape(lo.graph.shape(node.output)))


def _concat_in_system(lo: Lowering, node: Node, axis: int) -> None:
    first = 0
    for name in node.inputs:
        part = lo.part(name, node.output, axis, first)
        if not lo.is_local(name):
            lo.emit(*moves.copies(part, lo.view(name)))
        elif not lo.is_joined(name):
            lo.store(part, lo.load(name))
        first += lo.graph.shape(name)[axis]
    lo.define_view(node.output, lo.concat_view(node.output))


def split(lo: Lowering, node: Node) -> None:
    """Split: every part is a slice."""
    axis, first = AXIS(node), 0
    for name, count in zip(node.outputs, SPLIT(node), strict=True):
        if name:
            _part(lo, node.inputs[0], name, axis, first, 1)
        first += count


def slice_(lo: Lowering, node: Node) -> None:
    """Slice: a part if it cuts one axis forwards, else views, axis by axis."""
    shape = lo.graph.shape(node.inputs[0])
    cuts = list(zip(AXES(node), STARTS(node), STEPS(node), strict=True))
    result = lo.graph.shape(node.output)
    cuts = [cut for cut in cuts if result[cut[0]] != shape[cut[0]] or cut[2] != 1]
    pixels = all(of_pixels(shape, axis) and step > 0 for axis, _, step in cuts)
    if lo.inside and cuts and pixels and lo.is_local(node.inputs[0]):
        _cut(lo, node, cuts)
        return
    if len(cuts) == 1 and cuts[0][2] > 0:
        _part(lo, node.inputs[0], node.output, *cuts[0])
        return
    view = lo.view(node.inputs[0])
    for axis, start, step in cuts:
        count = result[axis]
        low = start if step > 0 else start + (count - 1) * step
        view = _slice(lo, view, axis, low, count, abs(step))
        view = view if step > 0 else _reverse(lo, view, axis)
    lo.define_view(node.output, view)


def _cut(lo: Lowering, node: Node, cuts: Sequence[tuple[int, int, int]]) -> None:
    """Copies rows and columns of a tensor in local memory. cuts: axis, first one, step."""
    x = lo.load(node.inputs[0])
    out = lo.output(node.output, Dim4(*lo.graph.shape(node.output)), x.at.npu)
    at, stride = x.at, x.stride(lo.machine)
    for axis, start, step in cuts:
        along, stride = _step_strides(stride, axis, step)
        at = at.shift(ELEMENT * start * along)
    lo.emit(call("bdc_32bit_cpy", out.at, at, out.shape, None, stride))
    lo.define(node.output, out)


def _reverse(lo: Lowering, view: SystemView, axis: int) -> SystemView:
    """A copy with the elements of an axis reversed, one by one: the GDMA has no negative strides."""
    count, to = view.shape[axis], lo.scratch_view(view.shape)
    for at in range(count):
        lo.emit(*moves.copies(_slice(lo, to, axis, at, 1), _slice(lo, view, axis, count - 1 - at, 1)))
    return to


def _slice(lo: Lowering, view: SystemView, axis: int, start: int, count: int, step: int = 1) -> SystemView:
    found = view.slice_axis(axis, start, count, step)
    return found or expect_view(lo.make_continuous(view).slice_axis(axis, start, count, step))


def _part(lo: Lowering, source: str, name: str, axis: int, start: int, step: int) -> None:
    """Defines one slice: channels of an image in local memory stay in place, anything else is a view."""
    shape, count = lo.graph.shape(source), lo.graph.shape(name)[axis]
    axis %= len(shape)
    if lo.is_local(source) and joins_channels(shape, axis) and step == 1:
        lo.define(name, lo.load(source).channels(start, start + count, lo.machine))
        return
    lo.define_view(name, _slice(lo, lo.view(source), axis, start, count, step))


def gather(lo: Lowering, node: Node) -> None:
    """Gather by constant indices: one copy per run of equally spaced indices."""
    axis, view = AXIS(node), lo.view(node.inputs[0])
    indices = lo.graph.constants[node.inputs[1]].reshape(-1) % view.shape[axis]
    to = lo.scratch_view((*view.shape[:axis], len(indices), *view.shape[axis + 1 :]))
    for first, count, start, step in runs(indices.tolist()):
        lo.emit(*moves.copies(_slice(lo, to, axis, first, count), _slice(lo, view, axis, start, count, step)))
    lo.define_view(node.output, expect_view(to.reshape(lo.graph.shape(node.output))))


def interleave(lo: Lowering, node: Node) -> None:
    """Interleave: a copy for each input, to every so many elements of the axis."""
    axis = AXIS(node)
    if lo.inside and of_pixels(lo.graph.shape(node.output), axis):
        _merge(lo, node, axis, range(len(node.inputs)), len(node.inputs))
        return
    to = lo.scratch_view(lo.graph.shape(node.output))
    for number, name in enumerate(node.inputs):
        count = lo.graph.shape(name)[axis]
        lo.emit(*moves.copies(_slice(lo, to, axis, number, count, len(node.inputs)), lo.view(name)))
    lo.define_view(node.output, to)


def runs(indices: Sequence[int]) -> Iterator[tuple[int, int, int, int]]:
    """Runs of indices in non-decreasing arithmetic progression: (position, count, first index, step)."""
    at = 0
    while at < len(indices):
        step = indices[at + 1] - indices[at] if at + 1 < len(indices) else 1
        count = 1
        while step >= 0 and at + count < len(indices) and indices[at + count] == indices[at] + count * step:
            count += 1
        yield at, count, indices[at], max(step, 0)
        at += count


def pad(lo: Lowering, node: Node) -> None:
    """Pad: rows and columns of images by a copy into a filled tensor, anything else through system memory."""
    shape, result = lo.graph.shape(node.inputs[0]), lo.graph.shape(node.output)
    pads = SIDES(node)
    mode = PAD_MODE(node)
    images = len(shape) == 4 and shape[:2] == result[:2] and min(pads) >= 0 and mode == "constant"
    if not images or max(pads) == 0:
        pad_by_moves(lo, node)
        return
    x = lo.load(node.inputs[0])
    y = lo.output(node.output, Dim4(*result), x.at.npu)
    stride = y.stride(lo.machine)
    at = y.at.shift(ELEMENT * (pads[2] * stride.h + pads[3]))
    lo.emit(
        call("bdc_32bit_set_C", y.at, VALUE(node), y.shape, None),
        call("bdc_32bit_cpy", at, x.at, x.shape, stride, None),
    )
    lo.define(node.output, y)


def pad_by_moves(lo: Lowering, node: Node) -> None:
    """Pads axis by axis in system memory: crops by negative pads, then adds constants or own elements."""
    view, mode = lo.view(node.inputs[0]), PAD_MODE(node)
    pads = list(zip(SIDES(node)[: len(view.shape)], SIDES(node)[len(view.shape) :], strict=True))
    kept = [extent + min(begin, 0) + min(end, 0) for extent, (begin, end) in zip(view.shape, pads, strict=True)]
    if mode == "constant" and min(kept) <= 0:
        whole = lo.scratch_view(lo.graph.shape(node.output))
        _fill(lo, whole, VALUE(node))
        lo.define_view(node.output, whole)
        return
    for axis, (before, behind) in enumerate(pads):
        cut = max(-before, 0)
        count = view.shape[axis] - cut - max(-behind, 0)
        if count != view.shape[axis]:
            view = _slice(lo, view, axis, cut, count)
    for axis, (before, behind) in enumerate(pads):
        if max(before, behind) > 0:
            view = _wider(lo, view, axis, (max(before, 0), max(behind, 0)), mode, VALUE(node))
    lo.define_view(node.output, view)


def _fill(lo: Lowering, view: SystemView, value: float) -> None:
    at = lo.weights.image(np.full(1, value, np.float32)) // ELEMENT
    lo.emit(*moves.copies(view, SystemView.continuous(WEIGHTS, at, (1,)).broadcast(view.shape)))


def _wider(
    lo: Lowering, view: SystemView, axis: int, pads: tuple[int, int], mode: str, value: float
) -> SystemView:
    """A padded copy of the view along an axis."""
    (before, behind), count = pads, view.shape[axis]
    to = lo.scratch_view((*view.shape[:axis], before + count + behind, *view.shape[axis + 1 :]))
    lo.emit(*moves.copies(_slice(lo, to, axis, before, count), view))
    ends = [(0, before), (before + count, behind)]
    if mode == "constant":
        for first, extent in ends:
            if extent:
                _fill(lo, _slice(lo, to, axis, first, extent), value)
        return to
    source = {"reflect": _mirror, "edge": _nearest, "wrap": _wrap_index}[mode]
    for at in (at for first, extent in ends for at in range(first, first + extent)):
        lo.emit(*moves.copies(_slice(lo, to, axis, at, 1), _slice(lo, view, axis, source(at - before, count), 1)))
    return to


def _mirror(at: int, count: int) -> int:
    at = abs(at) % max(2 * (count - 1), 1)
    return at if at < count else 2 * (count - 1) - at


def _nearest(at: int, count: int) -> int:
    return min(max(at, 0), count - 1)


def _wrap_index(at: int, count: int) -> int:
    return at % count


def identity(lo: Lowering, node: Node) -> None:
    """Identity, and other operators that keep values and order."""
    reshape(lo, node)


def expand(lo: Lowering, node: Node) -> None:
    """Expand: a view with stride 0 along the repeated axes."""
    lo.define_view(node.output, lo.view(node.inputs[0]).broadcast(lo.graph.shape(node.output)))


def depth_to_space(lo: Lowering, node: Node) -> None:
    """DepthToSpace: a view."""
    n, c, h, w = lo.graph.shape(node.inputs[0])
    b = BLOCKSIZE(node)
    inner = (n, c // b // b, b, b, h, w) if BLOCK_MODE(node) == "CRD" else (n, b, b, c // b // b, h, w)
    order = (0, 1, 4, 2, 5, 3) if BLOCK_MODE(node) == "CRD" else (0, 3, 4, 1, 5, 2)
    _reorder(lo, node, inner, order)


def space_to_depth(lo: Lowering, node: Node) -> None:
    """SpaceToDepth: a view."""
    n, c, h, w = lo.graph.shape(node.inputs[0])
    b = BLOCKSIZE(node)
    _reorder(lo, node, (n, c, h // b, b, w // b, b), (0, 3, 5, 1, 2, 4))


def _reorder(lo: Lowering, node: Node, inner: tuple[int, ...], order: tuple[int, ...]) -> None:
    moved = lo.reshape(lo.view(node.inputs[0]), inner).transpose(order)
    lo.define_view(node.output, expect_view(moved.reshape(lo.graph.shape(node.output))))
