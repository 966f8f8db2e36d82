"""Plain text for terminals and pipes: aligned tables, JSON, hints, and the progress of long operations."""

from __future__ import annotations

import re
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from pathlib import Path
from shutil import get_terminal_size
from textwrap import TextWrapper
from time import monotonic
from typing import Any

from npuc.text.escaping import csv_lines, json_text, terminal


def table(header: Sequence[str], rows: Sequence[Sequence[object]], width: int | None = None) -> str:
    """Columns as wide as their widest cell; numbers to the right.

    width: the characters of a line [those of a terminal, any number in a pipe]. A wider table has cells of several
    lines, broken between words; where that does not do, the first cell of a row stands above the others, or
    each is a line.

    >>> print(table(("op", "cycles"), [("conv", 12), ("add", 3456)]))
    op    cycles
    conv      12
    add    3,456
    >>> print(table(("op", "limits"), [("conv", "kernel up to 8"), ("add", "-")], 14))
    op    limits
    conv  kernel
          up to 8
    add   -
    """
    cells = [list(map(terminal, header)), *([_cell(value) for value in row] for row in rows)]
    right = [bool(rows) and all(_numeric(row[column]) for row in rows) for column in range(len(header))]
    columns = [*zip(*cells, strict=True)]
    widths = [max(map(len, column)) for column in columns]
    limit = _width() if width is None else width
    if limit is not None and sum(widths) + GAP * (len(widths) - 1) > limit:
        least = [max(len(word) for cell in column for word in cell.split(" ")) for column in columns]
        widths = _narrow(widths, least, limit - GAP * (len(widths) - 1))
        if not widths or any(
            len(_wrap(*each)) > TALLEST for row in cells for each in zip(row, widths, strict=True)
        ):
            return _blocks(cells, right, limit)
    return "\n".join(line for row in cells for line in _lines(row, widths, right))


GAP = 2
"""Blanks between two columns."""
TALLEST = 6
"""The most lines of a cell: text in a narrow column is hard to read."""


def _width() -> int | None:
    """The width of the terminal that is written to; None for a pipe or a file."""
    return get_terminal_size().columns if sys.stdout.isatty() else None


def _narrow(widths: list[int], least: list[int], limit: int) -> list[int]:
    """The widths, the widest ones reduced until they fit; none if they cannot."""
    if sum(least) > limit:
        return []
    found = list(widths)
    while sum(found) > limit:
        widest = max((each, at) for at, each in enumerate(found) if each > least[at])[1]
        found[widest] -= 1
    return found


def _lines(row: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> Iterator[str]:
    """The lines of a row."""
    parts = [_wrap(cell, width) for cell, width in zip(row, widths, strict=True)]
    for line in zip_longest(*parts, fillvalue=""):
        aligned = zip(line, widths, right, strict=True)
        yield "  ".join(cell.rjust(width) if end else cell.ljust(width) for cell, width, end in aligned).rstrip()


def _blocks(cells: Sequence[Sequence[str]], right: Sequence[bool], limit: int) -> str:
    """A block of lines for each row: the first cell, then the others under it, in columns or by their headers."""
    widths = [max(map(len, column)) for column in [*zip(*cells, strict=True)][1:]]
    inside = sum(widths) + GAP * len(widths) <= limit
    header, *rows = cells
    lines: list[str] = []
    for first, *others in cells if inside else rows:
        lines += _wrap(first, limit, "  ")
        if inside:
            lines += [f"  {line}" for line in _lines(others, widths, right[1:])]
        else:
            lines += [_fold(f"  {name}: {cell}", limit) for name, cell in zip(header[1:], others, strict=True)]
    return "\n".join(line.rstrip() for line in lines)


def fold(text: str, width: int) -> str:
    """The text with lines of at most this many characters where words allow it; what continues one is indented.

    >>> print(fold("  help: use another name", 16))
      help: use
        another name
    """
    return "\n".join(line if len(line) <= width else _fold(line, width) for line in text.split("\n"))


def _fold(line: str, width: int) -> str:
    text = line.lstrip(" ")
    indent = line[: len(line) - len(text)]
    return "\n".join(f"{indent}{part}" for part in _wrap(text, width - len(indent), "  "))


def _wrap(text: str, width: int, indent: str = "") -> list[str]:
    """Lines of whole words; longer ones are broken behind `/` and `;`, as in names. indent: of all but one."""
    if len(text) <= width:
        return [text]
    found = _Wrapper(max(width, 1), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)
    return found.wrap(text) or [""]


class _Wrapper(TextWrapper):
    def _split(self, text: str) -> list[str]:
        columns = self.width - len(self.subsequent_indent)
        parts = ([each] if len(each) <= columns else re.split("(?<=[/;])", each) for each in super()._split(text))
        return [part for found in parts for part in found if part]


def page(name: str) -> Path:
    """The path of a page of docs/: in the installed package, or beside the package in a checkout.

    >>> page("easynpu.md").is_file()
    True
    """
    package = Path(__file__).parents[1]
    installed = package / "docs" / name
    return installed if installed.is_file() else package.parent / "docs" / name


def csv_table(header: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """The same as comma-separated values; None is an empty field.

    >>> print(csv_table(("op", "cycles"), [("conv", 12), ("add, relu", None)]))
    op,cycles
    conv,12
    "add, relu",
    """
    return csv_lines([header, *rows])


def _numeric(value: object) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _cell(value: object) -> str:
    match value:
        case None:
            return "-"
        case bool():
            return "yes" if value else "no"
        case float():
            return f"{value:.3f}" if abs(value) < 100 else f"{value:,.1f}"
        case int():
            return f"{value:,}"
        case _:
            return terminal(str(value))


def costs(alternatives: Iterable[Mapping[str, Any]], key: str) -> list[str]:
    """A line for each alternative: the value under the key, and the cost.

    >>> costs([{"form": "direct", "cycles": 1200, "bytes": 64}], "form")
    ['direct: 1,200 cycles, 64 bytes']
    """
    return [f"{each[key]}: {count(each['cycles'])} cycles, {count(each['bytes'])} bytes" for each in alternatives]


def count(number: int) -> str:
    """A number with separators.

    >>> count(12501632)
    '12,501,632'
    """
    return f"{number:,}"


def short(name: str, width: int = 40) -> str:
    """A name, shortened to its end if it is long.

    >>> short("functional_1/activation_1/Relu", 12)
    '...on_1/Relu'
    """
    return name if len(name) <= width else f"...{name[3 - width :]}"


def as_json(value: object) -> str:
    """The value as indented JSON in ASCII, safe for every terminal and pipe."""
    return json_text(value)


VERSION = 1
"""Of the reports that docs/output-schema.json describes: a change of a key or its meaning raises it."""


def report_json(report: Mapping[str, Any]) -> str:
    """A command's report as JSON, with the version of its schema."""
    return as_json({"version": VERSION, **report})


def closest(name: str, known: Iterable[str]) -> str:
    """A hint at the known name that was probably meant; empty if none is close.

    >>> closest("easynp", ["easynpu", "bm1684"])
    " Did you mean 'easynpu'?"
    """
    from difflib import get_close_matches

    folded = {each.casefold(): each for each in known}
    found = get_close_matches(name.casefold(), list(folded), n=1)
    return f" Did you mean '{folded[found[0]]}'?" if found else ""


def plural(number: int, noun: str, several: str = "") -> str:
    """A count with its noun.

    >>> plural(1, "class"), plural(1000, "class", "classes")
    ('1 class', '1,000 classes')
    """
    return f"{count(number)} {noun if number == 1 else several or noun + 's'}"


CLEAR = "\r\x1b[K"
"""Returns to the start of a terminal's line, and empties it."""
OFTEN = 0.1
"""Seconds between two lines."""


class Progress:
    """Receives the progress of a command; this one shows nothing."""

    def begin(self, what: str, total: int | None = None) -> None:
        """Begins a part of the work; total: its number of steps, if known."""

    def advance(self, steps: int) -> None:
        """Reports that this many more steps are done."""


SILENT = Progress()


@contextmanager
def progress(label: str, *, quiet: bool = False, stages: bool = False) -> Generator[Progress]:
    """Shows progress on a terminal's stderr: what is done, its steps if they are counted, and the elapsed time.

    It disappears at the end. In a pipe, or if quiet, nothing is shown. stages: each part of the work is a line on
    stderr instead, with the seconds that it took.
    """
    if stages and not quiet:
        told = _Stages(label)
        yield told
        told.end()
        return
    if quiet or not sys.stderr.isatty():
        yield SILENT
        return
    try:
        yield _Line(label)
    finally:
        print(CLEAR, end="", file=sys.stderr, flush=True)


class _Stages(Progress):
    """A line for each part of the work when it is done."""

    def __init__(self, label: str) -> None:
        self.label, self.what, self.start = label, "", monotonic()

    def begin(self, what: str, total: int | None = None) -> None:
        self.end()
        self.what = what if total is None else f"{what} ({total})"

    def end(self) -> None:
        """Reports the part that is done."""
        now = monotonic()
        if self.what:
            print(terminal(f"{self.label}: {self.what}, {now - self.start:.1f} s"), file=sys.stderr, flush=True)
        self.start = now


class _Line(Progress):
    """One line of the terminal, written again and again."""

    def __init__(self, label: str) -> None:
        self.label, self.start, self.shown = label, monotonic(), 0.0
        self.what, self.total, self.done = "", None, 0

    def begin(self, what: str, total: int | None = None) -> None:
        self.what, self.total, self.done = what, total, 0
        self._show(monotonic())

    def advance(self, steps: int) -> None:
        self.done += steps
        if (now := monotonic()) - self.shown > OFTEN:
            self._show(now)

    def _show(self, now: float) -> None:
        steps = "" if self.total is None else f" {self.done}/{self.total}"
        text = terminal(f"{self.label}: {self.what}{steps}, {now - self.start:.0f} s")
        print(CLEAR + text[: get_terminal_size().columns - 1], end="", file=sys.stderr, flush=True)
        self.shown = now
