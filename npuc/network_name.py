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
LONGEST = 48
"""Characters of a name."""
NAMELESS = "npuc_network"


def identifier(text: str) -> str:
    """A name as one of C, cut to what fits; empty where no character of it can be in one."""
    return c_identifier(text)[:LONGEST].rstrip("_")


def named(program: Program, prefix: str | None) -> Program:
    """The program under a name of the user's; None: as it is."""
    return (
        program if prefix is None else replace(program, manifest={**program.manifest, PREFIX: identifier(prefix)})
    )


def network_name(manifest: Mapping[str, Any]) -> str:
    """The name that the user chose, else `npuc_` and that of the model's file."""
    chosen = manifest.get(PREFIX)
    if isinstance(chosen, str) and identifier(chosen):
        return identifier(chosen)
    model = manifest.get("model")
    name = model.get("name") if isinstance(model, dict) else None
    stem = PurePath(name).stem.lower() if isinstance(name, str) else ""
    made = c_identifier(f"npuc {stem}")
    return made[:40].rstrip("_") if made != "npuc" else NAMELESS
