"""Options of `npuc compile` with a choice of values: those of all targets, and those that only some have."""

from __future__ import annotations

from collections.abc import Mapping

from npuc.frozen import frozen

POWER_OF_TWO = "power-of-two"
CHOICES: Mapping[str, tuple[str, ...]] = {
    "fallback": ("host", "refuse"),
    "level": ("0", "1", "2"),
    "method": ("mse", "output", "minmax", "percentile", "entropy"),
    "scales": ("free", POWER_OF_TWO),
    "mixed": ("off", "auto"),
    "proof": ("off", "one", "all"),
}
"""Values of the options that all targets share."""


@frozen
class Flag:
    """An option declared by a target and accepted by the command line and `npuc.compile`: `--isa documented`."""

    name: str
    values: tuple[str, ...]
    """The default comes first."""
    help: str
    """A sentence for `npuc compile --help`."""
