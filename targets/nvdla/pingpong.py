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

from npuc.targets.nvdla import timing
from npuc.targets.nvdla.emission.flights import Admission, Flights
from npuc.targets.nvdla.machine import Machine
from npuc.targets.nvdla.operations import Contraction, Convolution, Elementwise, Normalisation, Operation, Pooling

REMEMBERED = 8
"""Operations that may still be waited for, at most: each block has two groups."""


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
    before: Convolution | None = None

    @property
    def end(self) -> float:
        """When everything so far has ended."""
        return max(self.ends, default=0.0)

    def after(self, operation: Operation, admission: Admission, machine: Machine) -> Progress:
        """With one more operation, which is programmed and enabled when others have ended."""
        enabled = self._passed(admission.fetch)
        allowed = max(enabled, self._passed(admission.write))
        match operation:
            case Convolution():
                new, end = self._convolved(operation, enabled, allowed, machine)
            case Elementwise():
                begin = max(allowed, self.written) + timing.START
                written = begin + timing.stream_cycles(operation, machine)
                end = max(written, self._pooled(operation, begin, machine))
                new = replace(self, written=written, pooled=end if operation.pooling else self.pooled)
            case Pooling():
                end = max(allowed, self.pooled) + timing.START + timing.stream_cycles(operation, machine)
                new = replace(self, pooled=end)
            case Normalisation() | Contraction():
                end = allowed + timing.START + timing.stream_cycles(operation, machine)
                new = self
        moved = max(self.moved, enabled) + timing.moved_bytes(operation, machine) / machine.dram_bytes_per_cycle
        ends = (*self.ends, max(end, moved))[-REMEMBERED:]
        return replace(new, ends=ends, count=self.count + 1, programmed=allowed, moved=moved)

    def _passed(self, ended: int) -> float:
        """When the driver has seen the end of so many operations."""
        first = self.count - len(self.ends)
        return max((self.programmed, *self.ends[: max(ended - first, 0)]))

    def _convolved(
        self, operation: Convolution, enabled: float, allowed: float, machine: Machine
    ) -> tuple[Progress, float]:
        banks, before = operation.banks, self.before
        same = before is not None and (before.banks.data, before.banks.weights) == (banks.data, banks.weights)
        begin = max(enabled, self.fetched if same else self.computed)
        fetching = timing.fetch_cycles(operation.source, machine)
        here = begin + fetching
        crowded = _crowded(_entries(before), operation, machine) if same else 0.0
        if crowded:
            here = max(here, self.computed + fetching * crowded)
        size, room = operation.kernels.bytes, banks.weights * machine.bank_bytes
        first = min(size, room, machine.kernel_group(operation.source.precision) * operation.kernels.kernel_bytes)
        start = max(here + timing.START, begin + first / machine.dram_bytes_per_cycle, allowed, self.computed)
        start = max(start, self.written)
        computing = timing.compute_cycles(operation.kernels, operation.destination, machine)
        computed = start + computing
        loaded = begin + size / machine.dram_bytes_per_cycle
        if size > room:
            loaded = max(loaded, start + computing * (1 - room / size))
        end = max(computed, self._pooled(operation, start, machine))
        pooled = end if operation.pooling else self.pooled
        ready = {"fetched": max(here, loaded), "computed": computed, "written": computed, "pooled": pooled}
        return replace(self, **ready, before=operation), end

    def _pooled(self, operation: Convolution | Elementwise, start: float, machine: Machine) -> float:
        """When PDP behind SDP is through, if there is one."""
        if operation.pooling is None:
            return start
        return max(start, self.pooled) + timing.pooling_cycles(operation.pooling, machine)


def _entries(operation: Convolution | None) -> int:
    """CBUF entries of an operation's input."""
    return operation.banks.entries_per_slice * operation.source.height if operation else 0


def _crowded(held: int, operation: Convolution, machine: Machine) -> float:
    """The share of an input for which the ring has no room before another one is used up."""
    own = _entries(operation)
    return min(max(held + own - operation.banks.data * machine.cbuf_entries, 0) / own, 1.0)


def ends(operations: Sequence[tuple[Operation, Admission]], machine: Machine) -> list[float]:
    """When each operation of a program and all before it have ended, in clocks from its start."""
    states = accumulate(operations, lambda state, each: state.after(*each, machine), initial=Progress())
    found = [state.ends[-1] for state in states if state.ends]
    return list(accumulate(found, max))


def alone(operations: Iterable[Operation], machine: Machine) -> float:
    """Clocks of operations with nothing before or behind them."""
    flights, progress = Flights(machine.atom_bytes), Progress()
    for operation in operations:
        admission, flights = flights.admit(operation)
        progress = progress.after(operation, admission, machine)
    return progress.end
