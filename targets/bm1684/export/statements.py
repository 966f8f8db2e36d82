"""C lines split into text and values (numbers, addresses), to find lines that differ in their values only."""

from __future__ import annotations

import re
from collections.abc import Sequence

from npuc.frozen import frozen

VALUE = re.compile(r"(AT_\w+(?: \+ 0x[0-9a-f]+)?|(?<![\w.])-?(?:0x[0-9a-f]+|\d+)(?![\w.]))")
"""A buffer's constant with a byte offset, or a separate integer: not part of a name or a float."""
MOST = 1 << 31
"""The first number beyond C's int."""


@frozen
class CValue:
    """A number or an address, as written in C."""

    text: str
    base: str
    """The buffer's constant; empty for a number."""
    number: int
    """The number, or the byte offset from the buffer's start."""

    @classmethod
    def of(cls, text: str) -> CValue:
        """Parses a value as it is written in a line."""
        base, _, offset = text.partition(" + ") if text.startswith("AT_") else ("", "", text)
        return cls(text, base, int(offset or "0", 0))

    def growing(self, step: int) -> str:
        """The value plus `i` times a step, in C."""
        if step == 0:
            return self.text
        turns = "i" if abs(step) == 1 else f"i * {abs(step)}"
        if step > 0 and not (self.base or self.number):
            return turns
        return f"{self.text} {'+' if step > 0 else '-'} {turns}"


@frozen
class Statement:
    """A line split into its values and the texts around them."""

    texts: tuple[str, ...]
    values: tuple[CValue, ...]

    @classmethod
    def of(cls, line: str) -> Statement:
        """Splits a line."""
        parts = VALUE.split(line)
        return cls(tuple(parts[::2]), tuple(map(CValue.of, parts[1::2])))

    def line(self, values: Sequence[str]) -> str:
        """The line with its values replaced by these."""
        written = [self.texts[0]]
        for value, text in zip(values, self.texts[1:], strict=True):
            written += [value, text]
        return "".join(written)


def step(first: CValue, second: CValue) -> int | None:
    """The difference between two values; None if they are offsets in different buffers."""
    return second.number - first.number if first.base == second.base else None


def follows(first: CValue, second: CValue, later: CValue, count: int) -> bool:
    """Whether `later` is `first` plus `count` times the step from `first` to `second`."""
    by = step(first, second)
    return (
        by is not None
        and later.base == first.base
        and abs(by) * count < MOST
        and (first.number + count * by == later.number)
    )
