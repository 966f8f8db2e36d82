"""Pooling and normalisation as calls.

The interface's average counts the padding. Where ONNX does not, the result is multiplied by a constant image: the
window size over the number of counted elements. In a maximum, padding is never the largest element.
"""

from __future__ import annotations

from math import prod

import numpy as np

from npuc.ir import Array, Node
from npuc.ops.attributes import COUNT_INCLUDE_PAD, EPSILON, KERNEL_SHAPE, LRN_ALPHA, LRN_BETA, LRN_BIAS, SIZE
from npuc.ops.windows import Window, window_of
from npuc.targets.bm1684.lowering.context import Lowering
from npuc.targets.bm1684.lowering.conv_calls import band, padding
from npuc.targets.bm1684.lowering.elementwise import ComposedFunction, activation
from npuc.targets.bm1684.lowering.kernel import Call, Local, call
from npuc.targets.bm1684.lowering.matrices import padded
from npuc.targets.bm1684.lowering.tensors import ELEMENT, Tensor
from npuc.targets.bm1684.lowering.vectors import over_vector, pooled, with_one
from npuc.targets.bm1684.machine.local_memory import Dim4, ceil_div


def pool(lo: Lowering, node: Node) -> None:
    """MaxPool, AveragePool and their global forms."""
    x = lo.local(node.inputs[0])
    shape = Dim4(*lo.graph.shape(node.output))
    out = lo.output(node.output, shape, x.at.npu)
    if node.op.startswith("Global"):
        window = Window((x.shape.h, x.shape.w), (1, 1), (0, 0), (0, 0), (1, 1))
    else:
        window = window_of(node, KERNEL_SHAPE(node))
    if max(window.dilations) > 1:
        raise lo.refusal(f"dilations are {list(window.dilations)}")
    name = "max" if "Max" in node.op else "avg"
    calls = [pooled(name, x, out, window.kernel, padding(window, x.shape, shape), window.strides)]
    correction = None if name == "max" else _correction(node, window, x.shape, shape)
    if correction is not None:
        calls.append(_times(lo, out, correction))
    lo.emit(*calls, *activation(node, out))
    lo.define(node.output, out)


def _correction(node: Node, window: Window, x: Dim4, out: Dim4) -> Array | None:
    """Window size over the elements that ONNX counts, per output position (H, W); None if all are 1."""
    counts = [
        _counted(extent, count, window, axis, include=bool(COUNT_INCLUDE_PAD(node)))
        for axis, (extent, count) in enumerate(((x.h, out.h), (x.w, out.w)))
    ]
    factors = prod(window.kernel) / np.outer(*counts)
    return None if (factors == 1).all() else factors.astype(np.float32)


def _counted(extent: int, count: int, window: Window, axis: int, *, include: bool) -> Array:
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
    x = lo.local(node.inputs[0])
    out = lo.output(node.output, x.shape, x.at.npu)
    values = np.stack([factor, shift - mean * factor])
    if len(lo.graph.shape(node.output)) < 3:
        factors, offsets = _per_column(lo, values, x)
        calls = [with_columns("mul", out, x, factors, lo), with_columns("add", out, out, offsets, lo)]
    else:
        factors, offsets = per_channel(lo, values, x.at.npu)
        calls = [call("bdc_scale_bias", out.at, x.at, factors, offsets, x.shape, None, None)]
    lo.emit(*calls, *activation(node, out))
    lo.define(node.output, out)


def _per_column(lo: Lowering, values: Array, like: Tensor) -> tuple[Local, ...]:
    """Values (k, F) as k matrix rows (1, C, 1, W) in the layout of `like`."""
    shape = like.shape._replace(n=1)
    rows = (padded(row[np.newaxis].astype(np.float32), shape) for row in values)
    return tuple(lo.constant(f"{lo.node.output}/parameters", row, like.at.npu).at for row in rows)


def with_columns(name: str, out: Tensor, x: Tensor, row: Local, lo: Lowering) -> Call:
    """A binary function of every row of a matrix and a single row."""
    repeated = None if x.shape.n == 1 else x.stride(lo.machine)._replace(n=0)
    return call(f"bdc_{name}", out.at, x.at, row, x.shape, None, None, repeated)


def per_channel(lo: Lowering, values: Array, npu: int) -> tuple[Local, ...]:
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
    x = lo.local(node.inputs[0])
    y = lo.output(node.output, x.shape, x.at.npu)
    f = ComposedFunction(lo, x, y, [])
    if (slope <= 1).all():
        f.calls.append(_sloped(lo, slope, x, y))
        f.both("max", x, y)
    else:
        below = f.to("min_C", 0.0, out=f.temporary())
        f.calls.append(_sloped(lo, slope, below, below))
        f.to("relu")
        f.both("add", y, below)
    lo.emit(*f.calls)
    lo.define(node.output, y)


def _sloped(lo: Lowering, slope: Array, x: Tensor, y: Tensor) -> Call:
    """y = slope * x, with one slope or one per channel."""
    if slope.size == 1:
        return call("bdc_mul_C", y.at, x.at, float(slope.flat[0]), x.shape, None, None)
    if len(lo.graph.shape(lo.node.output)) < 3:
        (slopes,) = _per_column(lo, slope.reshape(1, -1), x)
        return with_columns("mul", y, x, slopes, lo)
    (slopes,) = per_channel(lo, slope.reshape(1, -1), x.at.npu)
    return call("bdc_scale", y.at, x.at, slopes, x.shape, None, None)


def instance_norm(lo: Lowering, node: Node) -> None:
    """(x - mean) / sqrt(variance + epsilon) * scale + bias, per channel of every image."""
    scale, bias = (lo.graph.constants[name] for name in node.inputs[1:3])
    x = lo.local(node.inputs[0])
    y = lo.output(node.output, x.shape, x.at.npu)
    f = ComposedFunction(lo, x, y, [])
    one = lo.new(f"{node.output}/of_channels", x.shape._replace(h=1, w=1), x.at.npu)
    squares = f.temporary()
    g = ComposedFunction(lo, one, one, [])
    lo.emit(over_vector("avg", x, one), with_one(lo, "sub", y, x, one))
    f.both("mul", y, y, out=squares)
    g.to("add_C", EPSILON(node))
    deviation = lo.new(f"{node.output}/deviations", one.shape, x.at.npu)
    g.root("sqrt", out=deviation)
    lo.emit(*f.calls, over_vector("avg", squares, one), *g.calls, with_one(lo, "div", y, y, deviation))
    factors, offsets = per_channel(lo, np.stack([scale.reshape(-1), bias.reshape(-1)]), x.at.npu)
    scaled = call("bdc_scale_bias", y.at, y.at, factors, offsets, x.shape, None, None)
    lo.emit(scaled, *activation(node, y))
    lo.define(node.output, y)


def lrn(lo: Lowering, node: Node) -> None:
    """x * (bias + alpha / size * sum of squares of neighbouring channels) ^ -beta, for beta 0.5, 0.75 or 1."""
    x = lo.local(node.inputs[0])
    y = lo.output(node.output, x.shape, x.at.npu)
    f = ComposedFunction(lo, x, y, [])
    squares = f.both("mul", x, x, out=f.temporary())
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
            f.both("div", f.x, root)
        case 0.75:
            f.root("sqrt", of=root)
            f.both("mul", root, f.y)
            f.both("div", f.x, f.y)
        case 1.0:
            f.both("div", f.x, total)
        case _:
            raise lo.refusal(f"beta is {beta}")
