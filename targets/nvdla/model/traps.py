"""Errors for what the hardware could not do: they blame the artefact and name the block."""

from __future__ import annotations

from npuc.errors import ArtefactError
from npuc.targets.nvdla.machine.limits import Registers, breach
from npuc.targets.nvdla.machine.parameters import Machine


def trap(block: str, reason: str, limit: str | None = None, remedy: str | None = None) -> ArtefactError:
    """The error (E503) of a block that cannot continue: it would hang or compute garbage."""
    return ArtefactError("E503", reason, op=block, limit=limit, remedy=remedy)


def expect_within_limits(group: Registers, machine: Machine) -> None:
    """Raises ArtefactError (E503) if the registers of a block break one of its limits."""
    found = breach(group, machine)
    if found is not None:
        raise trap(group.block, found[0], limit=found[1])
