"""The PE array's arithmetic on whole layers: exact integers, with onnxruntime's float32 where that is exact.

An accumulator below 2^24 is exact in float32, and so is its product with 2^-n. Convolutions therefore run in
onnxruntime with weights scaled by 2^-n and a bias that is scaled and raised by 1/2, which leaves only floor and
saturation to do. Without ReLU results are also raised by 128, so that they are never negative after saturation and
the floor is a cast to uint8. Where the bound of a channel does not allow that, the input channels are split and
the parts are summed as int64. Source: easynpu, PE; rounding and saturation as in the author's RTL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from math import prod
from typing import Any

import numpy as np

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.easynpu.machine.isa import Layer
from npuc.targets.easynpu.machine.memory import (
    BS_WORDS,
    groups,
    unpack_bias_scale,
    unpack_channel_weights,
    unpack_slopes,
    unpack_table,
    unpack_weights,
)
from npuc.targets.easynpu.machine.timing import is_dense, kernel_extent
from npuc.targets.easynpu.simulate.convolution import arranged, as_maps, convolution, padding, reached

EXACT_FLOAT32 = 1 << 24
ACCUMULATOR = 1 << 31
RAISED = 128
"""Added to results without ReLU, so that none is negative after saturation."""


def quantise(acc: Array, scale: Array) -> Array:
    """int8 of accumulators (int64): sat8(round_half_up(acc * 2^scale)); scale: int8 per channel, negative = right.

    Raises ArtefactError (E503) where a left shift would leave 32 bits, as the machine would wrap there.
    """
    right, left = np.maximum(-scale.astype(np.int64), 0), np.maximum(scale.astype(np.int64), 0)
    if max(right.max(initial=0), left.max(initial=0)) > 31 or (np.abs(acc) << left).max(initial=0) >= ACCUMULATOR:
        raise ArtefactError(
            "E503", f"shift scales of {scale.min()}..{scale.max()}", limit="-31..31 without overflow"
        )
    half = np.where(right > 0, np.int64(1) << np.maximum(right - 1, 0), 0)
    return np.clip(((acc << left) + half) >> right, -128, 127).astype(np.int8)


def add(block: Array, x: Array, other: Array) -> Array:
    """The requantised sum of two maps (samples, H, W, C) int8; block: the bias-scale words."""
    return _combined(block, x.astype(np.int32) + other)


def multiply(block: Array, x: Array, other: Array) -> Array:
    """Their requantised product."""
    return _combined(block, x.astype(np.int32) * other)


def _combined(block: Array, acc: Array) -> Array:
    """Raises ArtefactError (E503) for a bias, as the second operand takes the bias input of the PE."""
    bias, scale = unpack_bias_scale(block, acc.shape[-1])
    if bias.any():
        raise ArtefactError("E503", "a bias in the block of a sum or product", limit="0")
    if (scale == scale[0]).all() and -8 <= scale[0] <= 0:
        shift = int(-scale[0])
        acc += (1 << shift) >> 1
        return np.clip(acc >> shift, -128, 127).astype(np.int8)
    return quantise(acc.astype(np.int64), scale)


def activation(block: Array, x: Array) -> Array:
    """int8 of any shape after an activation table; block: its 7 words.

    The formula is evaluated for all 256 inputs, and the elements select from the results.
    """
    table = unpack_table(block)
    inputs = np.arange(-128, 128)
    segment = np.searchsorted(table.start, inputs, side="right") - 1
    acc = table.a[segment].astype(np.int64) * inputs + table.b[segment]
    return _by_bits(_expected_within(acc), np.array([table.scale]))[x.view(np.uint8)]


def sloped(block: Array, x: Array) -> Array:
    """int8 (..., C) after a slope per channel for each sign of x; block: 4 words per 16 channels."""
    channels = x.shape[-1]
    positive, positive_scale, negative, negative_scale = unpack_slopes(block, channels)
    inputs = np.arange(-128, 128)
    above, below = (
        _by_bits(inputs * each[:, None].astype(np.int64), scale[:, None])
        for each, scale in ((positive, positive_scale), (negative, negative_scale))
    )
    table = np.concatenate([above[:, :128], below[:, 128:]], axis=1)
    return table.ravel()[x.view(np.uint8) + 256 * np.arange(channels)]


def _by_bits(acc: Array, scale: Array) -> Array:
    """int8 of accumulators (..., 256) for x = -128..127, ordered by x's bit pattern: 0..127, -128..-1."""
    return np.roll(quantise(acc, scale), 128, axis=-1)


def _expected_within(acc: Array) -> Array:
    """The accumulators themselves. Raises ArtefactError (E503) where one exceeds 32 bits."""
    if np.abs(acc).max(initial=0) >= ACCUMULATOR:
        raise ArtefactError("E503", f"a table's accumulator reaches {np.abs(acc).max()}", limit="below 2^31")
    return acc


def max_pool(x: Array, layer: Layer) -> Array:
    """The largest int8 under each window; the padding is -128, which the bias path injects."""
    padded = padded_input(x, layer, -128)
    taps = (
        padded[
            :,
            hk : hk + (layer.Ho - 1) * layer.Sh + 1 : layer.Sh,
            wk : wk + (layer.Wo - 1) * layer.Sw + 1 : layer.Sw,
        ]
        for hk in range(0, kernel_extent(layer.Hk, layer.Dh), layer.Dh + 1)
        for wk in range(0, kernel_extent(layer.Wk, layer.Dw), layer.Dw + 1)
    )
    return reduce(np.maximum, taps)


def padded_input(x: Array, layer: Layer, value: int) -> Array:
    """The map with its padding; rows and columns that no window reaches are left out."""
    top, left, bottom, right = padding(layer)
    height, width = reached(layer)
    x = x[:, :height, :width]
    if not any((top, left, bottom > 0, right > 0)):
        return x
    around = ((0, 0), (top, max(bottom, 0)), (left, max(right, 0)), (0, 0))
    return np.pad(x, around, constant_values=value)


@frozen
class Psums:
    """Accumulators (samples, Ho, Wo, Co); float32 where these hold every integer up to the bound, else int64."""

    values: Array
    bound: int
    """None has a larger magnitude."""


class ConvolutionWord:
    """A convolution, fully connected, depthwise or average-pooling word with its weight block.

    Several blocks are those of tiles that run side by side. Maps are then (tiles * samples, H, W, C).
    """

    def __init__(self, layer: Layer, blocks: Sequence[Array]) -> None:
        self.layer, self.tiles = layer, len(blocks)
        split = BS_WORDS * groups(layer.Co)
        heads = [unpack_bias_scale(block[:split], layer.Co) for block in blocks]
        self.bias, self.scale = (np.stack(each) for each in zip(*heads, strict=True))
        window = (layer.Hk, layer.Wk)
        self.w = np.stack(
            [
                unpack_weights(block[split:], layer.Co, layer.Ci, *window)
                if is_dense(layer)
                else unpack_channel_weights(block[split:], layer.Co, *window)
                for block in blocks
            ]
        )
        operation = layer.operation
        self.relu = operation is not None and operation.mnemonic.endswith("_relu")
        taps = 128 * np.abs(self.w, dtype=np.int16).reshape(*self.bias.shape, -1).sum(axis=2, dtype=np.int64)
        self.bound = int((taps + np.abs(self.bias.astype(np.int64))).max())
        if self.bound >= ACCUMULATOR:
            raise ArtefactError("E503", f"an accumulator can reach {self.bound}", limit="below 2^31")
        self.sessions: dict[str, Any] = {}
        """By the name of the method that creates them."""
        self.ran = False

    def __call__(self, x: Array) -> Array:
        """The int8 ofmap (samples, Ho, Wo, Co) of an ifmap (samples, Hi, Wi, Ci) int8."""
        if self.exact:
            run = self._prepared(len(x), self._requantising)
            raised = as_maps(self.layer, run.run(None, {"x": arranged(self.layer, x, self.tiles)})[0], self.tiles)
            return (raised if self.relu else np.bitwise_xor(raised, 128, out=raised)).view(np.int8)
        return self.quantised(self.accumulate(x, None))

    @property
    def exact(self) -> bool:
        """Whether one float32 convolution gives the requantised value exactly."""
        rounding = (1 if self.relu else 2 * RAISED + 1) << max(-int(self.scale.min()) - 1, 0)
        shifts_right = self.scale.min() >= -31 and self.scale.max() <= 0
        return self.bound + rounding < EXACT_FLOAT32 and shifts_right and 0 not in reached(self.layer)

    def accumulate(self, x: Array, psums: Psums | None) -> Psums:
        """The bias or the kept psums, plus the sum of products.

        Raises ArtefactError (E503) for a bias together with kept psums: the adder has one input for both.
        """
        layer, given = self.layer, arranged(self.layer, x, self.tiles)
        if psums is not None and self.bias.any():
            raise ArtefactError("E503", "a bias where psums are kept", limit="0: the first word's bias is in them")
        bound = self.bound + (0 if psums is None else psums.bound)
        total = np.zeros((len(x), layer.Ho, layer.Wo, layer.Co), np.float32 if bound < EXACT_FLOAT32 else np.int64)
        if psums is None:
            self._per_channel(total)[...] = self.bias[:, None]
        else:
            np.copyto(total, psums.values, casting="unsafe")
        for part in self._prepared(len(x), self._parts) if 0 not in reached(layer) else ():
            products = as_maps(layer, part.run(None, {"x": given})[0], self.tiles)
            np.add(total, products, out=total, casting="unsafe", dtype=total.dtype)
        if bound >= ACCUMULATOR and np.abs(total).max(initial=0) >= ACCUMULATOR:
            raise ArtefactError("E503", "a psum leaves 32 bits", limit="below 2^31")
        return Psums(total, bound)

    def quantised(self, psums: Psums) -> Array:
        """int8 of psums, with ReLU where the word has it."""
        least, lowest = -int(self.scale.min()), 0 if self.relu else -128
        if self.scale.max() > 0 or least > 31 or psums.bound + (1 << max(least - 1, 0)) >= EXACT_FLOAT32:
            acc = self._per_channel(psums.values.astype(np.int64))
            return np.maximum(quantise(acc, self.scale[:, None]), lowest).reshape(psums.values.shape)
        values = self._per_channel(psums.values) * np.ldexp(np.float32(1), self.scale[:, None].astype(np.int32))
        values += np.where(self.scale[:, None] < 0, np.float32(0.5), np.float32(0))
        np.floor(values, out=values)
        return np.clip(values, lowest, 127, out=values).astype(np.int8).reshape(psums.values.shape)

    def _per_channel(self, values: Array) -> Array:
        """Maps (tiles * samples, Ho, Wo, Co) as (tiles, pixels, Co)."""
        return values.reshape(self.tiles, values.size // (self.tiles * self.layer.Co), self.layer.Co)

    def _prepared(self, samples: int, make: Callable[[bool], Any]) -> Any:
        """The session or sessions that run the word; a first sample that comes alone gets ones that open fast."""
        alone, self.ran = samples == self.tiles and not self.ran, True
        if alone:
            return make(True)
        if make.__name__ not in self.sessions:
            self.sessions[make.__name__] = make(False)
        return self.sessions[make.__name__]

    def _requantising(self, few_runs: bool) -> Any:
        power = np.ldexp(np.float32(1), self.scale.astype(np.int32))
        half = np.where(self.scale < 0, np.float32(0.5), np.float32(0))
        w = self.w.astype(np.float32) * power[..., None, None, None]
        raised, highest = (0, 127) if self.relu else (RAISED, 255)
        bias = self.bias.astype(np.float32) * power + half + np.float32(raised)
        return convolution(self.layer, w, bias, highest, few_runs=few_runs)

    def _parts(self, few_runs: bool) -> list[Any]:
        """Float32 convolutions over so few taps each that every sum is exact."""
        shape = self.w.shape[2:]
        bound = 128 * np.abs(self.w, dtype=np.int32).reshape(-1, prod(shape))
        taps = np.arange(bound.shape[1])
        parts = int(bound.sum(axis=1).max() // EXACT_FLOAT32) + 1
        while max((bound[:, part::parts]).sum(axis=1).max() for part in range(parts)) >= EXACT_FLOAT32:
            parts += 1
        masks = [(taps % parts == part).reshape(shape) for part in range(parts)]
        weights = ((self.w * mask).astype(np.float32) for mask in masks)
        return [convolution(self.layer, each, None, None, few_runs=few_runs) for each in weights]
