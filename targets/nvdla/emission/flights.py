"""Operations that may still run, and which others must wait for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from npuc.targets.nvdla.commands import Wait
from npuc.targets.nvdla.model.memory import Pattern, overlap
from npuc.targets.nvdla.operations import Normalisation, Operation, Pooling, Surface


@dataclass(frozen=True)
class Flight:
    """An operation that may still run: the register groups that it has, and the interrupt that ends it."""

    operation: Operation
    turns: Mapping[str, int]
    wait: Wait

    def blocks(self, operation: Operation, turns: Mapping[str, int], atom_bytes: int) -> bool:
        """Whether another operation must wait for this one.

        Tables of EW and CDP are not in groups: nothing runs while they are written.
        """
        same_groups = any(turns.get(block) == turn for block, turn in self.turns.items())
        alone = isinstance(operation, Normalisation)
        tables = alone or (not isinstance(operation, Pooling) and bool(operation.sdp.table))
        written, own = (_place(each.destination, atom_bytes) for each in (self.operation, operation))
        touched = (*reads(operation, atom_bytes), own)
        before = reads(self.operation, atom_bytes)
        return (
            same_groups
            or tables
            or any(overlap(written, each) for each in touched)
            or any(overlap(own, each) for each in before)
        )


def _place(surface: Surface, atom_bytes: int) -> Pattern:
    """The bytes of a surface."""
    return Pattern(
        surface.address,
        surface.line_bytes(atom_bytes),
        surface.height,
        surface.line_stride,
        surface.atoms(atom_bytes),
        surface.surface_stride,
    )


def reads(operation: Operation, atom_bytes: int) -> list[Pattern]:
    """The maps that an operation reads: its input, and operands per element or of one pixel."""
    found = [_place(operation.source, atom_bytes)]
    if isinstance(operation, Pooling | Normalisation):
        return found
    result = operation.destination
    for fetch in (operation.sdp.x1.fetch, operation.sdp.x2.fetch):
        if fetch is not None and fetch.computed:
            size = (result.width, result.height) if fetch.per_element else (1, 1)
            strides = (fetch.line_stride, fetch.surface_stride) if fetch.per_element else (atom_bytes, atom_bytes)
            cube = Surface(fetch.address, *size, result.channels, *strides, operation.source.precision)
            found.append(_place(cube, atom_bytes))
    return found
