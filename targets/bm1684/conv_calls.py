"""Dense convolution calls: weights in the 2IC mode, one NPU an output channel, a piece for every few block rows.

An image of weights holds, per NPU and block row, [J][kh * kw][2] fp32 and behind all block rows their biases, so
that one transfer of long rows brings both. Channels of a piece start where the output starts or at NPU 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from npuc.ir import Array, Node
from npuc.ops.rules import given
from npuc.ops.windows import Window, window_of
from npuc.targets.bm1684.elementwise import activation
from npuc.targets.bm1684.kernel import Call, Local, Padding, Pair
from npuc.targets.bm1684.local_memory import Dim4, ceil_div, to_2ic_mode
from npuc.targets.bm1684.lowering import Lowering
from npuc.targets.bm1684.tensors import ELEMENT, Tensor

PIECE_BYTES = 24 * 1024
"""Weights of a piece in each NPU: small enough to be prefetched step by step."""


@dataclass(frozen=True)
class Form:
    """A convolution's window, weights (O, I / group, kh, kw), bias and whether it adds to its output."""

    window: Window
    weights: Array
    bias: Array | None
    add: bool

    def channels(self, first: int, last: int) -> Form:
        """The same for output channels [first, last)."""
        bias = None if self.bias is None else self.bias[first:last]
        return replace(self, weights=self.weights[first:last], bias=bias)


def form_of(lo: Lowering, node: Node, *, add: bool) -> Form:
    """The form of a Conv. Raises UnsupportedOperator (E202) where weights or bias are no constants."""
    weights = lo.graph.constant(node.inputs[1])
    if weights is None:
        raise lo.refusal(f"the weights '{node.inputs[1]}' are computed at run time")
    biased = given(node, 2)
    bias = lo.graph.constant(node.inputs[2]) if biased else None
    if biased and bias is None:
        raise lo.refusal(f"the bias '{node.inputs[2]}' is computed at run time")
    return Form(window_of(node, weights.shape[2:]), weights, bias, add)


def convolve(lo: Lowering, form: Form, x: Tensor, out: Tensor, last: Node) -> None:
    """Dense convolution calls, a piece of output channels each, and the activation on every piece."""
    for first, behind, rows in _pieces(form.weights, out, lo.machine.npus):
        part = form.channels(first, behind)
        target = out if (first, behind) == (0, out.shape.c) else out.channels(first, behind, lo.machine)
        image = weight_image(lo, taps(part.weights), part.bias, target.at.npu, rows)
        lo.emit(conv_call(part, image, x, target), *activation(last, target))


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


Image = tuple[Local, Local | None]
"""Where weights and biases lie."""


def taps(weights: Array) -> Array:
    """Weights in the 2IC mode, a row for every output channel: (O, J * kh * kw * 2)."""
    return np.moveaxis(to_2ic_mode(np.swapaxes(weights, 0, 1)), 0, 1).reshape(len(weights), -1)


def conv_call(form: Form, image: Image, x: Tensor, out: Tensor) -> Call:
    """The call of a dense convolution whose weights lie in an image."""
    O, I, kh, kw = form.weights.shape  # noqa: E741
    (at, bias), w = image, form.window
    args = (
        out.at, x.at, at, bias or at, x.shape, O, kh, kw,
        None, Dim4(kh * kw, ceil_div(I, 2) * kh * kw, kw, 1), bias is not None, form.add,
        padding(w, x.shape, out.shape), Pair(*w.strides), Pair(*w.dilations),
    )  # fmt: skip
    return Call("bdc_conv2d", args, (x.at.buffer, at.buffer), out.at.buffer)


def weight_image(lo: Lowering, taps: Array, bias: Array | None, npu: int, rows: int) -> Image:
    """Weights (O, columns) and biases in block rows from an NPU on: where both lie."""
    start, npus = (npu, len(taps)) if rows == 1 else (0, lo.machine.npus)
    columns = taps.shape[1]
    parts = [_in_rows(taps, npu - start, rows, npus)]
    if bias is not None:
        parts.append(_in_rows(bias[:, np.newaxis], npu - start, rows, npus))
    at = replace(lo.rows(f"{lo.node.output}/weights", np.concatenate(parts, axis=1), start), npu=npu)
    return at, None if bias is None else at.shifted(ELEMENT * rows * columns)


def _in_rows(values: Array, first: int, rows: int, npus: int) -> Array:
    """(npus, rows * columns): channel o of (O, columns) in block row (first + o) // npus."""
    columns = values.shape[1]
    grid = np.zeros((rows * npus, columns), np.float32)
    grid[first : first + len(values)] = values
    return grid.reshape(rows, npus, columns).swapaxes(0, 1).reshape(npus, rows * columns)


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
    convolve(lo, Form(window, weights[:, :, np.newaxis, np.newaxis], bias, False), x, out, last)
