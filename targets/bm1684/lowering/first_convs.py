"""8-bit convolutions of network inputs: parts of the window become channels while the image is loaded.

Few input channels cost a convolution several times what its products do. Rows in one another's stride become
channels, and so do copies of the image, each a column further, for every s-th column of the window: the loads take
longer, but run beside the convolution, strip by strip. Values of pixels whose channels come last may be columns:
loads of single elements take long.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from math import prod

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Node
from npuc.ops.windows import Window
from npuc.targets.bm1684.lowering import moves
from npuc.targets.bm1684.lowering.context import WEIGHTS, Lowering
from npuc.targets.bm1684.lowering.conv_calls import ConvForm
from npuc.targets.bm1684.lowering.convolutions import STRIP_BYTES, STRIPS, fold, folded_view, folds, strip_rows
from npuc.targets.bm1684.lowering.extents import MOST
from npuc.targets.bm1684.lowering.kernel import Local, call
from npuc.targets.bm1684.lowering.tensors import ELEMENT, SystemView, Tensor, expect_view
from npuc.targets.bm1684.machine import timing
from npuc.targets.bm1684.machine.local_memory import Dim4, ceil_div
from npuc.targets.bm1684.machine.parameters import Machine

MOST_COLUMNS = 16
"""Of dilations; strides are smaller."""


@frozen
class Spread:
    """A convolution of copies of an image, each a column further than the one before, as its channels.

    form: the convolution; columns: of a copy; before: how many of them lie before the image in the first one;
    inside: whether copies are made in local memory, between convolutions, as loads of single elements take long.
    """

    form: ConvForm
    copies: int
    columns: int
    before: int
    inside: bool = False

    @classmethod
    def of(cls, form: ConvForm, copies: int, out: Dim4, *, inside: bool = False) -> Spread:
        """Every `copies`-th column of the window remains one."""
        window, (outputs, inputs, height, width) = form.window, form.weights.shape
        left = ceil_div(width, copies)
        weights = np.pad(form.weights, ((0, 0), (0, 0), (0, 0), (0, left * copies - width)))
        weights = weights.reshape(outputs, inputs, height, left, copies).transpose(0, 4, 1, 2, 3)
        spread = Window(
            (height, left),
            window.strides,
            (window.begins[0], 0),
            (window.ends[0], 0),
            (window.dilations[0], window.dilations[1] * copies),
        )
        weights = weights.reshape(outputs, copies * inputs, height, left)
        columns = (out.w - 1) * window.strides[1] + (left - 1) * spread.dilations[1] + 1
        return cls(replace(form, window=spread, weights=weights), copies, columns, window.begins[1], inside)

    def cost(self, image: SystemView, out: Dim4, machine: Machine) -> tuple[float, float]:
        """The cycles of the busier engine, then of the other one."""
        window, channels = self.form.window, self.form.weights.shape[1]
        groups = ceil_div(out.c, machine.npus) * ceil_div(out.h * out.w, machine.lanes)
        computed = timing.fix8b_conv2d(
            groups, channels, window.kernel[0], window.kernel[1], min(window.strides), False
        )
        loads = moves.loads(Tensor(Dim4(*image.shape), Local("")), image, machine)
        loaded = moves.price(loads, machine) * self.columns / image.shape[3]
        copied = ELEMENT * channels * image.shape[2] * self.columns / timing.LOCAL_BYTES
        loaded, between = (loaded, copied) if self.inside else (loaded * self.copies, 0)
        return max(computed, loaded) + between, min(computed, loaded)


def strips(lo: Lowering, node: Node, form: ConvForm, out: Dim4) -> Iterator[tuple[ConvForm, Tensor, int, int]]:
    """The convolution, the image, and the first row and rows of the result of every strip. out: the result.

    The image has at most as many channels as there are NPUs.
    """
    view = lo.view(node.inputs[0])
    ways: list[tuple[tuple[float, float], int, Spread, SystemView]] = []
    most = form.window.kernel[1] if form.window.dilations[1] == 1 else 1
    for by, copies, inside in product(folds(form, view), range(1, most + 1), (False, True)):
        made, given = Spread.of(fold(form, by), copies, out, inside=inside), folded_view(view, by)
        if made.form.weights.shape[1] <= lo.machine.npus or (by, copies) == (1, 1):
            ways.append((made.cost(given, out, lo.machine), by, made, given))
    wide = _columns_of_channels(form, view)
    if wide is not None:
        made = Spread.of(wide[0], wide[0].window.kernel[1], out)
        ways.append((made.cost(wide[1], out, lo.machine), 1, made, wide[1]))
    _, _, spread, view = min(ways, key=lambda way: (way[0], way[1], way[2].copies))
    rows = strip_rows(out, min(STRIPS, max(1, ELEMENT * prod(view.shape) // STRIP_BYTES)))
    for first in range(0, out.h, rows):
        count, window = min(rows, out.h - first), spread.form.window
        low = first * window.strides[0] - window.begins[0]
        start, behind = max(low, 0), min(low + (count - 1) * window.strides[0] + window.reach[0], view.shape[2])
        x = _load_copies(lo, node, spread, expect_view(view.slice_axis(2, start, behind - start)))
        yield replace(spread.form, window=replace(window, begins=(start - low, 0))), x, first, count


def _columns_of_channels(form: ConvForm, view: SystemView) -> tuple[ConvForm, SystemView] | None:
    """The convolution of an image whose rows are all values of their pixels; None if these are not one row."""
    window, (outputs, channels, height, width) = form.window, form.weights.shape
    batch, inner, rows, ((columns, step), *more) = view.axes
    within = channels * max(width, window.strides[1]) < MOST_COLUMNS and channels * columns <= MOST.w
    if inner != ((channels, 1),) or step != channels or more or not within or window.dilations[1] > 1:
        return None
    weights = form.weights.transpose(0, 2, 3, 1).reshape(outputs, 1, height, width * channels)
    flat = Window(
        (height, width * channels),
        (window.strides[0], window.strides[1] * channels),
        (window.begins[0], window.begins[1] * channels),
        (window.ends[0], window.ends[1] * channels),
        window.dilations,
    )
    axes = (batch, ((1, 0),), rows, ((columns * channels, 1),))
    return replace(form, window=flat, weights=weights), replace(view, axes=axes)


def _load_copies(lo: Lowering, node: Node, spread: Spread, view: SystemView) -> Tensor:
    """The copies of some rows of the image, with zeros before and behind it."""
    _, channels, rows, columns = view.shape
    if spread.inside:
        wide = replace(spread, copies=1, columns=spread.columns + spread.copies - 1, inside=False)
        return _copy_columns(lo, node, spread, _load_copies(lo, node, wide, view))
    x = lo.new_tensor(f"{node.inputs[0]}/rows", Dim4(1, spread.copies * channels, rows, spread.columns))
    stride = x.stride(lo.machine)

    def within(width: int) -> Dim4:
        """Of one channel in a lane up to its end: the vendor's model expects even an idle stride in the memory."""
        return stride if x.shape.c > lo.machine.npus else stride._replace(c=stride.h * (rows - 1) + width)

    batch, inner, lines, ((_, step), *more) = view.axes
    if not (spread.before or more) and columns >= spread.columns + spread.copies - 1:
        axes = (batch, ((spread.copies, step), *inner), lines, ((spread.columns, step),))
        lo.fill(x, replace(view, axes=axes), within(spread.columns))
        return x
    zeros = SystemView(WEIGHTS, lo.weights.zeros(spread.columns) // ELEMENT, (((1, 0),),) * 4)
    for number in range(spread.copies):
        copy = x.channels(number * channels, (number + 1) * channels, lo.machine)
        begin = min(max(spread.before - number, 0), spread.columns)
        end = max(min(columns + spread.before - number, spread.columns), begin)
        source = (
            expect_view(view.slice_axis(3, begin - spread.before + number, end - begin)) if end > begin else zeros
        )
        for first, last, given in ((0, begin, zeros), (begin, end, source), (end, spread.columns, zeros)):
            if last > first:
                part = Tensor(copy.shape._replace(w=last - first), copy.at.shift(ELEMENT * first))
                lo.fill(part, _broadcast_zeros(given, part.shape), within(last - first))
    return x


def _copy_columns(lo: Lowering, node: Node, spread: Spread, image: Tensor) -> Tensor:
    """The copies of an image in local memory."""
    _, channels, rows, _ = image.shape
    x = lo.new_tensor(f"{node.inputs[0]}/copies", Dim4(1, spread.copies * channels, rows, spread.columns))
    strides = x.stride(lo.machine), image.stride(lo.machine)
    shape = x.shape._replace(c=channels)
    targets = (x.channels(at * channels, (at + 1) * channels, lo.machine) for at in range(spread.copies))
    places = ((to.at, image.at.shift(ELEMENT * number)) for number, to in enumerate(targets))
    lo.emit(*(call("gdma_32bit_cpy_L2L", *each, shape, *strides) for each in places))
    return x


def _broadcast_zeros(view: SystemView, shape: Dim4) -> SystemView:
    """A view of data, or of zeros as many as a shape has."""
    if view.shape == tuple(shape):
        return view
    return replace(view, axes=(((1, 0),), ((shape.c, 0),), ((shape.h, 0),), ((shape.w, 1),)))
