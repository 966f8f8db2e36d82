"""Stored samples of an export's self-test as C tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from npuc.c_text import array, floating, listed
from npuc.escaping import c_comment
from npuc.ir import Array

C_TYPES = {"int8": "int8_t", "int16": "int16_t", "int64": "int64_t", "float32": "float", "float16": "uint16_t"}
A_LINE = 16


def tables(prefix: str, tensors: Sequence[Array]) -> tuple[str, str]:
    """Definitions of the tensors and of a table of pointers to them; the table's name, 0 for no tensors.

    float16 is written as its bits. prefix: an identifier.
    """
    values = [array(C_TYPES[str(each.dtype)], f"{prefix}_{at}", _rows(each)) for at, each in enumerate(tensors)]
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


def _rows(values: Array) -> Iterator[str]:
    bits: Array = values.view(np.uint16) if values.dtype == np.float16 else values
    texts = [floating(each) if bits.dtype == np.float32 else _integer(int(each)) for each in bits.ravel().tolist()]
    for at in range(0, len(texts), A_LINE):
        yield ", ".join(texts[at : at + A_LINE])


def _integer(value: int) -> str:
    """The least int64 has no literal of its own."""
    return "INT64_MIN" if value == -(2**63) else str(value)
