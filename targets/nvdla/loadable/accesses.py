"""The memory that operations of a task read and write, and which operations must end before others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.targets.nvdla.firmware import descriptors as of
from npuc.targets.nvdla.firmware.lines import decode_number
from npuc.targets.nvdla.firmware.post_processing import BOTH, PER_LAYER
from npuc.targets.nvdla.formats.pixels import FORMATS, NAMES
from npuc.targets.nvdla.model.memory import Pattern, overlap

RESULT = "result"
ELEMENT_BYTES = (1, 2, 2)
"""Bytes of int8, int16 and fp16, in the order of the descriptors' precision numbers."""
APART = 1 << 36
"""The distance between memories when accesses are compared."""
Locate = Callable[[str, of.DataCube], int]
"""Computes the address of a cube, given its name in the operation's surfaces."""


def by_memory(_name: str, cube: of.DataCube) -> int:
    """An address that is unique across memories."""
    return cube.address * APART + cube.offset


def cubes(op: of.Operation, surfaces: Any, atom_bytes: int, locate: Locate) -> Iterator[tuple[str, Pattern]]:
    """Name and bytes of every cube of feature data or operands in memory; weights are never written."""
    for name, element_bytes, components in _parts(op, surfaces):
        cube: of.DataCube = getattr(surfaces, name)
        atoms = -(-cube.channels * element_bytes // atom_bytes)
        line = cube.width * atom_bytes * components
        lines, stride = _stack_lines(op, cube, name)
        yield name, Pattern(locate(name, cube), line, lines, stride, atoms, cube.surface_stride)
    if isinstance(op, of.Convolution):
        cube = surfaces.source
        if op.data_format != of.FEATURE_FORMAT:
            planes = FORMATS[decode_number(NAMES, op.data_format)].planes
            line = cube.width * max(plane.pixel_bytes for plane in planes)
            lines = cube.height, cube.line_stride
            start, apart = locate("source", cube), surfaces.second_plane_offset
            yield "source", Pattern(start, line, *lines, len(planes), apart)


def _stack_lines(op: of.Operation, cube: of.DataCube, name: str) -> tuple[int, int]:
    """The number and stride of a cube's lines; the images of a batch count as one cube, one below another.

    Operands are the same for all images, as descriptors cannot express anything else. Raises ArtefactError (E506)
    for images with gaps.
    """
    if not isinstance(op, of.Convolution | of.Sdp) or op.batch < 2 or name not in ("source", RESULT):
        return cube.height, cube.line_stride
    stride = op.batch_stride if cube.height == 1 else cube.line_stride
    if op.batch_stride != cube.height * stride:
        raise ArtefactError(
            "E506", f"images of a batch {op.batch_stride} bytes apart", limit=f"{cube.height * stride}: no gaps"
        )
    return op.batch * cube.height, stride


def _parts(op: of.Operation, surfaces: Any) -> Iterator[tuple[str, int, int]]:
    """Name, bytes of an element, and operands per element."""
    match op:
        case of.Convolution():
            if op.data_format == of.FEATURE_FORMAT:
                yield "source", decode_number(ELEMENT_BYTES, op.in_precision), 1
            return
        case of.Sdp():
            before, behind = op.source_precision, op.result_precision
            for name in ("x1", "x2", "y"):
                unit: of.SdpUnit = getattr(op, name)
                if unit.enable and unit.use and unit.mode != PER_LAYER:
                    element = decode_number(ELEMENT_BYTES, before)
                    size = (2 if unit.precision else 1) * (2 if unit.use == BOTH else 1)
                    yield name, element, -(-size // element)
        case of.Pdp() | of.Rubik():
            before = behind = op.precision
        case of.Cdp():
            before, behind = op.in_precision, op.out_precision
    for name, precision in (("source", before), (RESULT, behind)):
        if getattr(surfaces, name).type != of.HARDWARE:
            yield name, decode_number(ELEMENT_BYTES, precision), 1


@frozen
class Accesses:
    """The memory that an operation accesses."""

    engine: int
    reads: tuple[Pattern, ...]
    writes: tuple[Pattern, ...]
    behind: bool
    """Whether it receives the result of the previous operation in the list through the pipe."""

    @classmethod
    def of(cls, engine: int, found: Sequence[tuple[str, Pattern]], *, behind: bool) -> Accesses:
        """Those of an operation with these cubes."""
        reads = tuple(place for name, place in found if name != RESULT)
        return cls(engine, reads, tuple(place for name, place in found if name == RESULT), behind)


def ends(operations: Sequence[Accesses]) -> list[int]:
    """For every operation the last one of its pipe chain; once that has ended, the whole chain has."""
    found = list(range(len(operations)))
    for at in reversed(range(len(operations) - 1)):
        if operations[at + 1].behind:
            found[at] = found[at + 1]
    return found


@frozen
class Needed:
    """The operations that must have ended before another: the last ones of their chains."""

    to_read: frozenset[int]
    """Before it reads: they write its input."""
    to_write: frozenset[int]
    """Before it writes: they read or write the same memory."""


def dependencies_of(operations: Sequence[Accesses]) -> list[Needed]:
    """The operations that each one depends on; operations: in an order that computes correct results."""
    last, known = ends(operations), _Known(operations)

    def find_conflicts(at: int, *, writes: bool) -> frozenset[int]:
        return frozenset(last[other] for other in known.conflicts(at, writes=writes) if last[other] < at)

    return [
        Needed(find_conflicts(at, writes=False), find_conflicts(at, writes=True)) for at in range(len(operations))
    ]


class _Known:
    """All patterns with their first and last byte, so that only few pairs are compared in detail."""

    def __init__(self, operations: Sequence[Accesses]) -> None:
        each = [
            (at, pattern, writes)
            for at, operation in enumerate(operations)
            for patterns, writes in ((operation.reads, False), (operation.writes, True))
            for pattern in patterns
        ]
        self.owners = np.array([at for at, _, _ in each], np.int64)
        self.patterns = [pattern for _, pattern, _ in each]
        self.writes = np.array([writes for _, _, writes in each], bool)
        self.starts = np.array([pattern.address for pattern in self.patterns], np.int64)
        self.ends = self.starts + np.array([pattern.size for pattern in self.patterns], np.int64)

    def conflicts(self, at: int, *, writes: bool) -> set[int]:
        """Earlier operations that write what this one reads, or access what it writes."""
        found: set[int] = set()
        for own in np.flatnonzero((self.owners == at) & (self.writes == writes)):
            near = (self.owners < at) & (self.starts < self.ends[own]) & (self.ends > self.starts[own])
            for other in np.flatnonzero(near if writes else near & self.writes):
                if overlap(self.patterns[int(other)], self.patterns[int(own)]):
                    found.add(int(self.owners[other]))
        return found
