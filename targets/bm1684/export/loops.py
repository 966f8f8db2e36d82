"""Repeated C statements, written as loops where that is shorter.

Values in arithmetic progression are computed from the loop counter; others are fields of a table's rows, named
after parameters.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cache

from npuc.frozen import frozen
from npuc.targets.bm1684.simulate import simulator
from npuc.text.escaping import Names

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

    def add_steps(self, step: int) -> str:
        """The value plus `i` times a step, in C."""
        if step == 0:
            return self.text
        turns = "i" if abs(step) == 1 else f"i * {abs(step)}"
        if step > 0 and not (self.base or self.number):
            return turns
        return f"{self.text} {'+' if step > 0 else '-'} {turns}"


MEMBERS = {"DIM4": "_n _c _h _w", "DIM2": "_h _w", "PADS": "_top _bottom _left _right", "LOCAL": "_npu "}
"""What the values of a macro add to the name of their parameter."""


@cache
def _declarations() -> tuple[tuple[re.Pattern[str], tuple[str, ...]], ...]:
    """The calls that the headers declare, whole names before those with a part for any word; their parameters."""
    text = "".join((simulator.MODEL / name).read_text("utf-8") for name in ("okk.h", "okk_fix8b.h"))
    found = re.findall(r"void (okk_[\w#]+|npuc_\w+)\(([^()]*)\)", text.replace("\\\n", " "))
    found.append(("load", "to, int first, int count"))
    return tuple(
        (re.compile(re.sub("#+[a-z]+#*", r"\\w+", name)), tuple(re.findall(r"(\w+?)(?:_addr)?\s*(?:,|$)", given)))
        for name, given in sorted(found, key=lambda each: "#" in each[0])
    )


NESTED = re.compile(r"\([^()]*\)")


def _field(call: str, end: int) -> str:
    """The name of the value at a place of a call: its parameter's, and its member's of a shape."""
    function, _, arguments = call.partition("(")
    count = NESTED.sub("", arguments).count(",") + 1
    outer, _, inner = NESTED.sub("", arguments[: end - len(function) - 1]).partition("(")
    members = MEMBERS.get(outer.rpartition(" ")[2], "").split(" ")
    for pattern, names in _declarations():
        if len(names) == count and pattern.fullmatch(function):
            return names[outer.count(",")] + members[inner.count(",") if members[1:] else 0]
    return "value"


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

    @property
    def fields(self) -> list[str]:
        """Names for the values."""
        line = self.line([each.text for each in self.values])
        return [_field(line, found.start()) for found in VALUE.finditer(line)]


def step(first: CValue, second: CValue) -> int | None:
    """The difference between two values; None if they are offsets in different buffers."""
    return second.number - first.number if first.base == second.base else None


def _follows(first: CValue, second: CValue, later: CValue, count: int) -> bool:
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
    fields: tuple[str, ...]
    """The names of the table's columns."""
    table: tuple[tuple[str, ...], ...]

    @property
    def lines(self) -> list[str]:
        """The loop in C."""
        rows = [f"{2 * INDENT}{{{', '.join(row)}}}," for row in self.table]
        head = f"{INDENT}static const struct {{ int {', '.join(self.fields)}; }} each[{self.count}] = {{"
        table = [head, *rows, f"{INDENT}}};"] if self.fields else []
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


def _columns(statements: Sequence[Statement], at: int, period: int, count: int) -> list[list[CValue]]:
    """Each value of a loop body in every iteration."""
    return [
        [statements[at + turn * period + j].values[k] for turn in range(count)]
        for j in range(period)
        for k in range(len(statements[at + j].values))
    ]


def _loop(statements: Sequence[Statement], at: int, period: int, count: int) -> _Loop | None:
    """The loop of `count` iterations; None if its table would be too wide, or a number too large for an int."""
    written: list[str] = []
    table: dict[tuple[CValue, ...], str] = {}
    names, fields = Names(), [name for j in range(period) for name in statements[at + j].fields]
    for column, field in zip(_columns(statements, at, period, count), fields, strict=True):
        if all(_follows(column[0], column[1], later, turn) for turn, later in enumerate(column)):
            written.append(column[0].add_steps(step(column[0], column[1]) or 0))
            continue
        if any(value.number >= MOST for value in column):
            return None
        key = tuple(column)
        table[key] = table.get(key) or names.new(field)
        written.append(f"each[i].{table[key]}")
    if len(table) > COLUMNS:
        return None
    values = iter(written)
    body = [each.line([next(values) for _ in each.values]) for each in statements[at : at + period]]
    rows = tuple(zip(*([value.text for value in column] for column in table), strict=True))
    return _Loop(tuple(body), count, tuple(table.values()), rows)
