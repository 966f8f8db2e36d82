"""The terms of a sum of products: those that are parts of one convolution become one term.

If the weights of 16 outputs exceed the weight DTCM, each word has some taps of the kernel and continues on the
psums of the word before. The sum of such words is one convolution if their taps fill a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.memory import groups
from npuc.targets.easynpu.machine.timing import is_dense
from npuc.targets.easynpu.simulate.convolution import kept, reached, window_attributes
from npuc.targets.easynpu.simulate.origins import NOTHING, Value, Words

Place = tuple[int, int]
"""A row and a column."""


@frozen
class Product:
    """A multiplying word, its weights, and the rows and columns of its map that windows reach, at least one."""

    layer: isa.Layer
    w: Array
    x: Words


@frozen
class Sums:
    """Psums: a bias (Co,) and products. bound: of the accumulators."""

    bias: Array
    products: tuple[Product, ...]
    bound: int


@frozen
class _Axis:
    """The taps of a product along an axis, and between which elements they read; the others are padding."""

    taps: range
    begin: int
    end: int
    stride: int
    results: int

    def inside(self, begin: int, end: int) -> Array:
        """Which tap of which result reads between two elements."""
        at = np.add.outer(np.array(self.taps), self.stride * np.arange(self.results))
        return (begin <= at) & (at < end)


def product(layer: isa.Layer, w: Array, x: Words) -> Product:
    """The product of a word's weights and its map."""
    height, width = kept(layer)
    return Product(layer, w, Words(x.number[:height, :width], x.word[:height, :width], x.channels))


def with_whole_kernels(products: Sequence[Product], values: Sequence[Value]) -> tuple[Product, ...]:
    """The products; those of the same channels of a map become one if their taps fill a kernel."""
    found: list[list[tuple[Product, Place]]] = []
    for each in products:
        for group in found:
            place = _place(each, group[0][0], values)
            if place is not None:
                group.append((each, place))
                break
        else:
            found.append([(each, (0, 0))])
    return tuple(one for group in found for one in _as_one(group))


def over_channels(products: Sequence[Product]) -> bool:
    """Whether these are dense convolutions that differ in their input channels only."""
    windows = {(*window_attributes(each.layer).items(), *each.x.word.shape[:2]) for each in products}
    shapes = {each.w.shape[2:] for each in products}
    return len(windows) == len(shapes) == 1 and all(is_dense(each.layer) for each in products)


def _place(of: Product, beside: Product, values: Sequence[Value]) -> Place | None:
    """Where a product's map begins in that of another; None if they have no map or not the same channels."""
    mine, its = of.x, beside.x
    alike = ((each.layer.Sh, each.layer.Sw, each.x.channels, is_dense(each.layer)) for each in (of, beside))
    common = np.intersect1d(mine.number[:, :, 0], its.number[:, :, 0])
    if len({*alike}) > 1 or not common.size:
        return None
    (top, left, first), (row, column, other) = (_corner(each, values[common[0]]) for each in (mine, its))
    return (top - row, left - column) if first == other else None


def _corner(x: Words, value: Value) -> tuple[int, int, int]:
    """The row and column of a value where a map with some of it begins, and its first group of channels."""
    row, column = (int(each[0]) for each in np.nonzero(x.number[:, :, 0] == value.number))
    pixel, group = divmod(int(x.word[row, column, 0]), groups(value.channels))
    return pixel // value.width - row, pixel % value.width - column, group


def _as_one(group: Sequence[tuple[Product, Place]]) -> list[Product]:
    """Products of the same channels as one product; as they are if that is impossible."""
    products, first = [each for each, _ in group], group[0][0]
    axes = [_axes(each.layer, place) for each, place in group]
    rows, columns = (_together(along) for along in zip(*axes, strict=True))
    if len(products) == 1 or rows is None or columns is None:
        return products
    w = np.zeros((*first.w.shape[:2], len(rows.taps), len(columns.taps)), np.int8)
    filled = np.zeros(w.shape[2:], np.int64)
    for each, along in zip(products, axes, strict=True):
        at = np.ix_(
            *([every.taps.index(tap) for tap in of.taps] for every, of in zip((rows, columns), along, strict=True))
        )
        w[:, :, at[0], at[1]] = each.w
        filled[at] += 1
    x = _united(group, (rows.begin, columns.begin), (rows.end, columns.end))
    if x is None or (filled != 1).any():
        return products
    layer = replace(
        first.layer,
        Hi=rows.end - rows.begin, Hk=len(rows.taps), Dh=rows.taps.step - 1, Ph=rows.begin - rows.taps[0],
        Wi=columns.end - columns.begin, Wk=len(columns.taps), Dw=columns.taps.step - 1,
        Pw=columns.begin - columns.taps[0],
    )  # fmt: skip
    return [Product(layer, w, x)]


def _axes(layer: isa.Layer, place: Place) -> tuple[_Axis, _Axis]:
    """Rows and columns of a word whose map begins at this place."""
    (row, column), (height, width) = place, reached(layer)
    down = range(row - layer.Ph, row - layer.Ph + layer.Hk * (layer.Dh + 1), layer.Dh + 1)
    across = range(column - layer.Pw, column - layer.Pw + layer.Wk * (layer.Dw + 1), layer.Dw + 1)
    return (
        _Axis(down, row, row + height, layer.Sh, layer.Ho),
        _Axis(across, column, column + width, layer.Sw, layer.Wo),
    )


def _together(axes: Sequence[_Axis]) -> _Axis | None:
    """The taps of all; None if they read nothing, or if one would read an element that is padding in another."""
    reading = [each for each in axes if each.begin < each.end]
    taps = sorted({tap for each in axes for tap in each.taps})
    step = gcd(*(tap - taps[0] for tap in taps)) or 1
    begin = min((each.begin for each in reading), default=0)
    end = max((each.end for each in reading), default=0)
    alike = all((each.inside(begin, end) == each.inside(each.begin, each.end)).all() for each in axes)
    every = range(taps[0], taps[-1] + 1, step)
    return replace(axes[0], taps=every, begin=begin, end=end) if reading and alike else None


def _united(group: Sequence[tuple[Product, Place]], begin: Place, end: Place) -> Words | None:
    """The words between two places; None if some are unknown, or if two products have different ones."""
    shape = end[0] - begin[0], end[1] - begin[1], group[0][0].x.word.shape[2]
    number, word = np.full(shape, NOTHING), np.zeros(shape, np.int64)
    for each, (row, column) in group:
        if 0 in reached(each.layer):
            continue
        height, width, _ = each.x.word.shape
        inside = (
            slice(row - begin[0], row - begin[0] + height),
            slice(column - begin[1], column - begin[1] + width),
        )
        old = number[inside]
        if ((old != NOTHING) & ((old != each.x.number) | (word[inside] != each.x.word))).any():
            return None
        number[inside], word[inside] = each.x.number, each.x.word
    return None if (number == NOTHING).any() else Words(number, word, group[0][0].x.channels)
