"""Dense convolution calls: weights in 2IC mode, one output channel per NPU, in pieces of a few block rows.

A weight image holds, per NPU, [J][kh * kw][2] fp32 for each block row and, behind all block rows, their biases, so
that one transfer of long rows loads both. A piece's channels start at the output's first NPU or at NPU 0.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Node
from npuc.ops import has_input
from npuc.ops.windows import Window, window_of
from npuc.targets.bm1684.lowering.context import Lowering
from npuc.targets.bm1684.lowering.elementwise import activation_calls
from npuc.targets.bm1684.lowering.kernel import Call, Local, Padding, Pair, call
from npuc.targets.bm1684.lowering.tensors import ELEMENT, Tensor
from npuc.targets.bm1684.machine.local_memory import Dim4, ceil_div, to_2ic_mode

PIECE_BYTES = 24 * 1024
"""Weight bytes of a piece per NPU: small enough to be prefetched step by step."""


@frozen
class ConvForm:
    """A convolution's window, weights (O, I / group, kh, kw), bias and whether it adds to its output."""

    window: Window
    weights: Array
    bias: Array | None
    add: bool

    def channels(self, first: int, last: int) -> ConvForm:
        """The form restricted to output channels [first, last)."""
        bias = None if self.bias is None else self.bias[first:last]
        return replace(self, weights=self.weights[first:last], bias=bias)

    def inputs(self, first: int, last: int) -> ConvForm:
        """The form restricted to input channels [first, last), added to the sums of the preceding ones."""
        bias, add = (self.bias, self.add) if first == 0 else (None, True)
        return replace(self, weights=self.weights[:, first:last], bias=bias, add=add)


def form_of(lo: Lowering, node: Node, *, add: bool) -> ConvForm:
    """The form of a Conv. Raises UnsupportedOperator (E202) if weights or bias are not constant."""
    weights = lo.graph.constant(node.inputs[1])
    if weights is None:
        raise lo.refusal(f"the weights '{node.inputs[1]}' are computed at run time")
    biased = has_input(node, 2)
    bias = lo.graph.constant(node.inputs[2]) if biased else None
    if biased and bias is None:
        raise lo.refusal(f"the bias '{node.inputs[2]}' is computed at run time")
    return ConvForm(window_of(node, weights.shape[2:]), weights, bias, add)


def convolve(lo: Lowering, form: ConvForm, x: Tensor, out: Tensor, last: Node) -> None:
    """Emits dense convolution calls, one per piece of output channels, with the activation on every piece.

    Weights that do not fit are divided further: each piece serves one image after the other, and if a single block
    row exceeds local memory, it is divided by input channels, whose partial sums are accumulated (result_add).
    """
    free = lo.free_bytes(x, out)
    all_rows = ceil_div(out.at.npu + len(form.weights), lo.machine.npus)
    if out.shape.n > 1 and all_rows * (row_bytes(form.weights) + ELEMENT) <= free:
        _emit_piece(lo, form, [(x, out)], last, all_rows)
        return
    images = [(x.image(n, lo.machine), out.image(n, lo.machine)) for n in range(out.shape.n)]
    for first, behind, rows in block_rows(lo, out, len(form.weights), row_bytes(form.weights), free):
        part = form.channels(first, behind)
        targets = [(a, b.channels(first, behind, lo.machine)) for a, b in images]
        slices = list(_input_slices(part, free))
        for low, high in slices:
            done = high == x.shape.c
            sources = [(a if done and not low else a.channels(low, high, lo.machine), b) for a, b in targets]
            _emit_piece(lo, part.inputs(low, high), sources, last if done else None, rows)


def _emit_piece(
    lo: Lowering, form: ConvForm, images: Sequence[tuple[Tensor, Tensor]], last: Node | None, rows: int
) -> None:
    """Emits one step: weights in `rows` block rows, used for every image, and the activation of `last`."""
    image = weight_image(lo, taps(form.weights), form.bias, images[0][1].at.npu, rows)
    calls = [
        each
        for x, out in images
        for each in (conv_call(form, image, x, out), *(activation_calls(last, out) if last else ()))
    ]
    lo.emit(*calls)


def block_diagonal(weights: Array, groups: int) -> Array:
    """Dense weights of merged groups, with zeros for input channels that a group does not read."""
    outputs, inputs = weights.shape[0] // groups, weights.shape[1]
    dense = np.zeros((len(weights), groups * inputs, *weights.shape[2:]), weights.dtype)
    for g in range(groups):
        rows = slice(g * outputs, (g + 1) * outputs)
        dense[rows, g * inputs : (g + 1) * inputs] = weights[rows]
    return dense


def row_bytes(weights: Array) -> int:
    """Bytes per NPU of one block row of weights (O, I, kh, kw), without its bias."""
    return ELEMENT * ceil_div(weights.shape[1], 2) * 2 * weights.shape[2] * weights.shape[3]


def _input_slices(form: ConvForm, free: int) -> Iterator[tuple[int, int]]:
    """Ranges [first, behind) of input channels: all if a block row fits, else the fewest that fit in pairs."""
    inputs, size = form.weights.shape[1], row_bytes(form.weights) + ELEMENT
    parts = 1 if size <= free else ceil_div(2 * size, max(free, 1))
    step = ceil_div(ceil_div(inputs, min(parts, inputs)), 2) * 2
    for first in range(0, inputs, step):
        yield first, min(first + step, inputs)


def block_rows(lo: Lowering, out: Tensor, outputs: int, size: int, free: int) -> Iterator[tuple[int, int, int]]:
    """Ranges [first, behind) of output channels, each in `rows` block rows of `size` bytes plus biases.

    Full block rows are grouped, up to PIECE_BYTES or half of the free bytes; a partial first or last one is alone.
    """
    npu, npus = out.at.npu, lo.machine.npus
    most = max(1, min(PIECE_BYTES // size, free // 2 // (size + ELEMENT)))
    first = 0
    while first < outputs:
        start = npu if first == 0 else 0
        npus_left = npus - start
        rows = 1 if start else max(1, min(most, (outputs - first) // npus))
        behind = min(outputs, first + (npus_left if rows == 1 else rows * npus))
        yield first, behind, rows
        first = behind


Image = tuple[Local, Local | None]
"""The addresses of weights and biases."""


def taps(weights: Array) -> Array:
    """Weights in 2IC mode, one row per output channel: (O, J * kh * kw * 2)."""
    return np.moveaxis(to_2ic_mode(np.swapaxes(weights, 0, 1)), 0, 1).reshape(len(weights), -1)


def conv_call(form: ConvForm, image: Image, x: Tensor, out: Tensor) -> Call:
    """The call of a dense convolution with the weights of an image."""
    O, I, kh, kw = form.weights.shape  # noqa: E741
    (at, bias), w = image, form.window
    return call(
        "bdc_conv2d", out.at, x.at, at, bias or at, x.shape, O, kh, kw,
        None, Dim4(kh * kw, ceil_div(I, 2) * kh * kw, kw, 1), bias is not None, form.add,
        padding(w, x.shape, out.shape), Pair(*w.strides), Pair(*w.dilations),
    )  # fmt: skip


def weight_image(lo: Lowering, taps: Array, bias: Array | None, npu: int, rows: int) -> Image:
    """Places weights (O, columns) and biases in block rows, starting at an NPU; returns both addresses."""
    start, npus = (npu, len(taps)) if rows == 1 else (0, lo.machine.npus)
    columns = taps.shape[1]
    parts = [in_rows(taps, npu - start, rows, npus)]
    if bias is not None:
        parts.append(in_rows(bias[:, np.newaxis], npu - start, rows, npus))
    at = replace(lo.rows(f"{lo.node.output}/weights", np.concatenate(parts, axis=1), start), npu=npu)
    return at, None if bias is None else at.shift(ELEMENT * rows * columns)


def in_rows(values: Array, first: int, rows: int, npus: int) -> Array:
    """(npus, rows * columns): channel o of (O, columns) in block row (first + o) // npus."""
    columns = values.shape[1]
    grid = np.zeros((rows * npus, columns), values.dtype)
    grid[first : first + len(values)] = values
    return grid.reshape(rows, npus, columns).swapaxes(0, 1).reshape(npus, rows * columns)


def padding(window: Window, x: Dim4, out: Dim4) -> Padding:
    """The padding that gives exactly the output's extents; padding that no window reaches is left out."""
    below, right = window.overhang((x.h, x.w), (out.h, out.w))
    return Padding(window.begins[0], max(below, 0), window.begins[1], max(right, 0))


def band(lo: Lowering, weights: Array, bias: Array, x: Tensor, out: Tensor, last: Node) -> None:
    """A product along the channels, weights (O, I) and bias (O,), as a 1x1 convolution."""
    window = Window((1, 1), (1, 1), (0, 0), (0, 0), (1, 1))
    convolve(lo, ConvForm(window, weights[:, :, np.newaxis, np.newaxis], bias, False), x, out, last)
