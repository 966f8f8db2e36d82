"""Conv and ConvTranspose: dense in pieces, groups singly or merged, depthwise in one call."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from npuc.ir import Node
from npuc.ops import given
from npuc.ops.attributes import ACTIVATION, GROUP
from npuc.ops.windows import Window, window_of
from npuc.targets.bm1684.lowering.context import Lowering
from npuc.targets.bm1684.lowering.conv_calls import (
    Form,
    block_diagonal,
    block_rows,
    convolve,
    form_of,
    padding,
    weight_image,
)
from npuc.targets.bm1684.lowering.elementwise import activation
from npuc.targets.bm1684.lowering.kernel import Call, Pair, call
from npuc.targets.bm1684.lowering.streaming import stream, streams
from npuc.targets.bm1684.lowering.tensors import ELEMENT, Tensor
from npuc.targets.bm1684.machine.local_memory import Dim4, ceil_div


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
        return lo.output(node.output, shape, lo.local(node.inputs[0]).at.npu)
    return lo.output(node.output, shape)


def _depthwise(node: Node, channels: int) -> bool:
    return GROUP(node) == channels > 1


def _convolve(lo: Lowering, node: Node, last: Node, out: Tensor, *, add: bool) -> None:
    x, form = lo.local(node.inputs[0]), form_of(lo, node, add=add)
    group = GROUP(node)
    if _depthwise(node, x.shape.c) and out.shape.c == x.shape.c:
        _depthwise_calls(lo, form, x, out, last)
        return
    for part, source, target in _groups(lo, form, x, out, group):
        convolve(lo, part, source, target, last)


def _groups(lo: Lowering, form: Form, x: Tensor, out: Tensor, group: int) -> Iterator[tuple[Form, Tensor, Tensor]]:
    """Each group separately, or several merged into one with zero weights where that costs no more."""
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
        part = replace(part, weights=block_diagonal(part.weights, together))
        if together == group:
            yield part, x, out
        else:
            source = x.channels(first * inputs, (first + together) * inputs, lo.machine)
            yield part, source, out.channels(a, b, lo.machine)


def _together(group: int, inputs: int, outputs: int, npus: int) -> int:
    """The number of groups that one call computes: fewest multiply steps, then fewest calls."""

    def cost(count: int) -> tuple[int, int]:
        steps = (group // count) * ceil_div(count * outputs, npus) * ceil_div(count * inputs, 2)
        return steps, group // count

    return min((count for count in range(1, group + 1) if group % count == 0), key=cost)


def _depthwise_calls(lo: Lowering, form: Form, x: Tensor, out: Tensor, last: Node) -> None:
    """One call; if the weights do not fit, a piece of them at a time, for one image after the other."""
    x = lo.local(last.inputs[0], npu=out.at.npu) if x.at.npu != out.at.npu else x
    C, (kh, kw), room = out.shape.c, form.window.kernel, lo.room(x, out)
    rows = ceil_div(out.at.npu + C, lo.machine.npus)
    if rows * ELEMENT * (kh * kw + 1) <= room:
        _depthwise_piece(lo, form, [(x, out)], last, rows)
        return
    images = [(x.image(n, lo.machine), out.image(n, lo.machine)) for n in range(out.shape.n)]
    for first, behind, count in block_rows(lo, out, C, ELEMENT * kh * kw, room):
        parts = [(a.channels(first, behind, lo.machine), b.channels(first, behind, lo.machine)) for a, b in images]
        _depthwise_piece(lo, form.channels(first, behind), parts, last, count)


def _depthwise_piece(
    lo: Lowering, form: Form, images: Sequence[tuple[Tensor, Tensor]], last: Node, rows: int
) -> None:
    (kh, kw), w = form.window.kernel, form.window
    at, bias = weight_image(lo, form.weights.reshape(-1, kh * kw), form.bias, images[0][1].at.npu, rows)
    calls = list[Call]()
    for x, out in images:
        window = (padding(w, x.shape, out.shape), Pair(*w.strides), Pair(*w.dilations))
        operands = (out.at, x.at, at, bias or at, x.shape)
        calls.append(call("bdc_depthwise2d", *operands, kh, kw, bias is not None, *window))
        calls += activation(last, out)
    lo.emit(*calls)


def conv_transpose(lo: Lowering, node: Node) -> None:
    """ConvTranspose: a convolution with flipped kernels of the image with zeros between its pixels."""
    weights = lo.graph.constant(node.inputs[1])
    if weights is None:
        raise lo.refusal(f"the weights '{node.inputs[1]}' are computed at run time")
    bias = lo.graph.constant(node.inputs[2]) if given(node, 2) else None
    w, x = window_of(node, weights.shape[2:]), lo.local(node.inputs[0])
    before = [reach - 1 - begin for reach, begin in zip(w.reach, w.begins, strict=True)]
    if min(before) < 0:
        raise lo.refusal(f"the padding {list(w.begins)} exceeds the kernel")
    shape = Dim4(*lo.graph.shape(node.output))
    spread = _spread(lo, x, w.strides, (shape.h + w.begins[0], shape.w + w.begins[1]))
    group, (inputs, outputs) = GROUP(node), weights.shape[:2]
    turned = weights[:, :, ::-1, ::-1].reshape(group, inputs // group, outputs, *w.kernel).swapaxes(1, 2)
    window = Window(w.kernel, (1, 1), (before[0], before[1]), (0, 0), w.dilations)
    form = Form(window, turned.reshape(group * outputs, inputs // group, *w.kernel), bias, False)
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
    spread = lo.new(f"{lo.node.output}/spread", x.shape._replace(h=h, w=w), x.at.npu)
    step = spread.stride(lo.machine)
    to = step._replace(h=step.h * strides[0], w=strides[1])
    of = None if pixels == x.shape else x.stride(lo.machine)
    lo.emit(
        call("bdc_32bit_set_C", spread.at, 0.0, spread.shape, None),
        call("bdc_32bit_cpy", spread.at, x.at, pixels, to, of),
    )
    return spread
