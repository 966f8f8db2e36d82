"""C source text: numbers, initialisers, arrays and headers."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def floating(value: float) -> str:
    """A float32 as the shortest literal that reads back as the same value, or a name from math.h.

    >>> floating(0.1), floating(1), floating(float("-inf"))
    ('0.1f', '1.0f', '-INFINITY')
    """
    text = str(np.float32(value))
    return {"inf": "INFINITY", "-inf": "-INFINITY", "nan": "NAN"}.get(text, f"{text}f")


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
