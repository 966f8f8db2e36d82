"""Convolutions as calls: weights in the 2IC mode, one NPU an output channel, a piece for every few block rows.

An image of weights holds, per NPU and block row, [J][kh * kw][2] fp32 and behind all block rows their biases, so
that one transfer of long rows brings both. Channels of a piece start where the output starts or at NPU 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import gcd, prod

import numpy as np

from npuc.ir import Array, Node
from npuc.ops.windows import Window, window_of
from npuc.targets.bm1684 import timing
from npuc.targets.bm1684.elementwise import activation
from npuc.targets.bm1684.kernel import Call, Local, Padding, Pair
from npuc.targets.bm1684.local_memory import Dim4, ceil_div, to_2ic_mode
from npuc.targets.bm1684.lowering import WEIGHTS, Lowering
from npuc.targets.bm1684.tensors import ELEMENT, Tensor, View

PIECE_BYTES = 24 * 1024
"""Weights of a piece in each NPU: small enough to be prefetched step by step."""


def conv(lo: Lowering, node: Node) -> None:
    """Conv: dense, grouped or depthwise, with its bias and activation."""
    if streams(lo, node):
        stream(lo, node)
        return
    out = _output(lo, node)
    _convolve(lo, node, node, out, add=False)
    lo.define(node.output, out)


def conv_onto(lo: Lowering, node: Node, onto: Tensor, last: Node) -> None:
    """A Conv added onto a tensor in local memory (result_add), then the activation of `last`."""
    _convolve(lo, node, last, onto, add=True)
    lo.define(last.output, onto)


def takes_sum(node: Node, channels: int) -> bool:
    """Whether the convolution can add to what lies where it writes: depthwise ones cannot."""
    return node.op == "Conv" and not node.text("activation") and not _depthwise(node, channels)


def _output(lo: Lowering, node: Node) -> Tensor:
    shape = Dim4(*lo.graph.shape(node.output))
    if _depthwise(node, lo.graph.shape(node.inputs[0])[1]):
        return lo.output(node.output, shape, lo.local(node.inputs[0]).at.npu)
    return lo.output(node.output, shape)


def _depthwise(node: Node, channels: int) -> bool:
    return node.integer("group", 1) == channels > 1


def _convolve(lo: Lowering, node: Node, last: Node, out: Tensor, *, add: bool) -> None:
    x, form = lo.local(node.inputs[0]), _form(lo, node, add=add)
    group = node.integer("group", 1)
    if _depthwise(node, x.shape.c) and out.shape.c == x.shape.c:
        _depthwise_calls(lo, form, x, out, last)
        return
    for part, source, target in _groups(lo, form, x, out, group):
        convolve(lo, part, source, target, last)


def _form(lo: Lowering, node: Node, *, add: bool) -> _Form:
    weights = lo.graph.constant(node.inputs[1])
    if weights is None:
        raise lo.refusal(f"the weights '{node.inputs[1]}' are computed at run time")
    biased = len(node.inputs) > 2 and bool(node.inputs[2])
    bias = lo.graph.constant(node.inputs[2]) if biased else None
    if biased and bias is None:
        raise lo.refusal(f"the bias '{node.inputs[2]}' is computed at run time")
    return _Form(window_of(node, weights.shape[2:]), weights, bias, add)


@dataclass(frozen=True)
class _Form:
    """A convolution's window, weights (O, I / group, kh, kw), bias and whether it adds to its output."""

    window: Window
    weights: Array
    bias: Array | None
    add: bool

    def channels(self, first: int, last: int) -> _Form:
        """The same for output channels [first, last)."""
        bias = None if self.bias is None else self.bias[first:last]
        return replace(self, weights=self.weights[first:last], bias=bias)


def _groups(lo: Lowering, form: _Form, x: Tensor, out: Tensor, group: int) -> Iterator[tuple[_Form, Tensor, Tensor]]:
    """Each group by itself, or several as one with zeros where that costs no more."""
    if group == 1:
        yield form, x, out
        return
    inputs, outputs = x.shape.c // group, out.shape.c // group
    together = _together(group, inputs, outputs, lo.machine.npus)
    if x.shape.n > 1 and together < group:
        together = group
    for first in range(0, group, together):
        a, b = first * outputs, (first + together) * outputs
        part = form.channels(a, b)
        part = replace(part, weights=_block_diagonal(part.weights, together))
        if together == group:
            yield part, x, out
        else:
            source = x.channels(first * inputs, (first + together) * inputs, lo.machine)
            yield part, source, out.channels(a, b, lo.machine)


def _together(group: int, inputs: int, outputs: int, npus: int) -> int:
    """How many groups one call computes: the fewest multiply steps, then the fewest calls."""

    def cost(count: int) -> tuple[int, int]:
        steps = (group // count) * ceil_div(count * outputs, npus) * ceil_div(count * inputs, 2)
        return steps, group // count

    return min((count for count in range(1, group + 1) if group % count == 0), key=cost)


def _block_diagonal(weights: Array, groups: int) -> Array:
    """Dense weights of several groups: zeros where a group does not read."""
    outputs, inputs = weights.shape[0] // groups, weights.shape[1]
    dense = np.zeros((len(weights), groups * inputs, *weights.shape[2:]), np.float32)
    for g in range(groups):
        rows = slice(g * outputs, (g + 1) * outputs)
        dense[rows, g * inputs : (g + 1) * inputs] = weights[rows]
    return dense


def convolve(lo: Lowering, form: _Form, x: Tensor, out: Tensor, last: Node) -> None:
    """Dense convolution calls, a piece of output channels each, and the activation on every piece."""
    for first, behind, rows in _pieces(form.weights, out, lo.machine.npus):
        part = form.channels(first, behind)
        target = out if (first, behind) == (0, out.shape.c) else out.channels(first, behind, lo.machine)
        image = _image(lo, _taps(part.weights), part.bias, target.at.npu, rows)
        lo.emit(_call(part, image, x, target), *activation(last, target))


def _pieces(weights: Array, out: Tensor, npus: int) -> Iterator[tuple[int, int, int]]:
    """Output channels [first, behind) in `rows` block rows: full ones together, the last partial one alone."""
    outputs = len(weights)
    size = ELEMENT * ceil_div(weights.shape[1], 2) * 2 * weights.shape[2] * weights.shape[3]
    most = max(1, PIECE_BYTES // size)
    if out.shape.n > 1:
        yield 0, outputs, ceil_div(out.at.npu + outputs, npus)
        return
    first = 0
    while first < outputs:
        start = out.at.npu if first == 0 else 0
        room = npus - start
        rows = 1 if start else max(1, min(most, (outputs - first) // npus))
        behind = min(outputs, first + (room if rows == 1 else rows * npus))
        yield first, behind, rows
        first = behind


_Image = tuple[Local, Local | None]
"""Where weights and biases lie."""


def _taps(weights: Array) -> Array:
    """Weights in the 2IC mode, a row for every output channel: (O, J * kh * kw * 2)."""
    return np.moveaxis(to_2ic_mode(np.swapaxes(weights, 0, 1)), 0, 1).reshape(len(weights), -1)


def _call(form: _Form, image: _Image, x: Tensor, out: Tensor) -> Call:
    O, I, kh, kw = form.weights.shape  # noqa: E741
    (at, bias), w = image, form.window
    args = (
        out.at, x.at, at, bias or at, x.shape, O, kh, kw,
        None, Dim4(kh * kw, ceil_div(I, 2) * kh * kw, kw, 1), bias is not None, form.add,
        padding(w, x.shape, out.shape), Pair(*w.strides), Pair(*w.dilations),
    )  # fmt: skip
    return Call("bdc_conv2d", args, (x.at.buffer, at.buffer), out.at.buffer)


def _image(lo: Lowering, taps: Array, bias: Array | None, npu: int, rows: int) -> _Image:
    """Weights (O, columns) and biases in block rows from an NPU on: where both lie."""
    start, npus = (npu, len(taps)) if rows == 1 else (0, lo.machine.npus)
    columns = taps.shape[1]
    parts = [_in_rows(taps, npu - start, rows, npus)]
    if bias is not None:
        parts.append(_in_rows(bias[:, np.newaxis], npu - start, rows, npus))
    at = replace(lo.rows(f"{lo.node.output}/weights", np.concatenate(parts, axis=1), start), npu=npu)
    return at, None if bias is None else at.shifted(ELEMENT * rows * columns)


def _in_rows(values: Array, first: int, rows: int, npus: int) -> Array:
    """(npus, rows * columns): channel o, (O, columns), in block row (first + o) // npus of NPU (first + o) % npus."""
    columns = values.shape[1]
    grid = np.zeros((rows * npus, columns), np.float32)
    grid[first : first + len(values)] = values
    return grid.reshape(rows, npus, columns).swapaxes(0, 1).reshape(npus, rows * columns)


def _depthwise_calls(lo: Lowering, form: _Form, x: Tensor, out: Tensor, last: Node) -> None:
    C, _, kh, kw = form.weights.shape
    x = lo.local(last.inputs[0], npu=out.at.npu) if x.at.npu != out.at.npu else x
    rows = ceil_div(out.at.npu + C, lo.machine.npus)
    at, bias = _image(lo, form.weights.reshape(C, kh * kw), form.bias, out.at.npu, rows)
    w = form.window
    args = (
        out.at, x.at, at, bias or at, x.shape, kh, kw, bias is not None,
        padding(w, x.shape, out.shape), Pair(*w.strides), Pair(*w.dilations),
    )  # fmt: skip
    call = Call("bdc_depthwise2d", args, (x.at.buffer, at.buffer), out.at.buffer)
    lo.emit(call, *activation(last, out))


def padding(window: Window, x: Dim4, out: Dim4) -> Padding:
    """The padding that gives exactly the output's extents: rows that no window reaches are none."""
    ends: list[int] = []
    for axis, (extent, count) in enumerate(((x.h, out.h), (x.w, out.w))):
        reached = (count - 1) * window.strides[axis] + window.reach[axis]
        ends.append(max(reached - extent - window.begins[axis], 0))
    return Padding(window.begins[0], ends[0], window.begins[1], ends[1])


def band(lo: Lowering, weights: Array, bias: Array, x: Tensor, out: Tensor, last: Node) -> None:
    """A product of channels, weights (O, I) and bias (O,), as a convolution of single pixels."""
    window = Window((1, 1), (1, 1), (0, 0), (0, 0), (1, 1))
    convolve(lo, _Form(window, weights[:, :, np.newaxis, np.newaxis], bias, False), x, out, last)


def conv_transpose(lo: Lowering, node: Node) -> None:
    """ConvTranspose: the convolution with turned kernels over the image with zeros between its pixels."""
    weights = lo.graph.constant(node.inputs[1])
    if weights is None:
        raise lo.refusal(f"the weights '{node.inputs[1]}' are computed at run time")
    bias = lo.graph.constant(node.inputs[2]) if len(node.inputs) > 2 and node.inputs[2] else None
    w, x = window_of(node, weights.shape[2:]), lo.local(node.inputs[0])
    before = [reach - 1 - begin for reach, begin in zip(w.reach, w.begins, strict=True)]
    if min(before) < 0:
        raise lo.refusal(f"the padding {list(w.begins)} exceeds the kernel")
    spread = _spread(lo, x, w.strides)
    group, (inputs, outputs) = node.integer("group", 1), weights.shape[:2]
    turned = weights[:, :, ::-1, ::-1].reshape(group, inputs // group, outputs, *w.kernel).swapaxes(1, 2)
    window = Window(w.kernel, (1, 1), (before[0], before[1]), (0, 0), w.dilations)
    form = _Form(window, turned.reshape(group * outputs, inputs // group, *w.kernel), bias, False)
    out = lo.output(node.output, Dim4(*lo.graph.shape(node.output)))
    for part, source, target in _groups(lo, form, spread, out, group):
        convolve(lo, part, source, target, node)
    lo.define(node.output, out)


def _spread(lo: Lowering, x: Tensor, strides: tuple[int, ...]) -> Tensor:
    """The image with strides - 1 zeros between neighbouring pixels."""
    if strides == (1, 1):
        return x
    h, w = ((extent - 1) * stride + 1 for extent, stride in zip(x.shape[2:], strides, strict=True))
    spread = lo.new(f"{lo.node.output}/spread", x.shape._replace(h=h, w=w), x.at.npu)
    step = spread.stride(lo.machine)
    to = step._replace(h=step.h * strides[0], w=strides[1])
    lo.emit(
        Call("bdc_32bit_set_C", (spread.at, 0.0, spread.shape, None), (), spread.at.buffer),
        Call("bdc_32bit_cpy", (spread.at, x.at, x.shape, to, None), (x.at.buffer,), spread.at.buffer),
    )
    return spread


STRIPS = 8
"""Parts of an image that a convolution starts on while the next ones are still being loaded."""


def streams(lo: Lowering, node: Node) -> bool:
    """Whether the convolution alone reads an input of the network, one image, and is dense."""
    name, shape = node.inputs[0], lo.graph.shape(node.inputs[0])
    alone = lo.graph.only_reader(name) is not None and not lo.is_local(name) and lo.from_outside(name)
    return alone and node.integer("group", 1) == 1 and len(shape) == 4 and shape[0] == 1


def stream(lo: Lowering, node: Node) -> None:
    """A convolution of an input of the network, strip by strip of its rows, with more channels where that pays."""
    form, view = _form(lo, node, add=False), lo.view(node.inputs[0])
    image, out = Dim4(*lo.graph.shape(node.inputs[0])), lo.output(node.output, Dim4(*lo.graph.shape(node.output)))
    channels = _cheapest_channels(form, image.c, lo)
    more = np.zeros((len(form.weights), channels - image.c, *form.weights.shape[2:]), np.float32)
    form = replace(form, weights=np.concatenate([form.weights, more], axis=1))
    pieces = [
        (form.channels(a, b), out.channels(a, b, lo.machine)) for a, b in _single_rows(out, lo.machine.npus)
    ]
    images = [_image(lo, _taps(part.weights), part.bias, target.at.npu, 1) for part, target in pieces]
    rows = _strip_rows(out.shape)
    for first in range(0, out.shape.h, rows):
        count = min(rows, out.shape.h - first)
        x, window = _strip(lo, view, image._replace(c=channels), form.window, first, count)
        for (part, target), weights in zip(pieces, images, strict=True):
            at = target.at.shifted(ELEMENT * first * out.shape.w)
            strip = Tensor(target.shape._replace(h=count), at)
            lo.emit(_call(replace(part, window=window), weights, x, strip), *activation(node, strip))
    lo.define(node.output, out)


def _cheapest_channels(form: _Form, channels: int, lo: Lowering) -> int:
    """As many input channels as cost least, up to four: three cost more than four."""
    kernel, stride = form.window.kernel, form.window.strides[1]

    def cost(count: int) -> tuple[int, int]:
        return timing.conv2d(16, count, kernel[0], kernel[1], stride, form.bias is not None, lo.machine), count

    return min(range(channels, max(channels, 4) + 1), key=cost)


def _single_rows(out: Tensor, npus: int) -> Iterator[tuple[int, int]]:
    """Output channels [first, behind) of every block row."""
    first = 0
    while first < out.shape.c:
        behind = min(out.shape.c, first + npus - (out.at.npu if first == 0 else 0))
        yield first, behind
        first = behind


def _strip_rows(out: Dim4) -> int:
    """Rows of the output in a strip: strips start at multiples of 128 bytes."""
    step = 32 // gcd(32, out.w)
    return ceil_div(ceil_div(out.h, STRIPS), step) * step


def _strip(
    lo: Lowering, view: View, image: Dim4, window: Window, first: int, count: int
) -> tuple[Tensor, Window]:
    """The rows of an image under `count` rows of the output, with zeros as further channels, and their window."""
    low = first * window.strides[0] - window.begins[0]
    high = (first + count - 1) * window.strides[0] + window.reach[0] - window.begins[0]
    start, behind = max(low, 0), min(high, image.h)
    part = view.sliced(2, start, behind - start)
    assert part is not None
    x = lo.new(f"{lo.node.inputs[0]}/rows", image._replace(h=behind - start))
    have = prod(extent for extent, _ in view.axes[1])
    lo.fill(x.channels(0, have, lo.machine), part)
    if have < image.c:
        zeros = View(WEIGHTS, lo.zeros(image.w) // ELEMENT, (((1, 0),), ((image.c - have, 0),), ((x.shape.h, 0),), ((image.w, 1),)))
        lo.fill(x.channels(have, image.c, lo.machine), zeros)
    return x, replace(window, begins=(start - low, window.begins[1]))
