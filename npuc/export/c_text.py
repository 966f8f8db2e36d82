"""C source text: numbers, initialisers, arrays, headers, and the sources that come with npuc."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np

from npuc.ir import Array

A_LINE = 16


def sources(folder: Path) -> dict[str, bytes]:
    """The C sources in a folder, with their Makefile and README, by path."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.suffix in (".c", ".h", ".md") or path.name == "Makefile"
    }


def floating(value: float) -> str:
    """A float32 as the shortest literal that reads back as the same value, or a name from math.h.

    >>> floating(0.1), floating(1), floating(float("-inf"))
    ('0.1f', '1.0f', '-INFINITY')
    """
    text = str(np.float32(value))
    return {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}.get(text, f"{text}f")


def lines(texts: Iterable[str], most: int = A_LINE) -> Iterator[str]:
    """Texts separated by commas, so many a line."""
    waiting = iter(texts)
    while row := list(islice(waiting, most)):
        yield ", ".join(row)


def elements(values: Array, most: int = A_LINE) -> Iterator[str]:
    """The elements of a tensor as lines of literals; those of float16 as their bits."""
    bits: Array = values.view(np.uint16) if values.dtype == np.float16 else values
    literal = floating if values.dtype == np.float32 else _number
    return lines(map(literal, bits.ravel().tolist()), most)


def _number(value: float) -> str:
    """A number of a type other than float32; the least int64 has no literal of its own."""
    if isinstance(value, float):
        return {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}.get(repr(value), repr(value))
    return "INT64_MIN" if value == -(2**63) else str(int(value))


def listed(items: Iterable[object]) -> str:
    """A braced initialiser of members in order."""
    return "{" + ", ".join(map(str, items)) + "}"


def named(**members: object) -> str:
    """A braced initialiser of members by name."""
    return listed(f".{name} = {value}" for name, value in members.items())


def array(kind: str, name: str, rows: Iterable[str], *, public: bool = False) -> str:
    """A constant array, one row per line; empty text without rows, since C has no empty arrays."""
    lines = "".join(f"    {row},\n" for row in rows)
    return f"{'' if public else 'static '}const {kind} {name}[] = {{\n{lines}}};\n\n" if lines else ""


def header(title: str, guard: str, includes: str, definitions: Iterable[str], declarations: Iterable[str]) -> str:
    """A header file for C and C++: title, includes and definitions, and declarations with C linkage."""
    before = [title, f"#ifndef {guard}", f"#define {guard}", "", f'#include "{includes}"', "", *definitions]
    linked = ["", "#ifdef __cplusplus", 'extern "C" {', "#endif", "", *declarations]
    return "\n".join([*before, *linked, "", "#ifdef __cplusplus", "}", "#endif", "", "#endif"]) + "\n"
