"""Errors for what the hardware could not do: they blame the artefact and name the block."""

from __future__ import annotations

from npuc.errors import ArtefactError


def trap(block: str, reason: str, limit: str | None = None, remedy: str | None = None) -> ArtefactError:
    """The error (E503) of a block that cannot continue: it would hang or compute garbage."""
    return ArtefactError("E503", reason, op=block, limit=limit, remedy=remedy)
