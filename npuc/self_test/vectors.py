"""Stored samples of an export's self-test as C tables."""

from __future__ import annotations

from collections.abc import Sequence

from npuc.export.c_text import array, elements, listed
from npuc.ir import Array
from npuc.text.escaping import c_comment

C_TYPES = {
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
    values = [array(C_TYPES[str(each.dtype)], f"{prefix}_{at}", elements(each)) for at, each in enumerate(tensors)]
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
        rows.append(listed([first[1], second[1]]))
    parts.append(array("struct npuc_vector", "npuc_vectors", rows, public=True))
    constant, value = count
    parts.append(f"const uint32_t {constant} = {value};\n")
    return "".join(parts).encode()
