"""Convolutions of a network input that start before the whole image is in local memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import gcd, prod

import numpy as np

from npuc.ir import Node
from npuc.ops.attributes import GROUP
from npuc.ops.windows import Window, window_of
from npuc.targets.bm1684.lowering.context import WEIGHTS, Lowering
from npuc.targets.bm1684.lowering.conv_calls import Form, conv_call, form_of, row_bytes, taps, weight_image
from npuc.targets.bm1684.lowering.elementwise import activation
from npuc.targets.bm1684.lowering.slicing import SHARE
from npuc.targets.bm1684.lowering.tensors import ELEMENT, Tensor, View
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
    if not (alone and dense) or weights is None or lo.view(name).sliced(2, 0, 1) is None:
        return False
    window = window_of(node, weights.shape[2:])
    if max(window.begins[0], window.ends[0]) >= window.reach[0]:
        return False
    size = ceil_div(len(weights), lo.machine.npus) * row_bytes(weights)
    return size <= (1 - SHARE) * lo.machine.local_bytes


def stream(lo: Lowering, node: Node) -> None:
    """Emits a convolution of a network input strip by strip, with zero channels added where that pays."""
    form, view = _folded(lo, form_of(lo, node, add=False), lo.view(node.inputs[0]))
    image, out = Dim4(*view.shape), lo.output(node.output, Dim4(*lo.graph.shape(node.output)))
    channels = _cheapest_channels(form, image.c, lo)
    more = np.zeros((len(form.weights), channels - image.c, *form.weights.shape[2:]), np.float32)
    form = replace(form, weights=np.concatenate([form.weights, more], axis=1))
    pieces = [(form.channels(a, b), out.channels(a, b, lo.machine)) for a, b in _single_rows(out, lo.machine.npus)]
    images = [weight_image(lo, taps(part.weights), part.bias, target.at.npu, 1) for part, target in pieces]
    rows = _strip_rows(out.shape, min(STRIPS, max(1, ELEMENT * prod(image) // STRIP_BYTES)))
    for first in range(0, out.shape.h, rows):
        count = min(rows, out.shape.h - first)
        x, window = _strip(lo, view, image._replace(c=channels), form.window, first, count)
        for (part, target), weights in zip(pieces, images, strict=True):
            at = target.at.shifted(ELEMENT * first * out.shape.w)
            strip = Tensor(target.shape._replace(h=count), at)
            lo.emit(conv_call(replace(part, window=window), weights, x, strip), *activation(node, strip))
    lo.define(node.output, out)


def _folded(lo: Lowering, form: Form, view: View) -> tuple[Form, View]:
    """The convolution with rows of the image turned into channels, if its stride allows it and it costs less.

    Row f * q + p of channel c becomes row q of channel p * C + c, likewise in the kernel. Windows of 7 rows with
    stride 2 on three channels become windows of 4 rows on six channels: 84 products instead of 98.
    """
    window, rows = form.window, view.shape[2]
    ways = [each for each in range(1, window.strides[0] + 1) if window.strides[0] % each == rows % each == 0]
    if window.dilations[0] > 1 or len(view.axes[2]) > 1:
        ways = [1]
    forms = {each: _fold(form, each) for each in ways}

    def cost(each: int) -> tuple[int, int]:
        folded = forms[each]
        return _cost(folded, _cheapest_channels(folded, folded.weights.shape[1], lo), lo), each

    best = min(ways, key=cost)
    if best == 1:
        return form, view
    batch, channels, ((extent, step),), columns = view.axes
    axes = (batch, ((best, step), *channels), ((extent // best, step * best),), columns)
    return forms[best], replace(view, axes=axes)


def _fold(form: Form, by: int) -> Form:
    """The convolution of an image with every `by` rows turned into channels of one row."""
    window, (outputs, inputs, height, width) = form.window, form.weights.shape
    begin = ceil_div(window.begins[0], by)
    above = begin * by - window.begins[0]
    kernel = ceil_div(above + height, by)
    weights = np.zeros((outputs, inputs, kernel * by, width), np.float32)
    weights[:, :, above : above + height] = form.weights
    weights = weights.reshape(outputs, inputs, kernel, by, width).transpose(0, 3, 1, 2, 4)
    begins, ends = (begin, window.begins[1]), (ceil_div(window.ends[0], by), window.ends[1])
    strides = (window.strides[0] // by, window.strides[1])
    folded = Window((kernel, width), strides, begins, ends, window.dilations)
    return replace(form, window=folded, weights=weights.reshape(outputs, by * inputs, kernel, width))


def _cost(form: Form, channels: int, lo: Lowering) -> int:
    """Cycles of 16 groups of the result with this number of input channels."""
    kernel, stride = form.window.kernel, form.window.strides[1]
    return timing.conv2d(16, channels, kernel[0], kernel[1], stride, form.bias is not None, lo.machine)


def _cheapest_channels(form: Form, channels: int, lo: Lowering) -> int:
    """The number of input channels, padded up to four, that costs least: three cost more than four."""
    return min(range(channels, max(channels, 4) + 1), key=lambda count: (_cost(form, count, lo), count))


def _single_rows(out: Tensor, npus: int) -> Iterator[tuple[int, int]]:
    """The output channels [first, behind) of every block row."""
    first = 0
    while first < out.shape.c:
        behind = min(out.shape.c, first + npus - (out.at.npu if first == 0 else 0))
        yield first, behind
        first = behind


def _strip_rows(out: Dim4, strips: int) -> int:
    """The output rows per strip, so that strips start at multiples of 128 bytes."""
    step = 32 // gcd(32, out.w)
    return ceil_div(ceil_div(out.h, strips), step) * step


def _strip(lo: Lowering, view: View, image: Dim4, window: Window, first: int, count: int) -> tuple[Tensor, Window]:
    """The image rows that `count` output rows read, padded with zero channels, and the window on them."""
    low = first * window.strides[0] - window.begins[0]
    high = (first + count - 1) * window.strides[0] + window.reach[0] - window.begins[0]
    start, behind = max(low, 0), min(high, image.h)
    part = view.sliced(2, start, behind - start)
    assert part is not None
    x = lo.new(f"{lo.node.inputs[0]}/rows", image._replace(h=behind - start))
    have = prod(extent for extent, _ in view.axes[1])
    lo.fill(x.channels(0, have, lo.machine), part)
    if have < image.c:
        zeros = View(
            WEIGHTS,
            lo.weights.zeros(image.w) // ELEMENT,
            (((1, 0),), ((image.c - have, 0),), ((x.shape.h, 0),), ((image.w, 1),)),
        )
        lo.fill(x.channels(have, image.c, lo.machine), zeros)
    return x, replace(window, begins=(start - low, window.begins[1]))
