"""Words with some taps of a kernel each: one product that has the same sums, or as many as before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest

from npuc.ir import Array
from npuc.targets.easynpu.machine.isa import Layer
from npuc.targets.easynpu.simulate.origins import Value, Words
from npuc.targets.easynpu.simulate.products import Product, product, with_whole_kernels

VALUES = [Value(0, "a", 32, 5, 6), Value(1, "b", 32, 4, 6), Value(2, "c", 16, 5, 6)]
CONTENTS = [
    np.random.default_rng(each.number).integers(-9, 9, (each.channels, each.height, each.width)) for each in VALUES
]
CONV, DWCONV = 0b000_000_00, 0b000_000_01


def _pixels(x: Words) -> Array:
    """The elements (C, H, W) that words stand for."""
    height, width, lanes = x.word.shape
    found = np.zeros((16 * lanes, height, width), np.int64)
    for row, column, group in np.ndindex(height, width, lanes):
        value = VALUES[x.number[row, column, group]]
        pixel, at = divmod(int(x.word[row, column, group]), -(-value.channels // 16))
        lane = CONTENTS[value.number][16 * at : 16 * at + 16, pixel // value.width, pixel % value.width]
        found[16 * group : 16 * group + 16, row, column] = lane
    return found[: x.channels]


def _sums(products: Sequence[Product]) -> Array:
    """The sums (Co, Ho, Wo), one multiplication after the other."""
    total = np.zeros((products[0].layer.Co, products[0].layer.Ho, products[0].layer.Wo), np.int64)
    for each in products:
        layer, x, depthwise = each.layer, _pixels(each.x), each.w.shape[1] == 1 < each.x.channels
        for oy, ox, ky, kx in np.ndindex(layer.Ho, layer.Wo, layer.Hk, layer.Wk):
            row = oy * layer.Sh - layer.Ph + ky * (layer.Dh + 1)
            column = ox * layer.Sw - layer.Pw + kx * (layer.Dw + 1)
            if 0 <= row < layer.Hi and 0 <= column < layer.Wi:
                w, pixel = each.w[:, :, ky, kx].astype(np.int64), x[:, row, column]
                total[:, oy, ox] += w[:, 0] * pixel if depthwise else w @ pixel
    return total


def _map(composed: bool) -> Words:
    """A map of 7 x 6 pixels: rows of two values. Not composed: of one value, 5 x 6 pixels."""
    upper = VALUES[0].everything
    if not composed:
        return upper
    lower = VALUES[1].everything
    parts = (np.concatenate([a[:4], b[1:]]) for a, b in ((upper.number, lower.number), (upper.word, lower.word)))
    number, word = parts
    return Words(number, word, 32)


class _Kernel:
    """A convolution of random kind, whose words have parts of its kernel. flaw: rows taken for padding."""

    def __init__(self, seed: int) -> None:
        self.random = random = np.random.default_rng(seed)
        self.x = _map(bool(random.integers(2)))
        self.dense = bool(random.integers(2))
        self.stride, self.dilation, self.pad = (int(random.integers(*each)) for each in ((1, 3), (1, 3), (0, 3)))
        if self.dilation > 1:
            self.stride = 1  # longer strides may leave out a column, which then is in none of the maps
        self.taps = (2, 3)
        shape = (16 if self.dense else 32, 32 if self.dense else 1, *self.taps)
        self.w = random.integers(-128, 128, shape).astype(np.int8)

    def part(self, rows: tuple[int, int], columns: tuple[int, int], flaw: int = 0) -> Product:
        """The word of some rows and columns of the kernel."""
        before, starts = [0, 0], [0, 0]
        for axis, (first, _) in enumerate((rows, columns)):
            at = first * self.dilation - self.pad
            before[axis], starts[axis] = max(-at, 0), max(at, 0)
        height, width = (size - start for size, start in zip(self.x.word.shape, starts, strict=False))
        of_whole = [
            (size + 2 * self.pad - (taps - 1) * self.dilation - 1) // self.stride + 1
            for size, taps in zip(self.x.word.shape, self.taps, strict=False)
        ]
        w = self.w[:, :, rows[0] : rows[1], columns[0] : columns[1]]
        at = np.s_[starts[0] :, starts[1] :]
        layer = Layer(
            opcode=CONV if self.dense else DWCONV, Sh=self.stride, Sw=self.stride, Ph=before[0], Pw=before[1],
            Dh=self.dilation - 1, Dw=self.dilation - 1, y=1, x=1, yi=1, xi=1, Hk=w.shape[2], Wk=w.shape[3],
            Ho=of_whole[0], Wo=of_whole[1], Co=len(w), Ci=32, Zs=1, Hi=height - flaw, Wi=width,
        )  # fmt: skip
        return product(layer, w, Words(self.x.number[at], self.x.word[at], 32))


@pytest.mark.parametrize("seed", range(30))
def test_words_whose_taps_fill_a_kernel_are_one_product(seed: int) -> None:
    kernel = _Kernel(seed)
    parts = [kernel.part((row, row + 1), columns) for row in range(2) for columns in ((0, 2), (2, 3))]
    (whole,) = with_whole_kernels(parts, VALUES)
    assert whole.w.shape == kernel.w.shape
    np.testing.assert_array_equal(_sums([whole]), _sums(parts))


@pytest.mark.parametrize("seed", range(30))
def test_any_words_have_the_same_sums_as_their_products(seed: int) -> None:
    kernel, random = _Kernel(seed), np.random.default_rng(seed)
    parts = [
        kernel.part((row, row + 1), (column, column + 1), flaw=int(random.integers(4) == 0))
        for row in range(2)
        for column in range(3)
        for _ in range(int(random.choice([0, 1, 1, 1, 2])))
    ] or [kernel.part((0, 2), (0, 3))]
    np.testing.assert_array_equal(_sums(with_whole_kernels(parts, VALUES)), _sums(parts))


def test_a_tap_twice_and_a_missing_tap_make_no_kernel() -> None:
    kernel = _Kernel(0)
    one, two, three = (kernel.part((0, 1), (column, column + 1)) for column in range(3))
    assert len(with_whole_kernels([one, one], VALUES)) == 2
    assert len(with_whole_kernels([one, two, three, kernel.part((1, 2), (0, 1))], VALUES)) == 4
    assert len(with_whole_kernels([one, two, three], VALUES)) == 1


@pytest.mark.parametrize("change", [{"Sh": 2}, {"Sw": 2}, {"opcode": DWCONV}])
def test_words_of_other_strides_and_kinds_make_no_kernel(change: dict[str, int]) -> None:
    x = VALUES[0].everything
    layer = Layer(y=1, x=1, yi=1, xi=1, Hk=1, Wk=1, Ho=1, Wo=1, Co=32, Ci=32, Zs=2, Hi=5, Wi=6, opcode=CONV)
    w = np.ones((32, 32, 1, 1), np.int8)
    parts = [product(layer, w, x), product(layer, w, Words(x.number[:, 1:], x.word[:, 1:], 32))]
    assert len(with_whole_kernels(parts, VALUES)) == 1
    parts[1] = replace(parts[1], layer=replace(layer, **change))
    assert len(with_whole_kernels(parts, VALUES)) == 2


def test_maps_without_a_common_value_make_no_kernel() -> None:
    kernel, other = _Kernel(1), _Kernel(1)
    kernel.x = other.x = VALUES[0].everything
    other.x = Words(np.full_like(other.x.number, 2), VALUES[0].words, 32)
    parts = [kernel.part((0, 1), (0, 3)), other.part((1, 2), (0, 3))]
    assert len(with_whole_kernels(parts, VALUES)) == 2
