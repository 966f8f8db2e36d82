"""The terms of a sum of products: those that are parts of one convolution become one term.

If the weights of 16 outputs exceed the weight DTCM, each word has some taps of the kernel and continues on the psums
of the word before. The sum of such words is one convolution if their taps fill a kernel.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import gcd

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.timing import is_dense
from npuc.targets.easynpu.simulate.convolution import reached, window_attributes
from npuc.targets.easynpu.simulate.network import Network
from npuc.targets.easynpu.simulate.origins import Value, ValuePart


@frozen
class Product:
    """A multiplying word, its weights, and the rows and columns of its map that windows reach."""

    layer: isa.Layer
    w: Array
    x: Value


@frozen
class Sums:
    """Psums: a bias (Co,) and products. bound: of the accumulators."""

    bias: Array
    products: tuple[Product, ...]
    bound: int


@frozen
class _Axis:
    """The taps of a product along an axis, and the elements of the map between which they read; padding is outside."""

    taps: range
    begin: int
    end: int
    stride: int
    results: int

    def inside(self, begin: int, end: int) -> Array:
        """Which tap of which result reads between two elements."""
        at = np.add.outer(np.array(self.taps), self.stride * np.arange(self.results))
        return (begin <= at) & (at < end)


def with_whole_kernels(products: Sequence[Product], network: Network) -> tuple[Product, ...]:
    """The products; those of the same channels of a map become one if their taps fill a kernel."""
    found: dict[tuple[int, ...], list[Product]] = {}
    for each in products:
        whole, layer = network.origin(each.x), each.layer
        key = whole.value.number, whole.start[0], each.x.channels, layer.Sh, layer.Sw, is_dense(layer)
        found.setdefault(key, []).append(each)
    return tuple(one for each in found.values() for one in _as_one(each, network))


def _as_one(products: Sequence[Product], network: Network) -> Sequence[Product]:
    """Products of the same channels as one product; as they are if that is impossible."""
    first, parts = products[0], [network.origin(each.x) for each in products]
    axes = [_axes(each.layer, part.start[1:]) for each, part in zip(products, parts, strict=True)]
    rows, columns = (_together(along) for along in zip(*axes, strict=True))
    if len(products) == 1 or rows is None or columns is None:
        return products
    w = np.zeros((*first.w.shape[:2], len(rows.taps), len(columns.taps)), np.int8)
    filled = np.zeros(w.shape[2:], np.int64)
    for each, along in zip(products, axes, strict=True):
        cells = np.ix_(*(_positions(of.taps, among.taps) for of, among in zip(along, (rows, columns), strict=True)))
        w[:, :, cells[0], cells[1]] = each.w
        filled[cells] += 1
    if (filled != 1).any():
        return products
    layer = replace(
        first.layer,
        **{"Hi": rows.end - rows.begin, "Hk": len(rows.taps), "Dh": rows.taps.step - 1},
        **{"Wi": columns.end - columns.begin, "Wk": len(columns.taps), "Dw": columns.taps.step - 1},
        **{"Ph": rows.begin - rows.taps[0], "Pw": columns.begin - columns.taps[0]},
    )
    window = ValuePart(
        parts[0].value, (parts[0].start[0], rows.begin, columns.begin), (first.x.channels, layer.Hi, layer.Wi)
    )
    return [Product(layer, w, network.cut(window))]


def _axes(layer: isa.Layer, corner: tuple[int, int]) -> tuple[_Axis, _Axis]:
    """Rows and columns of a word; corner: of its map in the value that it is part of."""
    (row, column), (height, width) = corner, reached(layer)
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


def _positions(taps: range, among: range) -> list[int]:
    return [among.index(tap) for tap in taps]


def over_channels(products: Sequence[Product], network: Network) -> bool:
    """Whether these are dense convolutions of the same rows and columns, which differ in channels only."""
    windows = {(*window_attributes(each.layer).items(), each.x.height, each.x.width) for each in products}
    shapes = {each.w.shape[2:] for each in products}
    corners = {network.origin(each.x).start[1:] for each in products}
    return len(windows) == len(shapes) == len(corners) == 1 and all(is_dense(each.layer) for each in products)
