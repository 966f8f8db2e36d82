"""Where a program's bytes lie in a loadable: the user's inputs and outputs have memories of their own.

A program has all maps in one memory, one after the other in time. What is read of an input's place, before
anything else is written there, is read from the input's memory; what happens in an output's place after the last
use of it for something larger happens in the output's memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.targets.nvdla.model.memory import Pattern

DUMMY, WEIGHTS, MAPS, FIRST_BOUND = 0, 1, 2, 3
"""Memories by their ids; those of inputs and outputs follow."""


@dataclass(frozen=True)
class Bound:
    """An input or output: its place in the program's memory."""

    tensor: str
    memory: int
    """The id of its own memory."""
    start: int
    bytes: int

    @property
    def end(self) -> int:
        """The first byte behind it."""
        return self.start + self.bytes

    def holds(self, place: Pattern) -> bool:
        """Whether a pattern lies within."""
        return self.start <= place.address and place.address + place.size <= self.end

    def touches(self, place: Pattern) -> bool:
        """Whether a pattern's span shares a byte with it."""
        return place.address < self.end and place.address + place.size > self.start


@dataclass(frozen=True)
class Use:
    """A cube that an operation reads or writes."""

    operation: int
    name: str
    place: Pattern
    writes: bool


@dataclass(frozen=True)
class Layout:
    """The program's memory: where constants and maps begin, and the inputs and outputs."""

    maps: int
    map_bytes: int
    inputs: tuple[Bound, ...]
    outputs: tuple[Bound, ...]


Places = Mapping[tuple[int, str], tuple[int, int]]
"""By operation and cube: the memory and the offset in it."""


def placed(uses: Sequence[Use], layout: Layout) -> Places:
    """The memory of every cube; uses in the order of operations, of each its reads first.

    Raises ArtefactError (E506) where an input or output shares its place in a way that needs a copy.
    """
    if layout.map_bytes < 0:
        raise ArtefactError("E502", "manifest.json is damaged: the images end beyond the memory")
    until = {bound.tensor: _first_write(uses, bound) for bound in layout.inputs}
    since = {bound.tensor: _last_stranger(uses, bound) for bound in layout.outputs}
    owners = np.full(layout.map_bytes, MAPS, np.uint8)
    for bound in layout.inputs:
        owners[bound.start - layout.maps : bound.end - layout.maps] = bound.memory
    found: dict[tuple[int, str], tuple[int, int]] = {}
    for at, use in enumerate(uses):
        bound = _bound(use, at, layout, until, since)
        memory = bound.memory if bound else MAPS
        _own(owners, use, memory, layout)
        found[use.operation, use.name] = memory, use.place.address - (bound.start if bound else layout.maps)
    for bound in layout.outputs:
        if since[bound.tensor] == len(uses) - 1:
            raise _shared(bound.tensor)
    return found


def _first_write(uses: Sequence[Use], bound: Bound) -> int:
    """The position of the first use that writes to a place."""
    written = (at for at, use in enumerate(uses) if use.writes and bound.touches(use.place))
    return next(written, len(uses))


def _last_stranger(uses: Sequence[Use], bound: Bound) -> int:
    """The position of the last use of a place for something that is not within it, or -1."""
    strangers = [at for at, use in enumerate(uses) if bound.touches(use.place) and not bound.holds(use.place)]
    return max(strangers, default=-1)


def _bound(use: Use, at: int, layout: Layout, until: Mapping[str, int], since: Mapping[str, int]) -> Bound | None:
    """The input or output that a use belongs to."""
    for each in layout.inputs:
        if each.touches(use.place) and at < until[each.tensor]:
            if not each.holds(use.place):
                raise _shared(each.tensor)
            return each
    for each in layout.outputs:
        if each.holds(use.place) and at > since[each.tensor]:
            return each
    return None


def _own(owners: Array, use: Use, memory: int, layout: Layout) -> None:
    """Notes who has written; raises ArtefactError (E506) where a read finds other memory than was written."""
    for start, end in use.place.spans() - layout.maps:
        part = owners[start:end]
        if use.writes:
            part[:] = memory
        elif (part != memory).any():
            raise _shared(use.name)


def _shared(tensor: str) -> ArtefactError:
    return ArtefactError(
        "E506",
        "the network's input or output lies in one buffer with other maps",
        tensor=tensor,
        limit="memory of its own, which the runtime binds",
        remedy="put an operator between it and the concatenation or slice",
    )
