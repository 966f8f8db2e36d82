"""Groups of things that share keys, on two sides of a comparison."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeVar

T = TypeVar("T")


def sharing(
    sides: tuple[Sequence[T], Sequence[T]], keys: Callable[[T], Sequence[Hashable]]
) -> list[tuple[list[T], list[T]]]:
    """The members of both sides in groups that are connected by keys (at least one each), in order.

    >>> sharing((["ab", "c"], ["bd", "e"]), tuple)
    [(['ab'], ['bd']), (['c'], []), ([], ['e'])]
    """
    leader: dict[Hashable, Hashable] = {}

    def find(key: Hashable) -> Hashable:
        while leader.setdefault(key, key) != key:
            key = leader[key]
        return key

    for member in (*sides[0], *sides[1]):
        first, *others = keys(member)
        for other in others:
            leader[find(other)] = find(first)
    found: dict[Hashable, tuple[list[T], list[T]]] = {}
    for side, members in enumerate(sides):
        for member in members:
            found.setdefault(find(keys(member)[0]), ([], []))[side].append(member)
    return list(found.values())
