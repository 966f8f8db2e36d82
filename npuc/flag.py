"""An option of `npuc compile` that only some targets have."""

from __future__ import annotations

from npuc.frozen import frozen


@frozen
class Flag:
    """An option declared by a target and accepted by the command line and `npuc.compile`: `--isa documented`."""

    name: str
    values: tuple[str, ...]
    """The default comes first."""
    help: str
    """A sentence for `npuc compile --help`."""
