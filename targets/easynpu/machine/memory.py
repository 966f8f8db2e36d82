"""The layout of tensors, weights and bias-scale blocks in the DTCMs.

A DTCM word has 16 int8 lanes: 16 channels of a pixel, or the same weight of 16 output channels. Unused lanes are
zero. Source: easynpu, chapters Scheduler (figure data_dist) and Storage.
"""

from __future__ import annotations

from functools import lru_cache
from math import gcd

import numpy as np

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.ir import Array

LANES = 16
BS_WORDS = 5
"""Words of a bias-scale block per 16 channels: 4 bytes of bias, little endian, then the shift scale."""
TABLE_WORDS = 7
"""Words of an activation table, for any number of channels."""
SLOPE_WORDS = 4
"""Words of a slope block (prelu) per 16 channels."""
WORD = np.dtype("c16")
"""A word as one element, for copying only: numpy copies the 16 bytes of this type at once."""


def groups(channels: int) -> int:
    """The number of 16-channel groups, the last one perhaps partial."""
    return -(-channels // LANES)


def feature_words(channels: int, height: int, width: int) -> int:
    """Words of a feature map [Hi, Wi, Ci]."""
    return height * width * groups(channels)


@frozen
class MapPlace:
    """The place of a feature map: word of pixel (iy, ix), group g = base + iy*row + ix*pixel + g*group.

    All in words. A map mirrored from the high end of the Fmap DTCM (logical word a at D - 1 - a) has negative
    pitches; a pitch of 0 broadcasts.
    """

    memory: str
    base: int
    row: int
    pixel: int
    group: int

    def words(self, memory: Array, height: int, width: int, groups: int) -> Array:
        """The words as a view (samples, height, width, groups, ...) into contiguous memory (samples, words, ...).

        Raises ArtefactError (E503) for an address outside the memory.
        """
        first, last = Map(self, height, width, groups).span
        if first < 0 or last >= memory.shape[1]:
            raise ArtefactError(
                "E503",
                f"words {first}..{last} of the {self.memory} DTCM are addressed",
                limit=f"0..{memory.shape[1] - 1}",
                remedy="compile the model for this machine; if that changes nothing, report it with the model",
            )
        sample, step = memory.strides[0], memory.strides[1]
        shape = (memory.shape[0], height, width, groups, *memory.shape[2:])
        strides = (sample, self.row * step, self.pixel * step, self.group * step, *memory.strides[2:])
        return np.ndarray(shape, memory.dtype, memory, self.base * step, strides)


@frozen
class Map:
    """The words of a feature map of this size, in 16-channel groups, at a place."""

    place: MapPlace
    height: int
    width: int
    groups: int

    def words(self, memory: Array) -> Array:
        """Its words as a view (samples, height, width, groups, ...) into memory (samples, words, ...)."""
        return self.place.words(memory, self.height, self.width, self.groups)

    @property
    def span(self) -> tuple[int, int]:
        """The lowest and the highest address."""
        at = self.place
        reach = [(self.height - 1) * at.row, (self.width - 1) * at.pixel, (self.groups - 1) * at.group]
        return at.base + sum(min(each, 0) for each in reach), at.base + sum(max(each, 0) for each in reach)

    @property
    def grid(self) -> Array:
        """The address of every word: (height, width, groups)."""
        at = self.place
        return at.base + steps((self.height, self.width, self.groups), (at.row, at.pixel, at.group))

    @property
    def addresses(self) -> Array:
        """Every word's address once, in ascending order."""
        return np.unique(self.grid)

    @property
    def distinct(self) -> bool:
        """Whether no two words share an address."""
        at = self.place
        pitches = sorted(
            (abs(pitch), count)
            for pitch, count in ((at.row, self.height), (at.pixel, self.width), (at.group, self.groups))
            if count > 1
        )
        reach = 0
        for pitch, count in pitches:
            if pitch <= reach:
                break
            reach += pitch * (count - 1)
        else:  # each pitch exceeds the reach of the smaller ones
            return True
        return len(self.addresses) == self.height * self.width * self.groups

    def meets(self, other: Map) -> bool:
        """Whether the maps have an address in common."""
        (first, last), (start, end) = self.span, other.span
        if self.place.memory != other.place.memory or first > end or start > last:
            return False
        return len(np.intersect1d(self.addresses, other.addresses, assume_unique=True)) > 0


@lru_cache(maxsize=1024)
def steps(shape: tuple[int, ...], pitches: tuple[int, ...]) -> Array:
    """The distance of each element of an array from the first, if neighbours along an axis are one pitch apart."""
    found = np.zeros(shape, np.int64)
    for index, pitch in zip(np.ogrid[tuple(map(slice, shape))], pitches, strict=True):
        found += index * pitch
    found.flags.writeable = False
    return found


def low_end(memory: str, base: int, channels: int, width: int) -> MapPlace:
    """The place of a feature map that grows contiguously upwards from a base address."""
    per_pixel = groups(channels)
    return MapPlace(memory, base, width * per_pixel, per_pixel, 1)


def high_end(memory: str, words: int, channels: int, width: int) -> MapPlace:
    """The place of a feature map that grows downwards from the memory's last word (two-ended addressing)."""
    per_pixel = groups(channels)
    return MapPlace(memory, words - 1, -width * per_pixel, -per_pixel, -1)


def to_lanes(x: Array) -> Array:
    """(..., C) as (..., groups, 16), the missing lanes zero."""
    missing = -x.shape[-1] % LANES
    if missing:
        x = np.concatenate([x, np.zeros((*x.shape[:-1], missing), x.dtype)], axis=-1)
    return x.reshape(*x.shape[:-1], -1, LANES)


def to_words(x: Array) -> Array:
    """(..., groups) WORD of (..., C) int8, the missing lanes zero."""
    words = np.ascontiguousarray(x)
    if x.shape[-1] % LANES:
        words = np.zeros((*x.shape[:-1], groups(x.shape[-1]) * LANES), np.int8)
        _copy_lanes(words, np.ascontiguousarray(x))
    return words.view(WORD)


def from_words(words: Array, channels: int) -> Array:
    """(..., channels) int8 of (..., groups) WORD."""
    lanes = np.ascontiguousarray(words).view(np.int8)
    if channels % LANES == 0:
        return lanes
    x = np.empty((*words.shape[:-1], channels), np.int8)
    _copy_lanes(x, lanes)
    return x


def _copy_lanes(to: Array, lanes: Array) -> None:
    """Copies the channels that both arrays (..., C) int8 have, by few strided copies of large pieces."""
    channels = min(to.shape[-1], lanes.shape[-1])
    piece = np.dtype(f"i{gcd(channels, 8)}")
    count = channels // piece.itemsize
    if count > LANES:
        to[..., :channels] = lanes[..., :channels]
        return
    for position in range(count):
        to.view(piece)[..., position] = lanes.view(piece)[..., position]


def pack_feature(x: Array) -> Array:
    """Words (samples, H, W, groups, 16) int8 of feature maps (samples, C, H, W) int8."""
    samples, channels, height, width = x.shape
    words = np.zeros((samples, height, width, groups(channels) * LANES), x.dtype)
    if channels > LANES:
        words[..., :channels] = x.transpose(0, 2, 3, 1)
    else:
        for channel in range(channels):
            words[..., channel] = x[:, channel]
    return words.reshape(samples, height, width, -1, LANES)


def unpack_feature(words: Array, channels: int) -> Array:
    """The inverse of pack_feature: (samples, C, H, W) int8."""
    samples, height, width = words.shape[:3]
    return np.ascontiguousarray(words.reshape(samples, height, width, -1)[..., :channels].transpose(0, 3, 1, 2))


def pack_weights(w: Array) -> Array:
    """Words (n, 16) of dense weights (Co, Ci, Hk, Wk) int8, stored [Ci][Hk][Wk][Co/16][16]."""
    return to_lanes(w.transpose(1, 2, 3, 0)).reshape(-1, LANES)


def unpack_weights(words: Array, Co: int, Ci: int, Hk: int, Wk: int) -> Array:
    """The inverse of pack_weights."""
    return words.reshape(Ci, Hk, Wk, -1)[..., :Co].transpose(3, 0, 1, 2)


def pack_channel_weights(w: Array) -> Array:
    """Words (n, 16) of channel-wise weights (C, 1, Hk, Wk) int8, stored [C/16][Hk][Wk][16]."""
    lanes = to_lanes(w[:, 0].transpose(1, 2, 0))
    return lanes.transpose(2, 0, 1, 3).reshape(-1, LANES)


def unpack_channel_weights(words: Array, C: int, Hk: int, Wk: int) -> Array:
    """The inverse of pack_channel_weights."""
    lanes = words.reshape(-1, Hk, Wk, LANES).transpose(0, 3, 1, 2)
    return lanes.reshape(-1, 1, Hk, Wk)[:C]


def pack_bias_scale(bias: Array, shift: Array) -> Array:
    """Words (5 * groups, 16) of biases (Co,) int32 and right shifts (Co,); a shift n is stored as -n.

    Source: easynpu, Weight pads; the author's RTL: byte planes little endian, plane 4 = scale, negative = right.
    """
    planes = to_lanes(np.ascontiguousarray(bias.astype("<i4")).view(np.int8).reshape(-1, 4).T)
    scale = to_lanes(-shift.astype(np.int8))
    return np.concatenate([planes, scale[None]]).transpose(1, 0, 2).reshape(-1, LANES)


def unpack_bias_scale(words: Array, channels: int) -> tuple[Array, Array]:
    """Biases (channels,) int32 and scale bytes (channels,) int8 of a block."""
    planes = words.reshape(-1, BS_WORDS, LANES).transpose(1, 0, 2).reshape(BS_WORDS, -1)[:, :channels]
    bias = np.ascontiguousarray(planes[:4].T).view("<i4").ravel()
    return bias.astype(np.int32), planes[4].astype(np.int8)


def pack_layer(w: Array, bias: Array, shift: Array, *, dense: bool) -> Array:
    """The block of a convolution: bias and scale, then weights (Co, Ci, Hk, Wk); channel-wise ones have Ci = 1."""
    return np.concatenate([pack_bias_scale(bias, shift), pack_weights(w) if dense else pack_channel_weights(w)])


@frozen
class TableBlock:
    """An activation table as its 7 words contain it: 16 segments, (16,) each, and the shift scale.

    Segment k extends from x = start[k] to the next start; its line is a[k] * x + b[k], requantised by the scale
    (negative = right shift).
    """

    start: Array
    a: Array
    b: Array
    scale: int


def pack_table(table: TableBlock) -> Array:
    """The 7 words of a table, a segment per lane; with fewer segments, the last one is repeated.

    Words 0..3: bytes of b, least significant first; 4: a; 5: start; 6: the shift scale in every lane. Words 0..4
    have the layout of a bias-scale block with a in place of the scale, so entry k of the pads has segment k.
    """
    last = np.minimum(np.arange(LANES), len(table.start) - 1)
    planes = np.ascontiguousarray(table.b[last].astype("<i4")).view(np.int8).reshape(LANES, 4).T
    scale = np.full(LANES, table.scale)
    return np.concatenate([planes, np.stack([table.a[last], table.start[last], scale])]).astype(np.int8)


def unpack_table(words: Array) -> TableBlock:
    """The inverse of pack_table, all 16 lanes.

    Raises ArtefactError (E503) unless the starts ascend from -128 and every lane has the same right shift.
    """
    b = np.ascontiguousarray(words[:4].T).view("<i4").ravel()
    a, start, scale = words[4:]
    if start[0] != -128 or (np.diff(start.astype(np.int16)) < 0).any():
        raise ArtefactError("E503", f"a table's segments start at {start.tolist()}", limit="ascending from -128")
    if (scale != scale[0]).any() or not -31 <= scale[0] <= 0:
        raise ArtefactError(
            "E503", f"a table's shift scales are {scale.tolist()}", limit="one of -31..0 in all lanes"
        )
    return TableBlock(start, a, b.astype(np.int32), int(scale[0]))


def pack_slopes(positive: Array, positive_shift: Array, negative: Array, negative_shift: Array) -> Array:
    """The words of a slope block, 4 per 16 channels: multiplier and shift scale for x >= 0, the same for x < 0.

    All (channels,); a right shift n is stored as -n.
    """
    planes = np.stack([positive, -positive_shift, negative, -negative_shift]).astype(np.int8)
    return to_lanes(planes).transpose(1, 0, 2).reshape(-1, LANES)


def unpack_slopes(words: Array, channels: int) -> Array:
    """(4, channels) int8: multiplier and scale byte for x >= 0, then for x < 0."""
    return words.reshape(-1, SLOPE_WORDS, LANES).transpose(1, 0, 2).reshape(SLOPE_WORDS, -1)[:, :channels]
