"""Instruction words and registers, declared once as dataclasses whose fields specify their bits.

The encoder, the decoder, the assembler's field list, the documentation table and the property tests derive from
one declaration. The fields of a word cover every bit exactly once (checked when the class is declared), so
decode(encode(word)) == word and encode(decode(Word, value)) == value for every value.

>>> @word(16)
... @frozen(kw_only=True)
... class Pair:
...     left: int = bits(7, 0, "value of the left half")
...     right: int = bits(15, 8, "extent of the right half, 1..256", minus_one=True)
>>> hex(encode(Pair(left=3, right=16)))
'0xf03'
>>> decode(Pair, 0xF03)
Pair(left=3, right=16)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field, fields
from functools import cache, cached_property
from typing import Any, TypeVar

from npuc.errors import EncodingError
from npuc.frozen import frozen

W = TypeVar("W")

Names = tuple[tuple[str, int], ...]


@frozen
class Bits:
    """The position of a field (bits high..low) and how its value is stored."""

    high: int
    low: int
    meaning: str
    minus_one: bool = False
    names: Names = ()
    """Names of values in the documentation."""

    @cached_property
    def width(self) -> int:
        """Number of bits."""
        return self.high - self.low + 1

    @cached_property
    def least(self) -> int:
        """The smallest value."""
        return 1 if self.minus_one else 0

    @cached_property
    def most(self) -> int:
        """The largest value."""
        return (1 << self.width) - 1 + self.least


def bits(
    high: int, low: int, meaning: str, *, minus_one: bool = False, default: int | None = None, names: Names = ()
) -> Any:
    """Declares a field of a word; `minus_one` stores value - 1. The default is the field's smallest value."""
    place = Bits(high, low, meaning, minus_one, names)
    return field(default=place.least if default is None else default, metadata={"bits": place})


def word(width: int) -> Callable[[type[W]], type[W]]:
    """Checks that the bit fields of a frozen dataclass cover `width` bits exactly once."""

    def check(cls: type[W]) -> type[W]:
        taken = 0
        for name, place in places(cls).items():
            mask = ((1 << place.width) - 1) << place.low
            if taken & mask:
                raise TypeError(f"{cls.__name__}.{name} overlaps another field")
            taken |= mask
        if taken != (1 << width) - 1:
            raise TypeError(f"{cls.__name__} does not cover its {width} bits")
        return cls

    return check


@cache
def places(cls: type[Any]) -> dict[str, Bits]:
    """The fields of a word in declaration order."""
    return {each.name: each.metadata["bits"] for each in fields(cls)}


def encode(value: Any) -> int:
    """The word as an integer. Raises EncodingError (E301) for a value that does not fit its field."""
    result = 0
    for name, place in places(type(value)).items():
        number = getattr(value, name)
        if not place.least <= number <= place.most:
            raise EncodingError(
                "E301",
                f"{name} = {number} does not fit in {place.width} bits: {place.meaning}",
                op=type(value).__name__,
                limit=f"{place.least}..{place.most}",
            )
        result |= (number - place.least) << place.low
    return result


def decode(cls: type[W], value: int) -> W:
    """An integer decoded as this word."""
    found = {
        name: ((value >> place.low) & ((1 << place.width) - 1)) + place.least
        for name, place in places(cls).items()
    }
    return cls(**found)


def named_fields(value: Any) -> dict[str, str | int]:
    """The fields of a word for a listing: a value's name if it has one, otherwise the number."""
    return {
        name: next((each for each, number in place.names if number == getattr(value, name)), None)
        or getattr(value, name)
        for name, place in places(type(value)).items()
    }
