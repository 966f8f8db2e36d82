"""Annotated hex view of a program's files: the bytes beside their meaning."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.program import Program
from npuc.text.escaping import terminal
from npuc.text.terminal import as_json, closest, csv_table

ROW_BYTES = 16


@frozen
class MemoryAnnotation:
    """What a file contains from byte `start` on, up to the next annotation."""

    start: int
    what: str
    nodes: tuple[str, ...] = ()
    """The ONNX nodes to which the bytes belong."""


def name_of(program: Program, asked: str) -> str:
    """The file of this name, or of a memory's name: `weight` is weight.bin. Raises ArtefactError (E508)."""
    found = [name for name in sorted(program.files) if asked in (name, name.partition(".")[0])]
    if not found:
        known = sorted(program.files)
        raise ArtefactError("E508", f"no image '{asked}'.{closest(asked, known)}", limit=", ".join(known))
    return found[0]


def rows(data: bytes, held: Iterable[MemoryAnnotation]) -> list[dict[str, Any]]:
    """Rows of at most 16 bytes: address, hexadecimal bytes in order, contents, nodes.

    A row ends where the next annotation begins; annotations with the same start share a row.
    """
    places: dict[int, list[MemoryAnnotation]] = {}
    for each in held:
        places.setdefault(each.start, []).append(each)
    starts = sorted({0, *(start for start in places if 0 <= start < len(data))})
    found: list[dict[str, Any]] = []
    for start, end in zip(starts, [*starts[1:], len(data)], strict=True):
        here = places.get(start, [])
        what = "; ".join(dict.fromkeys(each.what for each in here)) or None
        nodes = list(dict.fromkeys(node for each in here for node in each.nodes))
        for at in range(start, end, ROW_BYTES):
            found.append(
                {"address": at, "hex": data[at : min(at + ROW_BYTES, end)].hex(), "what": what, "nodes": nodes}
            )
    return found


def view(name: str, size: int, found: Sequence[Mapping[str, Any]], form: str) -> str:
    """The rows as text, JSON or CSV."""
    if form == "json":
        return as_json({"status": "ok", "image": name, "bytes": size, "rows": list(found)})
    if form == "csv":
        lines = ((row["address"], row["hex"], row["what"], " ".join(row["nodes"])) for row in found)
        return csv_table(("address", "hex", "what", "nodes"), lines)
    text: list[str] = []
    told = ""
    for row in found:
        parts = [row["what"], ", ".join(row["nodes"])]
        comment = terminal(" ; ".join(filter(None, parts))) if row["what"] else ""
        spaced = bytes.fromhex(row["hex"]).hex(" ")
        shown = comment if comment != told else ""
        text.append(f"{row['address']:08x}  {spaced:<{3 * ROW_BYTES}} {shown}".rstrip())
        told = comment
    return "\n".join(text)
