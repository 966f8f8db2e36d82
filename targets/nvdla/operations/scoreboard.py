"""The scoreboard: operations that may still run, and which later ones must wait for them.

Every block has two register groups, used alternately. An operation is programmed as soon as its groups are free,
whatever memory it touches. The convolution pipeline is enabled when its input is in memory; SDP when its operands
are, and when no operation still reads what it overwrites.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import field, replace
from functools import lru_cache

from npuc.frozen import frozen
from npuc.targets.nvdla.machine.registers import Wait
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
    result_surface,
)

ENDS = {"SDP": "SDP", "PDP": "PDP", "CDP": "CDP", "RUBIK": "RBK", "BDMA": "BDMA"}
"""The interrupts that end operations, in order, and the block that raises each one."""
CONVOLUTION = ("CACC", "CMAC_A", "CMAC_B", "CSC", "CDMA")


def blocks_of(operation: Operation) -> tuple[str, ...]:
    """The blocks that an operation uses, from last to first."""
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


@frozen
class Touched:
    """The memory that an operation touches: its input, operand maps, result, and copied weights."""

    source: Pattern
    operands: tuple[Pattern, ...]
    result: Pattern
    weights: Pattern | None = None
    """Weights copied by BDMA; no operation writes to other weights."""

    @property
    def read(self) -> tuple[Pattern, ...]:
        """All patterns that are read."""
        return (self.source, *self.operands, *((self.weights,) if self.weights else ()))

    def shift(self, source: int, result: int) -> Touched:
        """A copy with the addresses of input and result shifted by these bytes."""
        return replace(self, source=self.source.shift(source), result=self.result.shift(result))


@frozen
class Issued:
    """An operation that may still run: its register groups, touched memory, and whether it writes tables."""

    groups: Mapping[str, int]
    touched: Touched
    tables: bool

    @property
    def waits(self) -> tuple[Wait, ...]:
        """The waits for its interrupts, in the order in which they arrive."""
        return tuple(Wait(source, self.groups[block]) for source, block in ENDS.items() if block in self.groups)

    def holds_groups(self, other: Issued) -> bool:
        """Whether the other operation needs a register group that this one uses.

        The tables of EW and CDP are not double-buffered: nothing may run while they are written.
        """
        return other.tables or not self.groups.items().isdisjoint(other.groups.items())

    def holds_input(self, other: Issued) -> bool:
        """Whether this operation may still write what the other one takes as input."""
        own, taken = self.touched.result, other.touched
        return _overlap(own, taken.source) or (taken.weights is not None and _overlap(own, taken.weights))

    def holds_result(self, other: Issued) -> bool:
        """Whether this one may still write an operand of the other, or read or write what the other writes."""
        own = other.touched.result
        return any(_overlap(self.touched.result, each) for each in (*other.touched.operands, own)) or any(
            _overlap(own, each) for each in self.touched.read
        )


@frozen
class Admission:
    """How many earlier operations must have ended before one is programmed, fetches, and writes."""

    program: int
    fetch: int
    write: int

    @property
    def counts(self) -> tuple[int, int, int]:
        """All three."""
        return self.program, self.fetch, self.write


@frozen
class Scoreboard:
    """Operations that may still run, oldest first, and the register group that each block uses next."""

    atom_bytes: int
    issued: tuple[Issued, ...] = ()
    groups: Mapping[str, int] = field(default_factory=dict[str, int])
    count: int = 0
    """Number of operations so far."""

    def admit(self, operation: Operation, place: Touched | None = None) -> tuple[Admission, Scoreboard]:
        """When an operation may begin, and the scoreboard after it; place: the memory it touches, if known."""
        groups = {block: self.groups.get(block, 0) for block in blocks_of(operation)}
        tables = isinstance(operation, Normalisation) or (
            isinstance(operation, Convolution | Elementwise) and bool(operation.sdp.table)
        )
        issued = Issued(groups, place or touched_memory(operation, self.atom_bytes), tables)
        program = self._count_ends(lambda each: each.holds_groups(issued), 0)
        fetch = self._count_ends(lambda each: each.holds_input(issued), program)
        write = self._count_ends(lambda each: each.holds_result(issued), fetch)
        if not isinstance(operation, Convolution):
            fetch = write
        gone = self.count - len(self.issued)
        admission = Admission(gone + program, gone + fetch, gone + write)
        changed = {block: 1 - group for block, group in groups.items()}
        waiting = (*self.issued[write:], issued)
        return admission, replace(self, issued=waiting, groups={**self.groups, **changed}, count=self.count + 1)

    def drain(self) -> Scoreboard:
        """The scoreboard when all operations have ended."""
        return replace(self, issued=())

    def _count_ends(self, holds: Callable[[Issued], bool], least: int) -> int:
        """How many of the issued operations must end, at least `least`: waits are in order."""
        return next((at for at in range(len(self.issued), least, -1) if holds(self.issued[at - 1])), least)


def touched_memory(operation: Operation, atom_bytes: int) -> Touched:
    """The memory that an operation touches, without constants."""
    source, result = _place(operation.source, atom_bytes), _place(result_surface(operation), atom_bytes)
    through_sdp = isinstance(operation, Convolution | Elementwise)
    operands = _operands(operation, atom_bytes) if through_sdp else ()
    kernels = operation.kernels if isinstance(operation, Convolution) and operation.kernels.copied else None
    return Touched(source, operands, result, Pattern(kernels.address, kernels.bytes) if kernels else None)


def _operands(operation: Convolution | Elementwise, atom_bytes: int) -> tuple[Pattern, ...]:
    """The maps that SDP reads besides its input: per element or of one pixel."""
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
    """Whether two patterns share a byte; a quick test rules out most pairs."""
    return second.address < first.end and first.address < second.end and _in_detail(first, second)
