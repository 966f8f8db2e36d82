"""How many clocks a program takes on NVDLA: operations side by side, in the two register groups of each block.

CDMA fetches the input and the weights of a convolution while the one before computes, as far as the CBUF has room
for them; the MAC array then goes on without a pause. Where two convolutions divide the banks differently, CDMA
waits until the array has done with the first. The data banks are a ring in which a whole input lies until it is
used, the weight banks one of kernel groups. Everything shares the bytes that memory moves in a clock.
Source: convolutions and networks as measured on the nv_small RTL ("CSC starts only when the whole input cube of
the pass is in CBUF"; banks in halves, so that "the next fetch hides behind the current tile").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.operations import timing
from npuc.targets.nvdla.operations.operation import (
    Contraction,
    Convolution,
    Elementwise,
    Normalisation,
    Operation,
    Pooling,
)
from npuc.targets.nvdla.operations.scoreboard import Admission, Flights

REMEMBERED = 8
"""Operations that may still be waited for, at most: each block has two groups."""


@dataclass(frozen=True)
class Work:
    """An operation and the clocks that each engine takes for it, whatever runs beside it."""

    operation: Operation
    moving: float
    """Of memory for everything."""
    streaming: float
    """Of SDP, PDP or CDP on a map in memory."""
    pooling: float
    """Of PDP behind SDP."""
    fetching: float
    """Of CDMA for the input; the rest is of convolutions, too."""
    computing: float
    loading: float
    """Of memory for all weights."""
    beginning: float
    """Of memory for the weights without which nothing begins."""
    entries: int
    """CBUF entries of the input."""

    @classmethod
    def of(cls, operation: Operation, machine: Machine) -> Work:
        """What the model of single operations says."""
        speed = machine.dram_bytes_per_cycle
        moving = timing.moved_bytes(operation, machine) / speed
        behind = None if isinstance(operation, Pooling | Normalisation | Contraction) else operation.pooling
        pooling = timing.pooling_cycles(behind, machine) if behind else 0.0
        if not isinstance(operation, Convolution):
            return cls(operation, moving, timing.stream_cycles(operation, machine), pooling, 0, 0, 0, 0, 0)
        kernels, source, banks = operation.kernels, operation.source, operation.banks
        group = machine.kernel_group(source.precision) * kernels.kernel_bytes
        first = min(kernels.bytes, banks.weights * machine.bank_bytes, group)
        fetching = timing.fetch_cycles(source, machine)
        computing = timing.compute_cycles(kernels, operation.destination, machine)
        entries = banks.entries_per_slice * source.height
        return cls(
            operation, moving, 0, pooling, fetching, computing, kernels.bytes / speed, first / speed, entries
        )


@dataclass(frozen=True)
class Progress:
    """When each engine is free, in clocks from the program's start."""

    ends: tuple[float, ...] = ()
    """Of the latest operations."""
    count: int = 0
    programmed: float = 0.0
    """Since when the driver goes on."""
    fetched: float = 0.0
    computed: float = 0.0
    written: float = 0.0
    pooled: float = 0.0
    moved: float = 0.0
    """Until when memory is busy."""
    before: Work | None = None
    """The convolution before."""

    @property
    def end(self) -> float:
        """When everything so far has ended."""
        return max(self.ends, default=0.0)

    def after(self, work: Work, admission: Admission, machine: Machine) -> Progress:
        """With one more operation, which is programmed and enabled when others have ended."""
        enabled = self._passed(admission.fetch)
        allowed = max(enabled, self._passed(admission.write))
        new = dict[str, float | Work]()
        match work.operation:
            case Convolution() as operation:
                new, end = self._convolved(work, operation, enabled, allowed, machine)
            case Elementwise():
                begin = max(allowed, self.written) + timing.START
                new["written"] = begin + work.streaming
                end = max(begin + work.streaming, self._pooled(work, begin))
                new["pooled"] = end if work.pooling else self.pooled
            case Pooling():
                end = max(allowed, self.pooled) + timing.START + work.streaming
                new["pooled"] = end
            case Normalisation() | Contraction():
                end = allowed + timing.START + work.streaming
        moved = max(self.moved, enabled) + work.moving
        ends = (*self.ends, max(end, moved))[-REMEMBERED:]
        return replace(self, ends=ends, count=self.count + 1, programmed=allowed, moved=moved, **new)

    def _passed(self, ended: int) -> float:
        """When the driver has seen the end of so many operations."""
        first = self.count - len(self.ends)
        return max((self.programmed, *self.ends[: max(ended - first, 0)]))

    def _convolved(
        self, work: Work, operation: Convolution, enabled: float, allowed: float, machine: Machine
    ) -> tuple[dict[str, float | Work], float]:
        """What is new of the engines, and the end."""
        banks, held = operation.banks, self._held(operation)
        begin = max(enabled, self.computed if held is None else self.fetched)
        here = begin + work.fetching
        crowded = 0.0 if held is None else _crowded(held, work, banks.data * machine.cbuf_entries)
        if crowded:
            here = max(here, self.computed + work.fetching * crowded)
        start = max(here + timing.START, begin + work.beginning, allowed, self.computed, self.written)
        computed = start + work.computing
        loaded = begin + work.loading
        size, room = operation.kernels.bytes, banks.weights * machine.bank_bytes
        if size > room:
            loaded = max(loaded, start + work.computing * (1 - room / size))
        end = max(computed, self._pooled(work, start))
        pooled = end if operation.pooling else self.pooled
        ready = {"fetched": max(here, loaded), "computed": computed, "written": computed, "pooled": pooled}
        return {**ready, "before": work}, end

    def _held(self, operation: Convolution) -> int | None:
        """CBUF entries of the input before, whose data lies there; None where the CBUF was divided otherwise."""
        if self.before is None or not isinstance(self.before.operation, Convolution):
            return None
        before, banks = self.before.operation.banks, operation.banks
        return self.before.entries if (before.data, before.weights) == (banks.data, banks.weights) else None

    def _pooled(self, work: Work, start: float) -> float:
        """When PDP behind SDP is through, if there is one."""
        return max(start, self.pooled) + work.pooling if work.pooling else start


def _crowded(held: int, work: Work, room: int) -> float:
    """The share of an input for which the ring has no room before another one is used up."""
    return min(max(held + work.entries - room, 0) / work.entries, 1.0)


def ends(operations: Sequence[tuple[Operation, Admission]], machine: Machine) -> list[float]:
    """When each operation of a program and all before it have ended, in clocks from its start."""
    works = [(Work.of(operation, machine), admission) for operation, admission in operations]
    states = accumulate(works, lambda state, each: state.after(*each, machine), initial=Progress())
    found = [state.ends[-1] for state in states if state.ends]
    return list(accumulate(found, max))


def alone(operations: Iterable[Operation], machine: Machine) -> float:
    """Clocks of operations with nothing before or behind them."""
    flights, progress = Flights(machine.atom_bytes), Progress()
    for operation in operations:
        admission, flights = flights.admit(operation)
        progress = progress.after(Work.of(operation, machine), admission, machine)
    return progress.end
