"""How the model refuses what the hardware could not do: an error of the artefact, naming the block."""

from __future__ import annotations

from npuc.errors import ArtefactError


def trap(block: str, reason: str, limit: str | None = None, remedy: str | None = None) -> ArtefactError:
    """The error (E503) of a block that cannot go on: it would hang, or compute nonsense."""
    return ArtefactError("E503", reason, op=block, limit=limit, remedy=remedy)
