"""The cycle model of whole programs: operations overlap, using the two register groups of each block.

CDMA fetches input and weights of a convolution while the previous one computes, as far as the CBUF has room for
them; the MAC array then continues without a pause. If two convolutions divide the banks differently, CDMA waits
until the array has finished the first. The data banks are a ring buffer that keeps a whole input until it has been
used, the weight banks a ring of kernel groups. All engines share the memory bandwidth; a second memory has its
own.

Source: convolutions and networks as measured on the nv_small RTL ("CSC starts only when the whole input cube of
the pass is in CBUF"; banks in halves, so that "the next fetch hides behind the current tile").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import ceil

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.operations import timing
from npuc.targets.nvdla.operations.operation import (
    Contraction,
    Convolution,
    Elementwise,
    Normalisation,
    Operation,
    Pooling,
    Transfer,
)
from npuc.targets.nvdla.operations.scoreboard import Admission, Scoreboard

REMEMBERED = 8
"""The most earlier operations that one may have to wait for: each block has two groups."""
GRAIN = 1024
"""Fractions of a clock in which times are counted, so that sums are exact and equal layers take equal times."""
PROGRAMMED, ENDS, FETCHED, COMPUTED, WRITTEN, POOLED, MOVED, SECOND, COPIED, ENTRIES, DATA, WEIGHTS = (
    0, slice(1, 1 + REMEMBERED), *range(1 + REMEMBERED, 11 + REMEMBERED),
)  # fmt: skip
"""Rows of Progress.state."""
CLOCKS = slice(0, ENTRIES)
"""The rows that are times."""


@frozen
class Work:
    """An operation and the clocks that each engine spends on it, whatever else runs."""

    operation: Operation
    programming: float
    """Of the driver, for the registers."""
    latency: int
    """Of the slowest memory that is read."""
    moving: tuple[float, float]
    """Of DRAM and of the second memory, for all reads or all writes, whichever take longer."""
    streaming: float
    """Of SDP, PDP or CDP on a map in memory, or of BDMA."""
    pooling: float
    """Of PDP behind SDP."""
    fetching: float = 0
    """Of CDMA, for the input alternating with weights. This and the following fields are of convolutions."""
    computing: float = 0
    filling: float = 0
    """Of SDP, for results after the array has ended or before they can begin."""
    group: float = 0
    """Of the MAC array for a kernel group."""
    loading: float = 0
    """Of memory, for the input and all weights."""
    beginning: float = 0
    """Of memory, for the weights needed to begin, alternating with the input."""
    entries: int = 0
    """CBUF entries of the input."""

    @classmethod
    def of(cls, operation: Operation, machine: Machine) -> Work:
        """The work of an operation according to the model of single operations (timing)."""
        read = timing.read_by_memory(operation, machine)
        dram, second = timing.moving_cycles(operation, read, machine)
        given = (
            operation,
            _round_clocks(timing.programming_cycles(operation, machine)),
            timing.latency(read, machine),
            (_round_clocks(dram), _round_clocks(second)),
        )
        behind = (
            None if isinstance(operation, Pooling | Normalisation | Contraction | Transfer) else operation.pooling
        )
        pooling = timing.pooling_cycles(behind, machine) if behind else 0.0
        if not isinstance(operation, Convolution):
            streaming = _round_clocks(timing.stream_cycles(operation, machine))
            return cls(*given, streaming, _round_clocks(pooling))
        kernels, source, banks = operation.kernels, operation.source, operation.banks
        together = machine.kernel_group(source.precision)
        held = banks.weights * machine.bank_bytes
        first = min(kernels.bytes, held, together * kernels.kernel_bytes)
        computing, filling = timing.array_cycles(operation, machine)
        return cls(
            *given,
            0,
            _round_clocks(pooling),
            _round_clocks(timing.fetch_cycles(source, kernels, machine)),
            _round_clocks(timing.waiting_cycles(operation, computing, machine)),
            _round_clocks(filling),
            _round_clocks(computing / ceil(kernels.count / together)),
            _round_clocks(timing.loading_cycles(source, kernels, machine)),
            _round_clocks(timing.beginning_cycles(source, kernels, first, machine)),
            banks.entries_per_slice * source.height,
        )


def _round_clocks(clocks: float) -> float:
    """The time rounded to the grain."""
    return round(clocks * GRAIN) / GRAIN


@frozen
class EngineProgress:
    """When each engine is free, in clocks, for several partial programs side by side."""

    state: Array
    """A column for each partial program. Rows: when the driver continues; the ends of the REMEMBERED latest
    operations, the latest one last; until when CDMA, the array, SDP, PDP, DRAM, the second memory and BDMA are
    busy; CBUF entries of the previous convolution, its banks for data (0 if there was none) and for weights.
    """

    @classmethod
    def start(cls) -> EngineProgress:
        """A single empty program."""
        return cls(np.zeros((WEIGHTS + 1, 1)))

    @classmethod
    def join(cls, parts: Sequence[EngineProgress]) -> EngineProgress:
        """The partial programs of all parts."""
        return cls(np.concatenate([each.state for each in parts], axis=1))

    def take(self, which: Sequence[int]) -> EngineProgress:
        """Some of the partial programs, by number."""
        return EngineProgress(self.state[:, which])

    def rebase(self) -> tuple[float, EngineProgress]:
        """A base time, and the progress relative to it; engines that were free earlier count as just free."""
        state = self.state.copy()
        past = [*range(ENDS.start, ENDS.stop), WRITTEN, POOLED, MOVED, SECOND, COPIED]
        state[past] = np.maximum(state[past], state[PROGRAMMED])
        base = float(state[PROGRAMMED].min())
        state[CLOCKS] -= base
        return base, EngineProgress(state)

    @property
    def end(self) -> Array:
        """When all operations so far have ended."""
        return self.state[ENDS].max(axis=0)

    @property
    def free_times(self) -> Array:
        """The times at which the MAC array and CDMA are free, summed."""
        return self.state[COMPUTED] + self.state[FETCHED]

    def advance(self, work: Work, running: Array, machine: Machine) -> EngineProgress:
        """The progress with one more operation.

        running: how many earlier operations may still run when it is programmed, fetches and writes; a column for
        each partial program or one for all.
        """
        before = self.state
        seen_program, seen_fetch, seen_write = self._seen_ends(running)
        enabled = np.maximum(seen_program + work.programming, seen_fetch)
        allowed = np.maximum(enabled, seen_write)
        start = timing.START + work.latency
        new = np.empty_like(before)
        new[ENDS.start : ENDS.stop - 1], new[FETCHED:] = before[ENDS.start + 1 : ENDS.stop], before[FETCHED:]
        match work.operation:
            case Convolution() as operation:
                end = self._run_convolution(new, work, operation, enabled, allowed, machine)
            case Elementwise():
                begin = np.maximum(allowed, before[WRITTEN]) + start
                new[WRITTEN] = begin + work.streaming
                end = np.maximum(new[WRITTEN], self._run_pooling(work, begin))
                if work.pooling:
                    new[POOLED] = end
            case Pooling():
                end = np.maximum(allowed + start, before[POOLED]) + work.streaming
                new[POOLED] = end
            case Normalisation() | Contraction():
                end = allowed + start + work.streaming
            case Transfer():
                end = np.maximum(allowed, before[COPIED]) + start + work.streaming
                new[COPIED] = end
        for memory, moving in zip((MOVED, SECOND), work.moving, strict=True):
            if moving or memory == MOVED:
                new[memory] = np.maximum(before[memory], enabled) + moving
                end = np.maximum(end, new[memory])
        new[PROGRAMMED] = allowed
        new[ENDS.stop - 1] = end
        return EngineProgress(new)

    def _seen_ends(self, running: Array) -> Array:
        """When the driver has seen all but `running` operations end; a column for each partial program."""
        seen = np.maximum.accumulate(self.state[: ENDS.stop], axis=0)  # the latest end up to each operation
        return seen[np.maximum(REMEMBERED - running, 0), np.arange(seen.shape[1])]

    def _run_convolution(
        self, new: Array, work: Work, operation: Convolution, enabled: Array, allowed: Array, machine: Machine
    ) -> Array:
        """Updates the engines for a convolution in `new`. Returns its end."""
        before, banks = self.state, operation.banks
        alike = (before[DATA] == banks.data) & (before[WEIGHTS] == banks.weights)  # the ring keeps the last input
        begin = np.maximum(enabled, np.where(alike, before[FETCHED], before[COMPUTED]))
        here = begin + work.fetching
        free_entries = banks.data * machine.cbuf_entries - work.entries
        if before[ENTRIES].max() > free_entries:  # the ring has no room for both inputs
            crowded = np.where(alike, np.clip((before[ENTRIES] - free_entries) / work.entries, 0.0, 1.0), 0.0)
            left = np.round(work.fetching * crowded * GRAIN) / GRAIN
            here = np.where(crowded > 0, np.maximum(here, before[COMPUTED] + left), here)
        delay = timing.START + work.latency
        start = np.maximum(np.maximum(here, begin + work.beginning) + delay, allowed)
        start = np.maximum(np.maximum(start, before[COMPUTED] + timing.HANDOVER), before[WRITTEN])
        loaded = begin + work.loading
        computed = np.maximum(start + work.computing, loaded + (delay + work.group))
        end = np.maximum(computed + work.filling, self._run_pooling(work, start))
        new[FETCHED] = np.maximum(here, loaded)
        new[COMPUTED] = new[WRITTEN] = computed
        if operation.pooling:
            new[POOLED] = end
        new[ENTRIES], new[DATA], new[WEIGHTS] = work.entries, banks.data, banks.weights
        return end

    def _run_pooling(self, work: Work, start: Array) -> Array:
        """When PDP behind SDP has finished; the start if there is no PDP."""
        return np.maximum(start, self.state[POOLED]) + work.pooling if work.pooling else start


def ends(operations: Sequence[tuple[Operation, Admission]], machine: Machine) -> list[float]:
    """When each operation of a program and all earlier ones have ended, in clocks from its start."""
    progress, found = EngineProgress.start(), list[float]()
    for count, (operation, admission) in enumerate(operations):
        progress = progress.advance(Work.of(operation, machine), _count_running(admission, count), machine)
        found.append(float(progress.state[ENDS.stop - 1, 0]))
    return list(accumulate(found, max))


def layer_ends(layers: Iterable[Sequence[Operation]], machine: Machine) -> list[float]:
    """When each layer of a program and all earlier ones have ended, in clocks from its start."""
    scoreboard, pairs, counts = Scoreboard(machine.atom_bytes), list[tuple[Operation, Admission]](), list[int]()
    for layer in layers:
        for operation in layer:
            admission, scoreboard = scoreboard.admit(operation)
            pairs.append((operation, admission))
        counts.append(len(pairs))
    found = [0.0, *ends(pairs, machine)]
    return [found[count] for count in counts]


def sequence_clocks(operations: Iterable[Operation], machine: Machine) -> float:
    """Clocks of a sequence of operations run alone."""
    scoreboard, progress = Scoreboard(machine.atom_bytes), EngineProgress.start()
    for count, operation in enumerate(operations):
        admission, scoreboard = scoreboard.admit(operation)
        progress = progress.advance(Work.of(operation, machine), _count_running(admission, count), machine)
    return float(progress.end[0])


def _count_running(admission: Admission, count: int) -> Array:
    """How many of the `count` earlier operations may still run, as EngineProgress.advance takes it."""
    return np.array([[count - each] for each in admission.counts])
