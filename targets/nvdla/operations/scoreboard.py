"""Operations that may still run, and which others must wait for them.

Every block has two register groups that take turns. An operation is programmed as soon as its groups are free,
whatever it touches; the convolution pipeline is enabled when its input is in memory, SDP when its operands are
and nothing reads any more what it overwrites.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from npuc.targets.nvdla.machine.commands import Wait
from npuc.targets.nvdla.model.memory import Pattern, overlap
from npuc.targets.nvdla.operations.operation import (
    Contraction,
    Convolution,
    Elementwise,
    Normalisation,
    Operation,
    Pooling,
    Surface,
    Transfer,
    written,
)

ENDS = {"SDP": "SDP", "PDP": "PDP", "CDP": "CDP", "RUBIK": "RBK", "BDMA": "BDMA"}
"""The interrupts that end operations, in order, and the block that raises each."""
CONVOLUTION = ("CACC", "CMAC_A", "CMAC_B", "CSC", "CDMA")


def blocks_of(operation: Operation) -> tuple[str, ...]:
    """The blocks that an operation takes, from its last one to its first."""
    match operation:
        case Pooling():
            return ("PDP_RDMA", "PDP")
        case Normalisation():
            return ("CDP_RDMA", "CDP")
        case Contraction():
            return ("RBK",)
        case Transfer():
            return ("BDMA",)
        case _:
            flying = ("PDP",) if operation.pooling else ()
            return (*flying, "SDP_RDMA", "SDP", *(CONVOLUTION if isinstance(operation, Convolution) else ()))


@dataclass(frozen=True)
class Touched:
    """What an operation touches in memory: its input, the maps that are operands, its result, weights."""

    source: Pattern
    operands: tuple[Pattern, ...]
    result: Pattern
    weights: Pattern | None = None
    """Where BDMA has put them; others are never written."""

    @property
    def read(self) -> tuple[Pattern, ...]:
        """What is read."""
        return (self.source, *self.operands, *((self.weights,) if self.weights else ()))

    def moved(self, source: int, result: int) -> Touched:
        """The same with input and result so many bytes further."""
        return replace(self, source=self.source.moved(source), result=self.result.moved(result))


@dataclass(frozen=True)
class Issued:
    """An operation that may still run: the register groups that it has, and the interrupts that end it."""

    groups: Mapping[str, int]
    touched: Touched
    tables: bool

    @property
    def waits(self) -> tuple[Wait, ...]:
        """For its interrupts, in the order in which they come."""
        return tuple(Wait(source, self.groups[block]) for source, block in ENDS.items() if block in self.groups)

    def holds_groups(self, other: Issued) -> bool:
        """Whether another operation needs a register group that this one has.

        Tables of EW and CDP are not in groups: nothing runs while they are written.
        """
        return other.tables or not self.groups.items().isdisjoint(other.groups.items())

    def holds_input(self, other: Issued) -> bool:
        """Whether it may still write what another one takes as input."""
        own, taken = self.touched.result, other.touched
        return _overlap(own, taken.source) or (taken.weights is not None and _overlap(own, taken.weights))

    def holds_result(self, other: Issued) -> bool:
        """Whether it may still write an operand of another one, or touch what that one writes."""
        own = other.touched.result
        return any(_overlap(self.touched.result, each) for each in (*other.touched.operands, own)) or any(
            _overlap(own, each) for each in self.touched.read
        )


@dataclass(frozen=True)
class Admission:
    """How many of the operations before one must have ended until it is programmed, fetches, and writes."""

    program: int
    fetch: int
    write: int

    @property
    def counts(self) -> tuple[int, int, int]:
        """All three."""
        return self.program, self.fetch, self.write


@dataclass(frozen=True)
class Scoreboard:
    """The operations that may still run, oldest first, and the register group that each block takes next."""

    atom_bytes: int
    issued: tuple[Issued, ...] = ()
    groups: Mapping[str, int] = field(default_factory=dict[str, int])
    count: int = 0
    """Operations so far."""

    def admit(self, operation: Operation, place: Touched | None = None) -> tuple[Admission, Scoreboard]:
        """When an operation may begin, and what may run from then on; place: what it touches, if that is known."""
        groups = {block: self.groups.get(block, 0) for block in blocks_of(operation)}
        tables = isinstance(operation, Normalisation) or (
            isinstance(operation, Convolution | Elementwise) and bool(operation.sdp.table)
        )
        issued = Issued(groups, place or touched(operation, self.atom_bytes), tables)
        program = self._last(lambda each: each.holds_groups(issued), 0)
        fetch = self._last(lambda each: each.holds_input(issued), program)
        write = self._last(lambda each: each.holds_result(issued), fetch)
        if not isinstance(operation, Convolution):
            fetch = write
        gone = self.count - len(self.issued)
        admission = Admission(gone + program, gone + fetch, gone + write)
        changed = {block: 1 - group for block, group in groups.items()}
        waiting = (*self.issued[write:], issued)
        return admission, replace(self, issued=waiting, groups={**self.groups, **changed}, count=self.count + 1)

    def drained(self) -> Scoreboard:
        """After all have ended."""
        return replace(self, issued=())

    def _last(self, holds: Callable[[Issued], bool], least: int) -> int:
        """How many of the issued operations must end, at least so many: waits are in order."""
        return next((at for at in range(len(self.issued), least, -1) if holds(self.issued[at - 1])), least)


def touched(operation: Operation, atom_bytes: int) -> Touched:
    """What an operation touches in memory, constants left out."""
    source, result = _place(operation.source, atom_bytes), _place(written(operation), atom_bytes)
    through_sdp = isinstance(operation, Convolution | Elementwise)
    operands = _operands(operation, atom_bytes) if through_sdp else ()
    kernels = operation.kernels if isinstance(operation, Convolution) and operation.kernels.copied else None
    return Touched(source, operands, result, Pattern(kernels.address, kernels.bytes) if kernels else None)


def _operands(operation: Convolution | Elementwise, atom_bytes: int) -> tuple[Pattern, ...]:
    """The maps that SDP reads beside its input: per element or of one pixel."""
    found: list[Pattern] = []
    result = operation.destination
    for fetch in (operation.sdp.x1.fetch, operation.sdp.x2.fetch):
        if fetch is not None and fetch.computed:
            size = (result.width, result.height) if fetch.per_element else (1, 1)
            strides = (fetch.line_stride, fetch.surface_stride) if fetch.per_element else (atom_bytes, atom_bytes)
            cube = Surface(fetch.address, *size, result.channels, *strides, operation.source.precision)
            found.append(_place(cube, atom_bytes))
    return tuple(found)


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


_in_detail = lru_cache(maxsize=1 << 16)(overlap)


def _overlap(first: Pattern, second: Pattern) -> bool:
    """Whether two patterns share a byte; most are far apart."""
    return second.address < first.end and first.address < second.end and _in_detail(first, second)
