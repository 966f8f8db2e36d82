"""When a program does what, and what its memories hold meanwhile: for every target, in cycles and bytes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Activity:
    """An engine at work from cycle `start` to cycle `end`."""

    engine: str
    label: str
    start: int
    end: int
    tensor: str | None = None
    """The result's name, by which layers of the report are found."""


@dataclass(frozen=True)
class Buffer:
    """Bytes of a memory in use from cycle `start`, when they are written, to cycle `end`, when last read."""

    memory: str
    label: str
    address: int
    size: int
    start: int
    end: int


@dataclass(frozen=True)
class Timeline:
    """A whole run of a program, for one sample."""

    cycles: int
    activities: tuple[Activity, ...]
    buffers: tuple[Buffer, ...]

    @property
    def engines(self) -> tuple[str, ...]:
        """In order of their first activity."""
        return tuple(dict.fromkeys(each.engine for each in self.activities))
