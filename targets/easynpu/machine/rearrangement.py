"""The effect of a reshape word on a map, and the word for a wanted order.

The document describes it in prose (easynpu, Reshape): dimensions are exchanged, or one is split and its parts are
stacked on another, like piles of mah-jong tiles. Its two examples, in length, width and height:

- [6, 4, 2] halved in length and doubled in height: the second half of the length is put on top of the first. The
  document calls the result [3, 4, 6], which is 72 tiles of 48; it is [3, 4, 4].
- [2, 4, 6] halved in height and doubled in length: the upper half is inserted into the lower one, not put beside
  it. The result is [4, 4, 3].
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import permutations, product

import numpy as np

from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.targets.easynpu.machine.isa import Reshape
from npuc.targets.easynpu.machine.memory import LANES

SETUP = 192
"""Cycles to divide the extents of a word, one bit a cycle, before its chain starts."""
DIMENSIONS = "nhwc"
N, H, W, C = range(4)
ORDER = (C, W, H, N)
"""The order in which dimensions are split, each after the splits before it."""
PERMUTATIONS = tuple(permutations(range(4)))
"""By the word's perm: dimension i of the result is dimension PERMUTATIONS[perm][i] of the map."""
FACTOR_MOST = 256
EXTENT_MOST = 256

Shape = tuple[int, int, int]
"""(H, W, C)"""
Split = tuple[int, int, int, int]
"""(parts, onto, minor, insert) of a dimension."""


def splits(word: Reshape) -> list[Split]:
    """(parts, onto, minor, insert) of N, H, W and C."""
    return [
        (
            getattr(word, f"split_{name}"),
            getattr(word, f"onto_{name}"),
            getattr(word, f"minor_{name}"),
            getattr(word, f"insert_{name}"),
        )
        for name in DIMENSIONS
    ]


def problem(word: Reshape) -> str | None:
    """The reason why the word does not rearrange its map into its result, or None."""
    if word.perm >= len(PERMUTATIONS):
        return f"permutation {word.perm} of {len(PERMUTATIONS)}"
    extents = [(1, word.Hi, word.Wi, word.Ci)[source] for source in PERMUTATIONS[word.perm]]
    table = splits(word)
    for dimension in ORDER:
        parts, onto, _, _ = table[dimension]
        if extents[dimension] % parts:
            return f"{DIMENSIONS[dimension].upper()} = {extents[dimension]} is split into {parts} parts"
        extents[dimension] //= parts
        extents[onto] *= parts
    if extents != [1, word.Ho, word.Wo, word.Co]:
        return f"N, H, W, C are {extents} after the splits, the result is {[1, word.Ho, word.Wo, word.Co]}"
    return None


def destination(word: Reshape, at: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
    """The (row, column, channel) of the result for elements at (row, column, channel) of the map.

    A dimension of R * parts indices is split either into blocks (part = index // R, rest = index % R) or, if
    minor, into every parts-th index (part = index % parts, rest = index // parts). The rest stays in its
    dimension. The part goes to the dimension that it is stacked on, of T indices: after them (part * T + index),
    or inserted between them (index * parts + part). That may be the split dimension itself. The word must have no
    `problem`.
    """
    order = PERMUTATIONS[word.perm]
    index = [(np.zeros_like(at[0]), *at)[source] for source in order]
    extents = [(1, word.Hi, word.Wi, word.Ci)[source] for source in order]
    for dimension, (parts, onto, minor, insert) in ((each, splits(word)[each]) for each in ORDER):
        rest = extents[dimension] // parts
        part = index[dimension] % parts if minor else index[dimension] // rest
        index[dimension] = index[dimension] // parts if minor else index[dimension] % rest
        extents[dimension] = rest
        index[onto] = index[onto] * parts + part if insert else part * extents[onto] + index[onto]
        extents[onto] *= parts
    return index[H], index[W], index[C]


def rearrange(x: Array, word: Reshape) -> Array:
    """Maps (samples, Hi, Wi, Ci) in the word's order: (samples, Ho, Wo, Co).

    Raises ArtefactError (E503) where the word contradicts itself.
    """
    wrong = problem(word)
    if wrong is not None:
        raise ArtefactError("E503", f"a reshape word contradicts itself: {wrong}")
    result = np.empty((len(x), word.Ho, word.Wo, word.Co), x.dtype)
    row, column, channel = targets(word)
    result[:, row, column, channel] = x
    return result


def run_length(word: Reshape) -> int:
    """The number of channels, from each multiple of it on, that stay adjacent in the result.

    It is all channels, those of a part where C is split into blocks, or 1 where channels are separated.
    """
    table = splits(word)
    parts, _, minor, _ = table[C]
    inserted = any(each > 1 and onto == C and insert for each, onto, _, insert in table)
    moved = PERMUTATIONS[word.perm][C] != C or (minor and parts > 1)
    return 1 if moved or inserted else word.Ci // parts


def piece_starts(word: Reshape) -> Array:
    """Which elements (Hi, Wi, Ci) of the map begin a piece: lanes that stay adjacent and go to one word."""
    channel = targets(word)[2]
    at = np.arange(word.Ci)
    return (at % LANES == 0) | (at % run_length(word) == 0) | (channel % LANES == 0)


def written_words(word: Reshape) -> int:
    """Words that are written for the map, with lane enables: one per piece."""
    return int(piece_starts(word).sum())


def runs_most(run: int) -> int:
    """The most runs of this length that 16 consecutive channels can overlap."""
    return (LANES - 2) // run + 2


def most_written(word: Reshape) -> int:
    """An upper bound on the pieces of a word of the map, which a machine can derive from the reshape word alone.

    It is the number of runs in a word if these divide words evenly; otherwise every run may cross the end of a
    word.
    """
    run, lanes = run_length(word), min(word.Ci, LANES)
    if run % LANES == 0:
        return 1
    if LANES % run == 0:
        return lanes // run
    stacked = any(parts > 1 and onto == C for parts, onto, _, _ in splits(word))
    if run == word.Ci:
        return 2 if stacked else 1
    if run > LANES:
        return 4
    return lanes if stacked else min(lanes, runs_most(run))


def targets(word: Reshape) -> tuple[Array, Array, Array]:
    """The row, column and channel of the result for every element (Hi, Wi, Ci) of the map."""
    row, column, channel = np.indices((word.Hi, word.Wi, word.Ci))
    return destination(word, (row, column, channel))


def word_for(order: Array, before: Shape) -> Reshape | None:
    """The reshape word that brings a map of shape `before` into an order, or None if no single word does.

    order: (Ho, Wo, Co), for each element of the result its index in the flattened map (H, W, C). Fewer splits are
    preferred.
    """
    after = order.shape
    if max(*before, *after) > EXTENT_MOST or order.size != np.prod(before):
        return None
    place = np.empty(order.size, np.int64)
    place[order.ravel()] = np.arange(order.size)
    some = np.random.default_rng(0).integers(order.size, size=64)
    for word in _candidates(before, (after[0], after[1], after[2])):
        if _sends(word, some, place) and _sends(word, np.arange(order.size), place):
            return word
    return None


def _sends(word: Reshape, elements: Array, place: Array) -> bool:
    """Whether the word moves these elements of the flattened map to their places in the flattened result."""
    row, column, channel = np.unravel_index(elements, (word.Hi, word.Wi, word.Ci))
    to = destination(word, (row, column, channel))
    return bool((np.ravel_multi_index(to, (word.Ho, word.Wo, word.Co)) == place[elements]).all())


def _candidates(before: Shape, after: Shape) -> Iterator[Reshape]:
    """The words from one shape to another that do not change N, first with no split, then one, then two."""
    Hi, Wi, Ci = before
    plain = Reshape(Hi=Hi, Wi=Wi, Ci=Ci, Ho=after[0], Wo=after[1], Co=after[2])
    for count in range(3):
        for perm in range(6):  # N stays first
            extents = tuple((1, Hi, Wi, Ci)[source] for source in PERMUTATIONS[perm])
            yield from _split_further(replace(plain, perm=perm), extents, (1, *after), ORDER[:3], count)


def _split_further(
    word: Reshape, extents: tuple[int, ...], wanted: tuple[int, ...], dimensions: tuple[int, ...], count: int
) -> Iterator[Reshape]:
    """The words with this many more splits of these dimensions, in order, that reach the wanted extents."""
    if not count:
        if extents == wanted:
            yield word
        return
    for position, dimension in enumerate(dimensions[: len(dimensions) - count + 1]):
        for parts, onto in product(_divisors(extents[dimension]), (H, W, C)):
            reached = list(extents)
            reached[dimension] //= parts
            reached[onto] *= parts
            if count == 1 and tuple(reached) != wanted:
                continue
            for minor, insert in product((0, 1), (0, 1)):
                fields = _fields(dimension, (parts, onto, minor, insert))
                rest = dimensions[position + 1 :]
                yield from _split_further(replace(word, **fields), tuple(reached), wanted, rest, count - 1)


def _fields(dimension: int, split: Split) -> dict[str, int]:
    name = DIMENSIONS[dimension]
    return {f"{key}_{name}": value for key, value in zip(("split", "onto", "minor", "insert"), split, strict=True)}


@cache
def _divisors(extent: int) -> tuple[int, ...]:
    """The numbers of equal parts, more than one, that the field can state."""
    return tuple(parts for parts in range(2, min(extent, FACTOR_MOST) + 1) if extent % parts == 0)
