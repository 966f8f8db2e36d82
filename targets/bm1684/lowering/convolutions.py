"""Conv and ConvTranspose: dense in pieces, groups singly or merged, depthwise in one call.

Convolutions of a network input that start before the whole image is in local memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import gcd, prod

import numpy as np

from npuc.ir import Node
from npuc.ops import has_input
from npuc.ops.attributes import ACTIVATION, GROUP
from npuc.ops.windows import Window, window_of
from npuc.targets.bm1684.lowering.context import WEIGHTS, Lowering
from npuc.targets.bm1684.lowering.conv_calls import (
    ConvForm,
    block_diagonal,
    block_rows,
    conv_call,
    convolve,
    form_of,
    padding,
    row_bytes,
    taps,
    weight_image,
)
from npuc.targets.bm1684.lowering.elementwise import activation_calls
from npuc.targets.bm1684.lowering.kernel import Call, Pair, call
from npuc.targets.bm1684.lowering.slicing import SHARE
from npuc.targets.bm1684.lowering.tensors import ELEMENT, SystemView, Tensor
from npuc.targets.bm1684.machine import timing
from npuc.targets.bm1684.machine.local_memory import Dim4, ceil_div

STRIPS, STRIP_BYTES = 8, 16 * 1024
"""The most strips of an image, and their least bytes: one is computed while the next are being loaded."""


def streams(lo: Lowering, node: Node) -> bool:
    """Whether a convolution is the sole reader of a network input, a single image, and dense with small weights.

    All weights stay in local memory for all strips. No window is entirely in the padding: every strip has rows.
    The rows of the image are evenly spaced in memory, so that a strip of them can be loaded.
    """
    name, shape = node.inputs[0], lo.graph.shape(node.inputs[0])
    alone = lo.graph.only_reader(name) is not None and not lo.is_local(name) and lo.from_outside(name)
    dense = GROUP(node) == 1 and len(shape) == 4 and shape[0] == 1
    weights = lo.graph.constant(node.inputs[1])
    if not (alone and dense) or weights is None or lo.view(name).slice_axis(2, 0, 1) is None:
        return False
    window = window_of(node, weights.shape[2:])
    if max(window.begins[0], window.ends[0]) >= window.reach[0]:
        return False
    size = ceil_div(len(weights), lo.machine.npus) * row_bytes(weights)
    return size <= (1 - SHARE) * lo.machine.local_bytes


def stream(lo: Lowering, node: Node) -> None:
    """Emits a convolution of a network input strip by strip, with zero channels added where that pays."""
    form, view = _fold_cheapest(lo, form_of(lo, node, add=False), lo.view(node.inputs[0]))
    image, out = Dim4(*view.shape), lo.output(node.output, Dim4(*lo.graph.shape(node.output)))
    channels = _cheapest_channels(form, image.c, lo)
    more = np.zeros((len(form.weights), channels - image.c, *form.weights.shape[2:]), np.float32)
    form = replace(form, weights=np.concatenate([form.weights, more], axis=1))
    pieces = [(form.channels(a, b), out.channels(a, b, lo.machine)) for a, b in single_rows(out, lo.machine.npus)]
    images = [weight_image(lo, taps(part.weights), part.bias, target.at.npu, 1) for part, target in pieces]
    rows = strip_rows(out.shape, min(STRIPS, max(1, ELEMENT * prod(image) // STRIP_BYTES)))
    for first in range(0, out.shape.h, rows):
        count = min(rows, out.shape.h - first)
        x, window = _strip(lo, view, image._replace(c=channels), form.window, first, count)
        for (part, target), weights in zip(pieces, images, strict=True):
            at = target.at.shift(ELEMENT * first * out.shape.w)
            strip = Tensor(target.shape._replace(h=count), at)
            lo.emit(conv_call(replace(part, window=window), weights, x, strip), *activation_calls(node, strip))
    lo.define(node.output, out)


def _fold_cheapest(lo: Lowering, form: ConvForm, view: SystemView) -> tuple[ConvForm, SystemView]:
    """The convolution with rows of the image turned into channels, if its stride allows it and it costs less.

    Row f * q + p of channel c becomes row q of channel p * C + c, likewise in the kernel. Windows of 7 rows with
    stride 2 on three channels become windows of 4 rows on six channels: 84 products instead of 98.
    """
    ways = folds(form, view)
    forms = {each: fold(form, each) for each in ways}

    def cost(each: int) -> tuple[int, int]:
        folded = forms[each]
        return _cost(folded, _cheapest_channels(folded, folded.weights.shape[1], lo), lo), each

    best = min(ways, key=cost)
    return forms[best], folded_view(view, best)


def folds(form: ConvForm, view: SystemView) -> list[int]:
    """How many rows of the image may become one: 1, and more that its stride and its rows are multiples of."""
    stride, rows = form.window.strides[0], view.shape[2]
    if form.window.dilations[0] > 1 or len(view.axes[2]) > 1:
        return [1]
    return [each for each in range(1, stride + 1) if stride % each == rows % each == 0]


def folded_view(view: SystemView, by: int) -> SystemView:
    """The image with every `by` rows turned into channels of one row."""
    if by == 1:
        return view
    batch, channels, ((extent, step),), columns = view.axes
    return replace(view, axes=(batch, ((by, step), *channels), ((extent // by, step * by),), columns))


def fold(form: ConvForm, by: int) -> ConvForm:
    """The convolution of an image with every `by` rows turned into channels of one row."""
    if by == 1:
        return form
    window, (outputs, inputs, height, width) = form.window, form.weights.shape
    begin = ceil_div(window.begins[0], by)
    above = begin * by - window.begins[0]
    kernel = ceil_div(above + height, by)
    weights = np.zeros((outputs, inputs, kernel * by, width), form.weights.dtype)
    weights[:, :, above : above + height] = form.weights
    weights = weights.reshape(outputs, inputs, kernel, by, width).transpose(0, 3, 1, 2, 4)
    begins, ends = (begin, window.begins[1]), (ceil_div(window.ends[0], by), window.ends[1])
    strides = (window.strides[0] // by, window.strides[1])
    folded = Window((kernel, width), strides, begins, ends, window.dilations)
    return replace(form, window=folded, weights=weights.reshape(outputs, by * inputs, kernel, width))


def _cost(form: ConvForm, channels: int, lo: Lowering) -> int:
    """Cycles of 16 groups of the result with this number of input channels."""
    kernel, stride = form.window.kernel, form.window.strides[1]
    return timing.conv2d(16, channels, kernel[0], kernel[1], stride, form.bias is not None, lo.machine)


def _cheapest_channels(form: ConvForm, channels: int, lo: Lowering) -> int:
    """The number of input channels, padded up to four, that costs least: three cost more than four."""
    return min(range(channels, max(channels, 4) + 1), key=lambda count: (_cost(form, count, lo), count))


def single_rows(out: Tensor, npus: int) -> Iterator[tuple[int, int]]:
    """The output channels [first, behind) of every block row."""
    first = 0
    while first < out.shape.c:
        behind = min(out.shape.c, first + npus - (out.at.npu if first == 0 else 0))
        yield first, behind
        first = behind


def strip_rows(out: Dim4, strips: int) -> int:
    """The output rows per strip, so that strips start at multiples of 128 bytes."""
    step = 32 // gcd(32, out.w)
    return ceil_div(ceil_div(out.h, strips), step) * step


def _strip(
    lo: Lowering, view: SystemView, image: Dim4, window: Window, first: int, count: int
) -> tuple[Tensor, Window]:
    """The image rows that `count` output rows read, padded with zero channels, and the window on them."""
    low = first * window.strides[0] - window.begins[0]
    high = (first + count - 1) * window.strides[0] + window.reach[0] - window.begins[0]
    start, behind = max(low, 0), min(high, image.h)
    part = view.slice_axis(2, start, behind - start)
    assert part is not None
    x = lo.new_tensor(f"{lo.node.inputs[0]}/rows", image._replace(h=behind - start))
    have = prod(extent for extent, _ in view.axes[1])
    lo.fill(x.channels(0, have, lo.machine), part)
    if have < image.c:
        zeros = SystemView(
            WEIGHTS,
            lo.weights.zeros(image.w) // ELEMENT,
            (((1, 0),), ((image.c - have, 0),), ((x.shape.h, 0),), ((image.w, 1),)),
        )
        lo.fill(x.channels(have, image.c, lo.machine), zeros)
    return x, replace(window, begins=(start - low, window.begins[1]))


def conv(lo: Lowering, node: Node) -> None:
    """Conv: dense, grouped or depthwise, with its bias and activation."""
    if streams(lo, node):
        stream(lo, node)
        return
    out = _output(lo, node)
    _convolve(lo, node, node, out, add=False)
    lo.define(node.output, out)


def conv_onto(lo: Lowering, node: Node, onto: Tensor, last: Node) -> None:
    """A Conv accumulated onto a tensor in local memory (result_add), then the activation of `last`."""
    _convolve(lo, node, last, onto, add=True)
    lo.define(last.output, onto)


def takes_sum(node: Node, channels: int) -> bool:
    """Whether a convolution can accumulate onto its output: not a depthwise one, nor one with an activation."""
    return node.op == "Conv" and not ACTIVATION(node) and not _depthwise(node, channels)


def _output(lo: Lowering, node: Node) -> Tensor:
    shape = Dim4(*lo.graph.shape(node.output))
    if _depthwise(node, lo.graph.shape(node.inputs[0])[1]):
        return lo.output(node.output, shape, lo.load(node.inputs[0]).at.npu)
    return lo.output(node.output, shape)


def _depthwise(node: Node, channels: int) -> bool:
    return GROUP(node) == channels > 1


def _convolve(lo: Lowering, node: Node, last: Node, out: Tensor, *, add: bool) -> None:
    x, form = lo.load(node.inputs[0]), form_of(lo, node, add=add)
    group = GROUP(node)
    if _depthwise(node, x.shape.c) and out.shape.c == x.shape.c:
        _depthwise_calls(lo, form, x, out, last)
        return
    for part, source, target in _groups(lo, form, x, out, group):
        convolve(lo, part, source, target, last)


def _groups(
    lo: Lowering, form: ConvForm, x: Tensor, out: Tensor, group: int
) -> Iterator[tuple[ConvForm, Tensor, Tensor]]:
    """Each group separately, or several merged into one with zero weights where that costs no more."""
    if group == 1:
        yield form, x, out
        return
    inputs, outputs = x.shape.c // group, out.shape.c // group
    together = _groups_per_call(group, inputs, outputs, lo.machine.npus)
    if x.shape.n > 1 and together < group:
        together = group
    for first in range(0, group, together):
        a, b = first * outputs, (first + together) * outputs
        part = form.channels(a, b)
        part = replace(part, weights=block_diagonal(part.weights, together))
        if together == group:
            yield part, x, out
        else:
            source = x.channels(first * inputs, (first + together) * inputs, lo.machine)
            yield part, source, out.channels(a, b, lo.machine)


def _groups_per_call(group: int, inputs: int, outputs: int, npus: int) -> int:
    """The number of groups that one call computes: fewest multiply steps, then fewest calls."""

    def cost(count: int) -> tuple[int, int]:
        steps = (group // count) * ceil_div(count * outputs, npus) * ceil_div(count * inputs, 2)
        return steps, group // count

    return min((count for count in range(1, group + 1) if group % count == 0), key=cost)


def _depthwise_calls(lo: Lowering, form: ConvForm, x: Tensor, out: Tensor, last: Node) -> None:
    """One call; if the weights do not fit, a piece of them at a time, for one image after the other."""
    x = lo.load(last.inputs[0], npu=out.at.npu) if x.at.npu != out.at.npu else x
    C, (kh, kw), free = out.shape.c, form.window.kernel, lo.free_bytes(x, out)
    rows = ceil_div(out.at.npu + C, lo.machine.npus)
    if rows * ELEMENT * (kh * kw + 1) <= free:
        _depthwise_piece(lo, form, [(x, out)], last, rows)
        return
    images = [(x.image(n, lo.machine), out.image(n, lo.machine)) for n in range(out.shape.n)]
    for first, behind, count in block_rows(lo, out, C, ELEMENT * kh * kw, free):
        parts = [(a.channels(first, behind, lo.machine), b.channels(first, behind, lo.machine)) for a, b in images]
        _depthwise_piece(lo, form.channels(first, behind), parts, last, count)


def _depthwise_piece(
    lo: Lowering, form: ConvForm, images: Sequence[tuple[Tensor, Tensor]], last: Node, rows: int
) -> None:
    (kh, kw), w = form.window.kernel, form.window
    at, bias = weight_image(lo, form.weights.reshape(-1, kh * kw), form.bias, images[0][1].at.npu, rows)
    calls = list[Call]()
    for x, out in images:
        window = (padding(w, x.shape, out.shape), Pair(*w.strides), Pair(*w.dilations))
        operands = (out.at, x.at, at, bias or at, x.shape)
        calls.append(call("bdc_depthwise2d", *operands, kh, kw, bias is not None, *window))
        calls += activation_calls(last, out)
    lo.emit(*calls)


def conv_transpose(lo: Lowering, node: Node) -> None:
    """ConvTranspose: a convolution with flipped kernels of the image with zeros between its pixels."""
    weights = lo.graph.constant(node.inputs[1])
    if weights is None:
        raise lo.refusal(f"the weights '{node.inputs[1]}' are computed at run time")
    bias = lo.graph.constant(node.inputs[2]) if has_input(node, 2) else None
    w, x = window_of(node, weights.shape[2:]), lo.load(node.inputs[0])
    before = [reach - 1 - begin for reach, begin in zip(w.reach, w.begins, strict=True)]
    if min(before) < 0:
        raise lo.refusal(f"the padding {list(w.begins)} exceeds the kernel")
    shape = Dim4(*lo.graph.shape(node.output))
    spread = _spread(lo, x, w.strides, (shape.h + w.begins[0], shape.w + w.begins[1]))
    group, (inputs, outputs) = GROUP(node), weights.shape[:2]
    turned = weights[:, :, ::-1, ::-1].reshape(group, inputs // group, outputs, *w.kernel).swapaxes(1, 2)
    window = Window(w.kernel, (1, 1), (before[0], before[1]), (0, 0), w.dilations)
    form = ConvForm(window, turned.reshape(group * outputs, inputs // group, *w.kernel), bias, False)
    out = lo.output(node.output, shape)
    for part, source, target in _groups(lo, form, spread, out, group):
        convolve(lo, part, source, target, node)
    lo.define(node.output, out)


def _spread(lo: Lowering, x: Tensor, strides: tuple[int, ...], read: tuple[int, int]) -> Tensor:
    """The image with strides - 1 zeros between neighbouring pixels, cropped to the rows and columns read."""
    extents = (x.shape.h, x.shape.w)
    h, w = (min((e - 1) * s + 1, most) for e, s, most in zip(extents, strides, read, strict=True))
    if strides == (1, 1) and (h, w) == extents:
        return x
    pixels = x.shape._replace(h=ceil_div(h, strides[0]), w=ceil_div(w, strides[1]))
    spread = lo.new_tensor(f"{lo.node.output}/spread", x.shape._replace(h=h, w=w), x.at.npu)
    step = spread.stride(lo.machine)
    to = step._replace(h=step.h * strides[0], w=strides[1])
    of = None if pixels == x.shape else x.stride(lo.machine)
    lo.emit(
        call("bdc_32bit_set_C", spread.at, 0.0, spread.shape, None),
        call("bdc_32bit_cpy", spread.at, x.at, pixels, to, of),
    )
    return spread
