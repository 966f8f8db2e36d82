"""Plain text for terminals and pipes: aligned tables, JSON, hints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from npuc.text.escaping import csv_lines, json_text, terminal


def table(header: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """Columns as wide as their widest cell; numbers to the right.

    >>> print(table(("op", "cycles"), [("conv", 12), ("add", 3456)]))
    op    cycles
    conv      12
    add    3,456
    """
    cells = [list(map(terminal, header)), *([_cell(value) for value in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    right = [bool(rows) and all(_numeric(row[column]) for row in rows) for column in range(len(header))]
    lines = [
        "  ".join(
            cell.rjust(width) if aligned else cell.ljust(width)
            for cell, width, aligned in zip(row, widths, right, strict=True)
        ).rstrip()
        for row in cells
    ]
    return "\n".join(lines)


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
