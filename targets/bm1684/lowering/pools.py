"""Functions over vectors and windows as calls: Softmax and reductions along axes, pooling, normalisation.

Vectors along axes become channels, as many at a time as local memory and the interface allow.

The interface's average counts the padding. Where ONNX does not, the result is multiplied by a constant image: the
window size over the number of counted elements. In a maximum, padding is never the largest element.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import prod

import numpy as np

from npuc.ir import Array, Node
from npuc.ops.attributes import (
    AXES,
    AXIS,
    COUNT_INCLUDE_PAD,
    EPSILON,
    KERNEL_SHAPE,
    LRN_ALPHA,
    LRN_BETA,
    LRN_BIAS,
    SIZE,
)
from npuc.ops.windows import Window, window_of
from npuc.targets.bm1684.lowering import moves
from npuc.targets.bm1684.lowering.context import Lowering
from npuc.targets.bm1684.lowering.conv_calls import band, padding
from npuc.targets.bm1684.lowering.elementwise import ComposedFunction, activation_calls
from npuc.targets.bm1684.lowering.extents import MOST
from npuc.targets.bm1684.lowering.kernel import Call, Local, Padding, Pair, call
from npuc.targets.bm1684.lowering.matrices import pad_columns
from npuc.targets.bm1684.lowering.moves import order_for_moves
from npuc.targets.bm1684.lowering.tensors import ELEMENT, SystemView, Tensor, expect_view, merge_dims
from npuc.targets.bm1684.machine.local_memory import Dim4, ceil_div

MOVES = 8
"""The most calls that store vectors directly into the result."""
TOGETHER = 6
"""Tensors of vectors that a function needs at a time, including the one that is being loaded."""


def rows_of(length: int) -> tuple[int, int] | None:
    """The rows and columns of a window that covers a vector; None if no window is small enough."""
    fits = (w for w in range(min(MOST.w, length), 0, -1) if length % w == 0 and length // w <= MOST.h)
    found = next(fits, None)
    return None if found is None else (length // found, found)


def _pool_call(
    name: str, x: Tensor, out: Tensor, kernel: tuple[int, ...], pads: Padding, strides: tuple[int, ...]
) -> Call:
    """max_pool2d or avg_pool2d."""
    return call(f"bdc_{name}_pool2d", out.at, x.at, x.shape, *kernel, pads, Pair(*strides))


def _over_vector(name: str, x: Tensor, out: Tensor) -> Call:
    """The maximum or the average of every vector."""
    return _pool_call(name, x, out, (x.shape.h, x.shape.w), Padding(0, 0, 0, 0), (1, 1))


def _with_one(lo: Lowering, name: str, out: Tensor, x: Tensor, one: Tensor) -> Call:
    """A binary function of every element of a vector and one number per vector."""
    repeated = one.stride(lo.machine)._replace(h=0, w=0)
    return call(f"bdc_{name}", out.at, x.at, one.at, x.shape, None, None, repeated)


def softmax(lo: Lowering, node: Node) -> None:
    """Softmax: exp(x - max) / sum."""
    if not _side_by_side(lo, node, AXIS(node)):
        _each(lo, node, (AXIS(node),), _softmax, keep=True)


MOST_BESIDE = 8
"""The most elements of a vector that are compared and summed image by image."""


def _side_by_side(lo: Lowering, node: Node, axis: int) -> bool:
    """Softmax of short vectors, with element i of all vectors in image i; False if that does not pay."""
    shape, machine = lo.graph.shape(node.output), lo.machine
    length, count = shape[axis], prod(shape[axis + 1 :])
    if prod(shape[:axis]) != 1 or not 1 < length <= MOST_BESIDE:
        return False
    width = min(
        (w for w in range(1, 513) if count % w == 0 and count // w <= MOST.c), default=0, key=_groups(count, lo)
    )
    form = Dim4(length, count // width, 1, width) if width else Dim4(0, 0, 0, 0)
    fits = TOGETHER * Tensor(form, Local("")).bytes(machine) <= machine.local_bytes if width else False
    if not fits or length * _groups(count, lo)(width) >= ceil_div(count, machine.npus):
        return False
    x = lo.fetch(f"{node.output}/vectors", lo.view(node.inputs[0]), form)
    found = _softmax_of_images(lo, x)
    view = order_for_moves(lo.graph, node.output, found, lo.destination, machine) or lo.destination(node.output)
    lo.store(view, found)
    lo.define_view(node.output, view)
    return True


def _groups(count: int, lo: Lowering) -> Callable[[int], int]:
    """The groups of lanes that `count` vectors take, as a function of the number of vectors per row."""
    npus, lanes = lo.machine.npus, lo.machine.lanes
    return lambda width: ceil_div(count // width, npus) * ceil_div(width, lanes)


def _softmax_of_images(lo: Lowering, x: Tensor) -> Tensor:
    """exp(x - max) / sum, along the images."""
    one = lo.new_tensor(f"{lo.node.output}/of_vectors", x.shape._replace(n=1), x.at.npu)
    e = lo.new_tensor(f"{lo.node.output}/exponentials", x.shape, x.at.npu)
    f = ComposedFunction(lo, x, e, [])
    f.series("exp", (-80.0, None))
    lo.emit(*_over_images(lo, "max", x, one), _with_image(lo, "sub", x, x, one))
    lo.emit(*f.calls, *_over_images(lo, "add", e, one), _with_image(lo, "div", x, e, one))
    return x


def _over_images(lo: Lowering, name: str, x: Tensor, one: Tensor) -> Iterator[Call]:
    """The calls for the maximum or sum of the images, element by element."""
    images = [x.image(at, lo.machine) for at in range(x.shape.n)]
    for at, image in enumerate(images[1:]):
        first = images[0] if at == 0 else one
        yield call(f"bdc_{name}", one.at, first.at, image.at, one.shape, None, None, None)


def _with_image(lo: Lowering, name: str, out: Tensor, x: Tensor, one: Tensor) -> Call:
    """A binary function of every image and a single one."""
    repeated = one.stride(lo.machine)._replace(n=0)
    return call(f"bdc_{name}", out.at, x.at, one.at, x.shape, None, None, repeated)


def reduction(lo: Lowering, node: Node) -> None:
    """ReduceMean, ReduceSum, ReduceMax and ReduceMin."""
    _each(lo, node, tuple(sorted(AXES(node))), _reduce_vectors, keep=False)


def _softmax(lo: Lowering, x: Tensor) -> Tensor:
    one = lo.new_tensor(f"{lo.node.output}/of_vectors", x.shape._replace(h=1, w=1), x.at.npu)
    e = lo.new_tensor(f"{lo.node.output}/exponentials", x.shape, x.at.npu)
    lo.emit(_over_vector("max", x, one), _with_one(lo, "sub", x, x, one))
    f = ComposedFunction(lo, x, e, [])
    f.series("exp", (-80.0, None))
    g = ComposedFunction(lo, one, one, [])
    total = _over_vector("avg", e, one)
    g.append("mul_C", float(x.shape.h * x.shape.w))
    lo.emit(*f.calls, total, *g.calls, _with_one(lo, "div", x, e, one))
    return x


def _reduce_vectors(lo: Lowering, x: Tensor) -> Tensor:
    op, one = lo.node.op, lo.new_tensor(f"{lo.node.output}/of_vectors", x.shape._replace(h=1, w=1), x.at.npu)
    before, behind = ComposedFunction(lo, x, x, []), ComposedFunction(lo, one, one, [])
    if op == "ReduceMin":
        before.append("neg")
        behind.append("neg")
    if op == "ReduceSum":
        behind.append("mul_C", float(x.shape.h * x.shape.w))
    name = "max" if op in ("ReduceMax", "ReduceMin") else "avg"
    lo.emit(*before.calls, _over_vector(name, x, one), *behind.calls)
    return one


def _each(
    lo: Lowering, node: Node, axes: Sequence[int], compute: Callable[[Lowering, Tensor], Tensor], *, keep: bool
) -> None:
    """Runs `compute` on vectors along axes, some block rows at a time. keep: its result has the vectors' size."""
    shape = lo.graph.shape(node.inputs[0])
    order = [axis for axis in range(len(shape)) if axis not in axes] + list(axes)
    length = prod(shape[axis] for axis in axes)
    form, count = rows_of(length), prod(shape) // length
    if form is None:
        raise lo.refusal(f"vectors of {length} elements, which no window of {MOST.h} x {MOST.w} covers")
    cuts = list(_cuts(lo, count, length))
    source = _flat(lo, lo.view(node.inputs[0]).transpose(order), (count, length), whole=len(cuts) == 1)
    to, found = _destination(lo, node, order, Dim4(1, count, *form), len(cuts)) if keep else _of_vectors(lo, node)
    for first, behind in cuts:
        part, target = (
            each if len(cuts) == 1 else expect_view(each.slice_axis(0, first, behind - first))
            for each in (source, to)
        )
        x = lo.fetch(f"{node.output}/vectors", part, Dim4(1, behind - first, *form))
        lo.store(target, compute(lo, x))
    lo.define_view(node.output, found)


def _flat(lo: Lowering, view: SystemView, shape: tuple[int, int], *, whole: bool) -> SystemView:
    """The view as vectors (count, length); for parts of it, with a single dimension of vectors."""
    flat = view.reshape(shape)
    if flat is None or not (whole or len(merge_dims(flat.axes[0])) == 1):
        return expect_view(lo.make_continuous(view).reshape(shape))
    return flat


def _of_vectors(lo: Lowering, node: Node) -> tuple[SystemView, SystemView]:
    """The destination of one number per vector: flat, and in the result's shape."""
    view = lo.destination(node.output)
    return expect_view(view.reshape((prod(view.shape), 1))), view


def _destination(
    lo: Lowering, node: Node, order: Sequence[int], form: Dim4, cuts: int
) -> tuple[SystemView, SystemView]:
    """The destination of vectors: directly in the result if a few moves suffice, else contiguous in scratch."""
    view = lo.destination(node.output)
    direct = view.transpose(order).reshape(form)
    tensor = Tensor(form, Local(""))
    if cuts == 1 and direct is not None and len(moves.stores(direct, tensor, lo.machine)) <= MOVES:
        return direct, view
    shape = lo.graph.shape(node.output)
    rows = lo.scratch_view((form.c, form.h * form.w))
    ordered = expect_view(rows.reshape([shape[axis] for axis in order]))
    return rows, ordered.transpose([order.index(axis) for axis in range(len(shape))])


def _cuts(lo: Lowering, count: int, length: int) -> Iterator[tuple[int, int]]:
    """Ranges [first, behind) of vectors that are in local memory at a time."""
    npus, size = lo.machine.npus, ELEMENT * ceil_div(length, 32) * 32
    rows = max(1, min(MOST.c // npus, lo.machine.local_bytes // (TOGETHER * size)))
    for first in range(0, count, rows * npus):
        yield first, min(count, first + rows * npus)


def pool(lo: Lowering, node: Node) -> None:
    """MaxPool, AveragePool and their global forms."""
    x = lo.load(node.inputs[0])
    shape = Dim4(*lo.graph.shape(node.output))
    out = lo.output(node.output, shape, x.at.npu)
    if node.op.startswith("Global"):
        window = Window((x.shape.h, x.shape.w), (1, 1), (0, 0), (0, 0), (1, 1))
    else:
        window = window_of(node, KERNEL_SHAPE(node))
    if max(window.dilations) > 1:
        raise lo.refusal(f"dilations are {list(window.dilations)}")
    name = "max" if "Max" in node.op else "avg"
    calls = [_pool_call(name, x, out, window.kernel, padding(window, x.shape, shape), window.strides)]
    correction = None if name == "max" else _correction(node, window, x.shape, shape)
    if correction is not None:
        calls.append(_times(lo, out, correction))
    lo.emit(*calls, *activation_calls(node, out))
    lo.define(node.output, out)


def _correction(node: Node, window: Window, x: Dim4, out: Dim4) -> Array | None:
    """Window size over the elements that ONNX counts, per output position (H, W); None if all are 1."""
    counts = [
        _count_elements(extent, count, window, axis, include=bool(COUNT_INCLUDE_PAD(node)))
        for axis, (extent, count) in enumerate(((x.h, out.h), (x.w, out.w)))
    ]
    factors = prod(window.kernel) / np.outer(*counts)
    return None if (factors == 1).all() else factors.astype(np.float32)


def _count_elements(extent: int, count: int, window: Window, axis: int, *, include: bool) -> Array:
    """How many elements along an axis each window's average counts."""
    starts = np.arange(count) * window.strides[axis] - window.begins[axis]
    low, high = (-window.begins[axis], extent + window.ends[axis]) if include else (0, extent)
    return np.minimum(starts + window.kernel[axis], high) - np.maximum(starts, low)


def _times(lo: Lowering, out: Tensor, factors: Array) -> Call:
    """The product of a tensor and an image, of which every NPU has a copy."""
    npus = min(lo.machine.npus, out.shape.c)
    start = out.at.npu if out.at.npu + out.shape.c <= lo.machine.npus else 0
    npus = npus if start else min(lo.machine.npus, out.at.npu + out.shape.c)
    image = lo.rows(f"{lo.node.output}/factors", np.tile(factors.ravel(), (npus, 1)), start)
    at = Local(image.buffer, out.at.npu)
    return call("bdc_mul", out.at, out.at, at, out.shape, None, None, Dim4(0, 0, out.shape.w, 1))


def batch_norm(lo: Lowering, node: Node) -> None:
    """x * scale + bias per channel."""
    parameters = [lo.graph.constant(name) for name in node.inputs[1:5]]
    if any(each is None for each in parameters):
        raise lo.refusal("its parameters are computed at run time")
    scale, shift, mean, variance = (np.asarray(each, np.float64) for each in parameters)
    factor = scale / np.sqrt(variance + EPSILON(node))
    x = lo.load(node.inputs[0])
    out = lo.output(node.output, x.shape, x.at.npu)
    values = np.stack([factor, shift - mean * factor])
    if len(lo.graph.shape(node.output)) < 3:
        factors, offsets = _per_column(lo, values, x)
        calls = [_with_columns("mul", out, x, factors, lo), _with_columns("add", out, out, offsets, lo)]
    else:
        factors, offsets = _per_channel(lo, values, x.at.npu)
        calls = [call("bdc_scale_bias", out.at, x.at, factors, offsets, x.shape, None, None)]
    lo.emit(*calls, *activation_calls(node, out))
    lo.define(node.output, out)


def _per_column(lo: Lowering, values: Array, like: Tensor) -> tuple[Local, ...]:
    """Values (k, F) as k matrix rows (1, C, 1, W) in the layout of `like`."""
    shape = like.shape._replace(n=1)
    rows = (pad_columns(row[np.newaxis].astype(np.float32), shape) for row in values)
    return tuple(lo.constant(f"{lo.node.output}/parameters", row, like.at.npu).at for row in rows)


def _with_columns(name: str, out: Tensor, x: Tensor, row: Local, lo: Lowering) -> Call:
    """A binary function of every row of a matrix and a single row."""
    repeated = None if x.shape.n == 1 else x.stride(lo.machine)._replace(n=0)
    return call(f"bdc_{name}", out.at, x.at, row, x.shape, None, None, repeated)


def _per_channel(lo: Lowering, values: Array, npu: int) -> tuple[Local, ...]:
    """Values (k, C) as k tensors (1, C, 1, 1) in the compact layout, starting at an NPU, in one buffer."""
    kinds, channels = values.shape
    rows = ceil_div(npu + channels, lo.machine.npus)
    start, npus = (npu, channels) if rows == 1 else (0, lo.machine.npus)
    grid = np.zeros((kinds, rows * npus), np.float32)
    grid[:, npu - start : npu - start + channels] = values
    image = grid.reshape(kinds, rows, npus).transpose(2, 0, 1).reshape(npus, kinds * rows)
    at = lo.rows(f"{lo.node.output}/parameters", image, start)
    return tuple(Local(at.buffer, npu, ELEMENT * rows * kind) for kind in range(kinds))


def prelu(lo: Lowering, node: Node) -> None:
    """PRelu: the larger of x and slope * x if no slope exceeds 1, else relu(x) + slope * min(x, 0)."""
    slope = lo.graph.constants[node.inputs[1]]
    x = lo.load(node.inputs[0])
    y = lo.output(node.output, x.shape, x.at.npu)
    f = ComposedFunction(lo, x, y, [])
    if (slope <= 1).all():
        f.calls.append(_slope_call(lo, slope, x, y))
        f.append_binary("max", x, y)
    else:
        below = f.append("min_C", 0.0, out=f.temporary())
        f.calls.append(_slope_call(lo, slope, below, below))
        f.append("relu")
        f.append_binary("add", y, below)
    lo.emit(*f.calls)
    lo.define(node.output, y)


def _slope_call(lo: Lowering, slope: Array, x: Tensor, y: Tensor) -> Call:
    """y = slope * x, with one slope or one per channel."""
    if slope.size == 1:
        return call("bdc_mul_C", y.at, x.at, float(slope.flat[0]), x.shape, None, None)
    if len(lo.graph.shape(lo.node.output)) < 3:
        (slopes,) = _per_column(lo, slope.reshape(1, -1), x)
        return _with_columns("mul", y, x, slopes, lo)
    (slopes,) = _per_channel(lo, slope.reshape(1, -1), x.at.npu)
    return call("bdc_scale", y.at, x.at, slopes, x.shape, None, None)


def instance_norm(lo: Lowering, node: Node) -> None:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, per channel of every image."""
    scale, bias = (lo.graph.constants[name] for name in node.inputs[1:3])
    x = lo.load(node.inputs[0])
    y = lo.output(node.output, x.shape, x.at.npu)
    f = ComposedFunction(lo, x, y, [])
    one = lo.new_tensor(f"{node.output}/of_channels", x.shape._replace(h=1, w=1), x.at.npu)
    squares = f.temporary()
    g = ComposedFunction(lo, one, one, [])
    lo.emit(_over_vector("avg", x, one), _with_one(lo, "sub", y, x, one))
    f.append_binary("mul", y, y, out=squares)
    g.append("add_C", EPSILON(node))
    deviation = lo.new_tensor(f"{node.output}/deviations", one.shape, x.at.npu)
    g.root("sqrt", out=deviation)
    lo.emit(*f.calls, _over_vector("avg", squares, one), *g.calls, _with_one(lo, "div", y, y, deviation))
    factors, offsets = _per_channel(lo, np.stack([scale.reshape(-1), bias.reshape(-1)]), x.at.npu)
    scaled = call("bdc_scale_bias", y.at, y.at, factors, offsets, x.shape, None, None)
    lo.emit(scaled, *activation_calls(node, y))
    lo.define(node.output, y)


def lrn(lo: Lowering, node: Node) -> None:
    """x * (bias + alpha / size * sum of squares of neighbouring channels) ^ -beta, for beta 0.5, 0.75 or 1."""
    x = lo.load(node.inputs[0])
    y = lo.output(node.output, x.shape, x.at.npu)
    f = ComposedFunction(lo, x, y, [])
    squares = f.append_binary("mul", x, x, out=f.temporary())
    total = f.temporary()
    size, C = SIZE(node), x.shape.c
    before = (size - 1) // 2
    near = np.subtract.outer(np.arange(C), np.arange(C))
    weights = ((near <= before) & (near >= before - size + 1)) * (LRN_ALPHA(node) / size)
    lo.emit(*f.calls)
    band(lo, weights.astype(np.float32), np.full(C, LRN_BIAS(node), np.float32), squares, total, node)
    f.calls.clear()
    _power(lo, f, total, LRN_BETA(node))
    lo.emit(*f.calls)
    lo.define(node.output, y)


def _power(lo: Lowering, f: ComposedFunction, total: Tensor, beta: float) -> None:
    """y = x * total ^ -beta."""
    root = f.root("sqrt", out=f.temporary(), of=total)
    match beta:
        case 0.5:
            f.append_binary("div", f.x, root)
        case 0.75:
            f.root("sqrt", of=root)
            f.append_binary("mul", root, f.y)
            f.append_binary("div", f.x, f.y)
        case 1.0:
            f.append_binary("div", f.x, total)
        case _:
            raise lo.refusal(f"beta is {beta}")
