"""Lines of C as a text around numbers and addresses, so that lines which differ in those alone can be found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

VALUE = re.compile(r"(AT_\w+(?: \+ 0x[0-9a-f]+)?|(?<![\w.])-?(?:0x[0-9a-f]+|\d+)(?![\w.]))")
"""A buffer's constant with bytes from its start, or a number that stands alone: no part of a name or a float."""
MOST = 1 << 31
"""Where C's int ends."""


@dataclass(frozen=True)
class Value:
    """A number or an address as it is written."""

    text: str
    base: str
    """The buffer's constant; empty for a number."""
    number: int
    """The number, or the bytes from the buffer's start."""

    @classmethod
    def of(cls, text: str) -> Value:
        """A value of a line."""
        base, _, offset = text.partition(" + ") if text.startswith("AT_") else ("", "", text)
        return cls(text, base, int(offset or "0", 0))

    def growing(self, step: int) -> str:
        """The value with `i` times a step added to it."""
        if step == 0:
            return self.text
        turns = "i" if abs(step) == 1 else f"i * {abs(step)}"
        if step > 0 and not (self.base or self.number):
            return turns
        return f"{self.text} {'+' if step > 0 else '-'} {turns}"


@dataclass(frozen=True)
class Statement:
    """A line's text around its values, and the values."""

    texts: tuple[str, ...]
    values: tuple[Value, ...]

    @classmethod
    def of(cls, line: str) -> Statement:
        """The parts of a line."""
        parts = VALUE.split(line)
        return cls(tuple(parts[::2]), tuple(map(Value.of, parts[1::2])))

    def line(self, values: Sequence[str]) -> str:
        """The line with these in place of its values."""
        written = [self.texts[0]]
        for value, text in zip(values, self.texts[1:], strict=True):
            written += [value, text]
        return "".join(written)


def step(first: Value, second: Value) -> int | None:
    """By what a value is larger than the one before it; None for another buffer's."""
    return second.number - first.number if first.base == second.base else None


def follows(first: Value, second: Value, later: Value, count: int) -> bool:
    """Whether a value is the one that `count` even steps lead to."""
    by = step(first, second)
    return (
        by is not None
        and later.base == first.base
        and abs(by) * count < MOST
        and (first.number + count * by == later.number)
    )
