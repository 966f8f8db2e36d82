"""C source text of exports: numbers, initialisers, arrays, headers; self-tests; the names of networks in firmware.

A self-test has stored samples as C tables or raw files, which a device's results are compared with. The prefix of
an exported network's files and functions lets several networks fit into one firmware.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

import numpy as np

from npuc.ir import Array
from npuc.program import Program
from npuc.text.escaping import c_comment, c_identifier

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


def initialiser(items: Iterable[object]) -> str:
    """A braced initialiser of members in order."""
    return "{" + ", ".join(map(str, items)) + "}"


def struct_initialiser(**members: object) -> str:
    """A braced initialiser of members by name."""
    return initialiser(f".{name} = {value}" for name, value in members.items())


def array(kind: str, name: str, rows: Iterable[str], *, public: bool = False) -> str:
    """A constant array, one row per line; empty text without rows, since C has no empty arrays."""
    lines = "".join(f"    {row},\n" for row in rows)
    return f"{'' if public else 'static '}const {kind} {name}[] = {{\n{lines}}};\n\n" if lines else ""


def header(title: str, guard: str, includes: str, definitions: Iterable[str], declarations: Iterable[str]) -> str:
    """A header file for C and C++: title, includes and definitions, and declarations with C linkage."""
    before = [title, f"#ifndef {guard}", f"#define {guard}", "", f'#include "{includes}"', "", *definitions]
    linked = ["", "#ifdef __cplusplus", 'extern "C" {', "#endif", "", *declarations]
    return "\n".join([*before, *linked, "", "#ifdef __cplusplus", "}", "#endif", "", "#endif"]) + "\n"


_TYPES = {
    "int8": "int8_t",
    "uint8": "uint8_t",
    "int16": "int16_t",
    "int64": "int64_t",
    "float32": "float",
    "float16": "uint16_t",
}


def tables(prefix: str, tensors: Sequence[Array]) -> tuple[str, str]:
    """Definitions of the tensors and of a table of pointers to them; the table's name, 0 for no tensors.

    prefix: an identifier.
    """
    values = [array(_TYPES[str(each.dtype)], f"{prefix}_{at}", elements(each)) for at, each in enumerate(tensors)]
    pointers = array(
        "void *const", prefix, (f"{prefix}_{at}" if each.size else "0" for at, each in enumerate(tensors))
    )
    return "".join(values) + pointers, prefix if pointers else "0"


def vectors(model: str, pairs: Sequence[tuple[Sequence[Array], Sequence[Array]]], count: tuple[str, int]) -> bytes:
    """npuc_vectors.c: the inputs and expected outputs of each pair. count: a constant."""
    head = c_comment(f"Samples of {model} and what npuc simulated. Written by npuc.")
    parts, rows = [head, '\n#include "npuc_self_test.h"\n\n#include <math.h>\n\n'], list[str]()
    for at, (given, expected) in enumerate(pairs):
        first, second = tables(f"given_{at}", given), tables(f"expected_{at}", expected)
        parts += [first[0], second[0]]
        rows.append(initialiser([first[1], second[1]]))
    parts.append(array("struct npuc_vector", "npuc_vectors", rows, public=True))
    constant, value = count
    parts.append(f"const uint32_t {constant} = {value};\n")
    return "".join(parts).encode()


FOLDER = "self_test"
"""The folder of an export's stored samples."""


def comparing() -> dict[str, bytes]:
    """The C program that compares raw files with npuc's simulated results, by file name."""
    name = "npuc_compare.c"
    return {name: (Path(__file__).parent / name).read_bytes()}


PREFIX = "prefix"
"""The manifest's entry for a name chosen by the user."""
LONGEST, MOST = 40, 60
"""The most characters of a name, without and with a part number after it."""
NAMELESS = "npuc_network"


def identifier(text: str) -> str:
    """A user's name as a C identifier, truncated; empty if it contains no usable character."""
    return c_identifier(text)[:LONGEST].rstrip("_")


def with_prefix(program: Program, prefix: str | None) -> Program:
    """The program with this name, which part numbers may follow; None: unchanged."""
    if prefix is None:
        return program
    return replace(program, manifest={**program.manifest, PREFIX: c_identifier(prefix)[:MOST]})


def network_name(manifest: Mapping[str, Any]) -> str:
    """The name chosen by the user, otherwise `npuc_` and the name of the model's file."""
    chosen = manifest.get(PREFIX)
    if isinstance(chosen, str) and c_identifier(chosen):
        return c_identifier(chosen)[:MOST]
    model = manifest.get("model")
    name = model.get("name") if isinstance(model, dict) else None
    stem = PurePath(name).stem.lower() if isinstance(name, str) else ""
    made = c_identifier(f"npuc {stem}")
    return made[:LONGEST].rstrip("_") if made != "npuc" else NAMELESS
