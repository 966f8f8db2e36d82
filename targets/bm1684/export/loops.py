"""Repeated C statements, written as loops where that is shorter.

Values in arithmetic progression are computed from the loop counter; other values are read from a table.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from npuc.frozen import frozen

VALUE = re.compile(r"(AT_\w+(?: \+ 0x[0-9a-f]+)?|(?<![\w.])-?(?:0x[0-9a-f]+|\d+)(?![\w.]))")
"""A buffer's constant with a byte offset, or a separate integer: not part of a name or a float."""
MOST = 1 << 31
"""The first number beyond C's int."""


@frozen
class _CValue:
    """A number or an address, as written in C."""

    text: str
    base: str
    """The buffer's constant; empty for a number."""
    number: int
    """The number, or the byte offset from the buffer's start."""

    @classmethod
    def of(cls, text: str) -> _CValue:
        """Parses a value as it is written in a line."""
        base, _, offset = text.partition(" + ") if text.startswith("AT_") else ("", "", text)
        return cls(text, base, int(offset or "0", 0))

    def add_steps(self, step: int) -> str:
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
    values: tuple[_CValue, ...]

    @classmethod
    def of(cls, line: str) -> Statement:
        """Splits a line."""
        parts = VALUE.split(line)
        return cls(tuple(parts[::2]), tuple(map(_CValue.of, parts[1::2])))

    def line(self, values: Sequence[str]) -> str:
        """The line with its values replaced by these."""
        written = [self.texts[0]]
        for value, text in zip(values, self.texts[1:], strict=True):
            written += [value, text]
        return "".join(written)


def step(first: _CValue, second: _CValue) -> int | None:
    """The difference between two values; None if they are offsets in different buffers."""
    return second.number - first.number if first.base == second.base else None


def _follows(first: _CValue, second: _CValue, later: _CValue, count: int) -> bool:
    """Whether `later` is `first` plus `count` times the step from `first` to `second`."""
    by = step(first, second)
    return (
        by is not None
        and later.base == first.base
        and abs(by) * count < MOST
        and (first.number + count * by == later.number)
    )


LONGEST = 12
"""The most statements in a loop body."""
COLUMNS = 8
"""The most columns in a loop's table."""
INDENT = "    "


@frozen
class _Loop:
    """The statements of the body, the number of iterations, and the table's row for each iteration."""

    body: tuple[str, ...]
    count: int
    table: tuple[tuple[str, ...], ...]

    @property
    def lines(self) -> list[str]:
        """The loop in C."""
        rows = [f"{2 * INDENT}{{{', '.join(row)}}}," for row in self.table]
        columns = len(self.table[0]) if self.table else 0
        head = f"{INDENT}static const int each[{self.count}][{columns}] = {{"
        table = [head, *rows, f"{INDENT}}};"] if columns else []
        inside = [f"{INDENT}{line}" for line in self.body]
        return [f"for (int i = 0; i < {self.count}; i++) {{", *table, *inside, "}"]


def roll_loops(lines: Sequence[str], *, tables: bool = True) -> list[str]:
    """The statements, with repetitions as loops over `i` where that saves lines. tables: loops may use tables."""
    statements, found, at = [Statement.of(line) for line in lines], list[str](), 0
    while at < len(lines):
        loop = _best_loop(statements, at, tables=tables)
        if loop is None:
            found.append(lines[at])
            at += 1
        else:
            found += loop.lines
            at += len(loop.body) * loop.count
    return found


def _best_loop(statements: Sequence[Statement], at: int, *, tables: bool) -> _Loop | None:
    """The loop starting at a statement that saves most lines; None if none saves any."""
    best, saved = None, 0
    for period in range(1, min(LONGEST, (len(statements) - at) // 2) + 1):
        even = _repetitions(statements, at, period, even=True)
        counts = {even, _repetitions(statements, at, period, even=False)} if tables and period > 1 else {even}
        for count in (each for each in counts if each > 1):
            loop = _loop(statements, at, period, count)
            saving = count * period - len(loop.lines) if loop is not None else 0
            if saving > saved:
                best, saved = loop, saving
    return best


def _repetitions(statements: Sequence[Statement], at: int, period: int, *, even: bool) -> int:
    """How often the next `period` statements repeat; even: with every value in arithmetic progression."""
    count = 1
    while at + (count + 1) * period <= len(statements):
        start = at + count * period
        pairs = [(statements[at + j], statements[start + j]) for j in range(period)]
        if any(first.texts != later.texts for first, later in pairs):
            break
        if even and not all(_grows(statements, at + j, start + j, period, count) for j in range(period)):
            break
        count += 1
    return count


def _grows(statements: Sequence[Statement], first: int, later: int, period: int, count: int) -> bool:
    """Whether a statement's values continue the progression that starts `count` periods before it."""
    columns = zip(*(statements[each].values for each in (first, first + period, later)), strict=True)
    return all(_follows(start, second, value, count) for start, second, value in columns)


def _columns(statements: Sequence[Statement], at: int, period: int, count: int) -> list[list[_CValue]]:
    """Each value of a loop body in every iteration."""
    return [
        [statements[at + turn * period + j].values[k] for turn in range(count)]
        for j in range(period)
        for k in range(len(statements[at + j].values))
    ]


def _loop(statements: Sequence[Statement], at: int, period: int, count: int) -> _Loop | None:
    """The loop of `count` iterations; None if its table would be too wide, or a number too large for an int."""
    written: list[str] = []
    table: dict[tuple[_CValue, ...], str] = {}
    for column in _columns(statements, at, period, count):
        if all(_follows(column[0], column[1], later, turn) for turn, later in enumerate(column)):
            written.append(column[0].add_steps(step(column[0], column[1]) or 0))
            continue
        if any(value.number >= MOST for value in column):
            return None
        written.append(table.setdefault(tuple(column), f"each[i][{len(table)}]"))
    if len(table) > COLUMNS:
        return None
    values = iter(written)
    body = [each.line([next(values) for _ in each.values]) for each in statements[at : at + period]]
    rows = tuple(zip(*([value.text for value in column] for column in table), strict=True))
    return _Loop(tuple(body), count, rows)
