"""An option of `npuc compile` that only some targets have."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Flag:
    """What a target declares, and the command line and `npuc.compile` then take: `--isa documented`."""

    name: str
    values: tuple[str, ...]
    """The usual one first."""
    help: str
    """A sentence for `npuc compile --help`."""
