"""Statements of C that repeat with evenly growing numbers, written as loops where that is shorter."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

INTEGER = re.compile(r"(?<![\w.])(0x[0-9a-f]+|\d+)(?![\w.])")
"""A number that stands alone: not part of a name or of a float."""
LONGEST = 12
"""Statements of a loop's body."""
INDENT = "    "


@dataclass(frozen=True)
class _Statement:
    """A line's text around its numbers, and the numbers as they are written."""

    texts: tuple[str, ...]
    numbers: tuple[str, ...]

    @classmethod
    def of(cls, line: str) -> _Statement:
        parts = INTEGER.split(line)
        return cls(tuple(parts[::2]), tuple(parts[1::2]))

    @property
    def values(self) -> tuple[int, ...]:
        return tuple(int(number, 0) for number in self.numbers)

    def growing(self, steps: Sequence[int]) -> str:
        """The line with `i` times its step added to each number."""
        written = [self.texts[0]]
        for number, step, text in zip(self.numbers, steps, self.texts[1:], strict=True):
            grown = number if step == 0 else f"{number} {'+' if step > 0 else '-'} i * {abs(step)}"
            written += [grown, text]
        return "".join(written)


def rolled(lines: Sequence[str]) -> list[str]:
    """The same statements in as few lines, loops over i where they repeat."""
    statements, found, at = [_Statement.of(line) for line in lines], list[str](), 0
    while at < len(lines):
        period, count = _best(statements, at)
        if count < 2:
            found.append(lines[at])
            at += 1
            continue
        found.append(f"for (int i = 0; i < {count}; i++) {{")
        for first, second in zip(statements[at : at + period], statements[at + period :], strict=False):
            steps = [b - a for a, b in zip(first.values, second.values, strict=True)]
            found.append(INDENT + first.growing(steps))
        found.append("}")
        at += period * count
    return found


def _best(statements: Sequence[_Statement], at: int) -> tuple[int, int]:
    """The loop from a statement on that saves most lines: statements of its body, times it runs (3 or more)."""
    best, saved = (1, 1), 0
    for period in range(1, min(LONGEST, (len(statements) - at) // 2) + 1):
        count = _repetitions(statements, at, period)
        saving = (count - 1) * period - 2
        if count > 2 and saving > saved:
            best, saved = (period, count), saving
    return best


def _repetitions(statements: Sequence[_Statement], at: int, period: int) -> int:
    """How often the next `period` statements follow each other with evenly growing numbers."""
    count = 1
    while at + (count + 1) * period <= len(statements):
        start = at + count * period
        if not all(_follows(statements, at + j, start + j, period, count) for j in range(period)):
            break
        count += 1
    return count


def _follows(statements: Sequence[_Statement], first: int, later: int, period: int, count: int) -> bool:
    a, b = statements[first], statements[later]
    if a.texts != b.texts:
        return False
    second = statements[first + period]
    steps = [y - x for x, y in zip(a.values, second.values, strict=True)]
    return all(x + count * step == y for x, step, y in zip(a.values, steps, b.values, strict=True))
