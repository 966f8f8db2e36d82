"""What the files and functions of an exported network begin with, so that several fit into one firmware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from npuc.escaping import c_identifier
from npuc.program import Program

PREFIX = "prefix"
"""The manifest's entry, where a user has chosen a name."""
LONGEST, MOST = 40, 60
"""Characters of a name, and of one with the number of a part behind it."""
NAMELESS = "npuc_network"


def identifier(text: str) -> str:
    """A user's name as one of C, cut to what fits; empty where no character of it can be in one."""
    return c_identifier(text)[:LONGEST].rstrip("_")


def named(program: Program, prefix: str | None) -> Program:
    """The program under a name, with what numbers its parts; None: as it is."""
    if prefix is None:
        return program
    return replace(program, manifest={**program.manifest, PREFIX: c_identifier(prefix)[:MOST]})


def network_name(manifest: Mapping[str, Any]) -> str:
    """The name that the user chose, else `npuc_` and that of the model's file."""
    chosen = manifest.get(PREFIX)
    if isinstance(chosen, str) and c_identifier(chosen):
        return c_identifier(chosen)[:MOST]
    model = manifest.get("model")
    name = model.get("name") if isinstance(model, dict) else None
    stem = PurePath(name).stem.lower() if isinstance(name, str) else ""
    made = c_identifier(f"npuc {stem}")
    return made[:LONGEST].rstrip("_") if made != "npuc" else NAMELESS
