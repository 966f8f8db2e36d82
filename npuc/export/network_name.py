"""The prefix of an exported network's files and functions, so that several networks fit into one firmware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from npuc.program import Program
from npuc.text.escaping import c_identifier

PREFIX = "prefix"
"""The manifest's entry for a name chosen by the user."""
LONGEST, MOST = 40, 60
"""The most characters of a name, without and with a part number after it."""
NAMELESS = "npuc_network"


def identifier(text: str) -> str:
    """A user's name as a C identifier, truncated; empty if it contains no usable character."""
    return c_identifier(text)[:LONGEST].rstrip("_")


def named(program: Program, prefix: str | None) -> Program:
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
