"""The placement of a program's data in a loadable, where the user's inputs and outputs have their own memories.

A program has all maps in one memory and reuses it over time. Reads from an input's place before anything else is
written there become reads from the input's memory. Accesses within an output's place after its last use for
anything larger become accesses to the output's memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.storage.records import damaged
from npuc.targets.nvdla.model.memory import Pattern

DUMMY, WEIGHTS, MAPS, FIRST_BOUND = 0, 1, 2, 3
"""Ids of memories; those of inputs and outputs follow."""


@frozen
class Bound:
    """An input or output: its place in the program's memory."""

    tensor: str
    memory: int
    """The id of its own memory."""
    start: int
    bytes: int

    @property
    def end(self) -> int:
        """The address after the last byte."""
        return self.start + self.bytes

    def holds(self, place: Pattern) -> bool:
        """Whether a pattern is within the place."""
        return self.start <= place.address and place.address + place.size <= self.end

    def touches(self, place: Pattern) -> bool:
        """Whether a pattern's span shares a byte with the place."""
        return place.address < self.end and place.address + place.size > self.start


@frozen
class Use:
    """A cube that an operation reads or writes."""

    operation: int
    name: str
    place: Pattern
    writes: bool


@frozen
class Layout:
    """The program's memory: the start and size of the maps, and the inputs and outputs."""

    maps: int
    map_bytes: int
    inputs: tuple[Bound, ...]
    outputs: tuple[Bound, ...]


Places = Mapping[tuple[int, str], tuple[int, int]]
"""Memory and offset, by operation and cube."""


def placed(uses: Sequence[Use], layout: Layout) -> Places:
    """The placement of every cube; uses: in the order of operations, the reads of each one first.

    Raises ArtefactError (E506) if an input or output shares its place in a way that would need a copy.
    """
    if layout.map_bytes < 0:
        raise damaged("the images end beyond the memory")
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
    """The position of the last use that overlaps a place without being within it, or -1."""
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
    """Records writes by memory; raises ArtefactError (E506) for a read from another memory than was written."""
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
