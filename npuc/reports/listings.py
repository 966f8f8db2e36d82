"""Output of `npuc dump`, `targets` and `operators`: instructions, words and tables as text, JSON or CSV."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from npuc.text.escaping import terminal
from npuc.text.terminal import as_json, csv_table, table

Report = Mapping[str, Any]
BRIEF = "brief"
"""The key of decoded values, which only text output shows."""


def listing(entries: Sequence[Report], form: str) -> str:
    """A disassembly for other programs: JSON or CSV."""
    if form == "json":
        told = [{key: each for key, each in entry.items() if key != BRIEF} for entry in entries]
        return as_json({"status": "ok", "instructions": told})
    rows = [(e["index"], e["word"], e["text"], " ".join(e["nodes"]), e["tensor"] or "") for e in entries]
    return csv_table(("index", "word", "text", "nodes", "tensor"), rows)


def layout(words: Mapping[str, Sequence[Report]], form: str) -> str:
    """The fields of every instruction word."""
    header = ("bits", "field", "width", "stored", "meaning")
    if form == "json":
        return as_json({"status": "ok", "words": words})
    if form == "csv":
        rows = [(name, *(field[key] for key in header)) for name, fields in words.items() for field in fields]
        return csv_table(("word", *header), rows)
    return "\n\n".join(
        f"{terminal(name)}\n{table(header, [[field[key] for key in header] for field in fields])}"
        for name, fields in words.items()
    )


def targets(found: Sequence[Report]) -> str:
    """The targets with their machines and number formats."""
    lists = ("machines", "precisions")
    rows = [(each["name"], each["summary"], *(", ".join(each[key]) for key in lists)) for each in found]
    return table(("target", "summary", *lists), rows)


def operators(found: Sequence[Report]) -> str:
    """The supported-operators table."""
    return table(("operator", "runs as", "constraints"), [list(each.values()) for each in found])
