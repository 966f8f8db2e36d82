"""NVDLA's files that are no artefacts, recognised by their first bytes."""

from __future__ import annotations

from pathlib import Path

TARGETS = ("nvdla-small", "nvdla-large", "nvdla-full")
"""The targets whose register programs are alike from the outside."""
LOADABLE = b"NVDA"
"""Bytes 4 to 8 of a loadable: the identifier of its flatbuffer."""
RECORD_BYTES = 16
RECORD_END = "ffffffff0000100400000000"
"""The ending of a register program's first record, in hexadecimal."""


def is_loadable(path: Path) -> bool:
    """Whether a file is a loadable; not one that cannot be read."""
    return _head(path)[4:8] == LOADABLE


def is_register_program(path: Path) -> bool:
    """Whether a file holds register records, binary or in hexadecimal."""
    head = _head(path)
    binary, text = head[:RECORD_BYTES][::-1].hex(), head.split(b"\n")[0].strip().decode("ascii", "replace")
    return binary.endswith(RECORD_END) or text.lower().endswith(RECORD_END)


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(4 * RECORD_BYTES)
    except OSError:
        return b""
