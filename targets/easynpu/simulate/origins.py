"""The origin of every word of a memory: the feature map that it belongs to, and its position there.

The maps are tensors of a network (N, C, H, W). A map that is read need not be one that was written: it may be a
window of one, or be composed of several.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.easynpu.machine.memory import LANES, groups, steps

NOTHING = -1
"""Marks words where no map was written."""
AXES = ((0, 2), (1, 3), (2, 1))
"""Pairs of axes: of a map's words (H, W, C / 16), and of its tensor (channels, rows, columns)."""


class NotOneNetwork(Exception):
    """A program reads its memories in a way that slices and concatenations of maps cannot express."""


@frozen
class Words:
    """The words of a map (H, W, C / 16): the number of the value that each is of, and its own in that value."""

    number: Array
    word: Array
    channels: int


@frozen
class Value:
    """A feature map of the network: its number, its tensor's name, and its extents without samples."""

    number: int
    name: str
    channels: int
    height: int
    width: int
    bytes: bool = False
    """Whether it is uint8, raised by 128, rather than float32."""

    @property
    def words(self) -> Array:
        """The number of each of its words: (H, W, C / 16)."""
        per_pixel = groups(self.channels)
        return steps((self.height, self.width, per_pixel), (self.width * per_pixel, per_pixel, 1))

    @property
    def everything(self) -> Words:
        """Its words as those of a map."""
        return Words(np.full(self.words.shape, self.number), self.words, self.channels)


class Origins:
    """The origins of the words of a memory or host tensor: the value that each is from, and its number there."""

    def __init__(self, words: int) -> None:
        self.value = np.full(words, NOTHING, np.int64)
        self.word = np.zeros(words, np.int64)

    def write(self, addresses: Array, words: Words) -> None:
        """Records words at addresses (H, W, C / 16)."""
        self.value[addresses], self.word[addresses] = words.number, words.word

    def at(self, addresses: Array, channels: int) -> Words:
        """The words at addresses (H, W, C / 16)."""
        return Words(self.value[addresses], self.word[addresses], channels)


@frozen
class ValuePart:
    """A part of a value: its first channel, row and column, and its extents."""

    value: Value
    start: tuple[int, int, int]
    extents: tuple[int, int, int]


Joined = Callable[[int, Sequence[Value]], Value]
"""Concatenates values along an axis of their tensors."""


def read(words: Words, values: Sequence[Value], cut: Callable[[ValuePart], Value], joined: Joined) -> Value:
    """The value that a map is. Raises NotOneNetwork.

    A word may repeat along a whole axis: the value then has one row or column there.
    """
    number, word, channels = words.number, words.word, words.channels
    first = int(number.flat[0])
    if (number == first).all():
        if first == NOTHING:
            raise NotOneNetwork("what it reads was never written")
        return cut(_window(values[first], word, channels))
    for axis, of_tensor in AXES:
        rest = tuple(other for other in range(3) if other != axis)
        changes = np.flatnonzero(np.diff(number, axis=axis).any(axis=rest)) + 1
        if not changes.size:
            continue
        bounds = [0, *changes.tolist(), number.shape[axis]]
        parts: list[Value] = []
        for begin, end in pairwise(bounds):
            inside = [slice(None)] * 3
            inside[axis] = slice(begin, end)
            left = min(channels - begin * LANES, (end - begin) * LANES) if axis == 2 else channels
            part = Words(number[tuple(inside)], word[tuple(inside)], left)
            parts.append(read(part, values, cut, joined))
        return joined(of_tensor, parts)
    raise NotOneNetwork("what it reads is put together word by word")


def _window(value: Value, word: Array, channels: int) -> ValuePart:
    """The part of a value that consists of these of its words."""
    for axis in (0, 1):
        if word.shape[axis] > 1 and (word == (first := word.take([0], axis))).all():
            word = first
    per_pixel, (height, width, lanes) = groups(value.channels), word.shape
    pixel, group = divmod(int(word[0, 0, 0]), per_pixel)
    row, column = divmod(pixel, value.width)
    beyond = column + width > value.width or group + lanes > per_pixel
    if beyond or (word != word[0, 0, 0] + steps(word.shape, (value.width * per_pixel, per_pixel, 1))).any():
        raise NotOneNetwork("what it reads is no window of a map")
    if group * LANES + channels > value.channels:
        raise NotOneNetwork("it reads lanes that hold no channel")
    return ValuePart(value, (group * LANES, row, column), (channels, height, width))
