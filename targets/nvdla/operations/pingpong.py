"""How many clocks a program takes on NVDLA: operations side by side, in the two register groups of each block.

CDMA fetches the input and the weights of a convolution while the one before computes, as far as the CBUF has room
for them; the MAC array then goes on without a pause. Where two convolutions divide the banks differently, CDMA
waits until the array has done with the first. The data banks are a ring in which a whole input lies until it is
used, the weight banks one of kernel groups. Everything shares the bytes that memory moves in a clock; a second
memory has its own.
Source: convolutions and networks as measured on the nv_small RTL ("CSC starts only when the whole input cube of
the pass is in CBUF"; banks in halves, so that "the next fetch hides behind the current tile").
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import ceil

import numpy as np

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
"""Operations that may still be waited for, at most: each block has two groups."""
GRAIN = 1024
"""Parts of a clock in which times are counted, so that sums are exact and equal layers take equal times."""
PROGRAMMED, ENDS, FETCHED, COMPUTED, WRITTEN, POOLED, MOVED, SECOND, COPIED, ENTRIES, DATA, WEIGHTS = (
    0, slice(1, 1 + REMEMBERED), *range(1 + REMEMBERED, 11 + REMEMBERED),
)  # fmt: skip
"""Rows of Progress.state."""
CLOCKS = slice(0, ENTRIES)
"""Those that are times."""


@dataclass(frozen=True)
class Work:
    """An operation and the clocks that each engine takes for it, whatever runs beside it."""

    operation: Operation
    programming: float
    """Of the driver."""
    latency: int
    """Of the slower memory that is read."""
    moving: tuple[float, float]
    """Of DRAM and of the second memory for everything: what is read, or what is written if that is more."""
    streaming: float
    """Of SDP, PDP or CDP on a map in memory, or of BDMA."""
    pooling: float
    """Of PDP behind SDP."""
    fetching: float = 0
    """Of CDMA for the input, in turns with weights; the rest is of convolutions, too."""
    computing: float = 0
    group: float = 0
    """Of the MAC array for a kernel group."""
    loading: float = 0
    """Of memory for the input and all weights."""
    beginning: float = 0
    """Of memory for the weights without which nothing begins, in turns with the input."""
    entries: int = 0
    """CBUF entries of the input."""
    refilling: float | None = None
    """From the first atom until all weights that lack room at once are in the CBUF, if some do."""

    @classmethod
    def of(cls, operation: Operation, machine: Machine) -> Work:
        """What the model of single operations says."""
        dram, second = timing.moving_cycles(operation, machine)
        given = (
            operation,
            _counted(timing.programming_cycles(operation, machine)),
            timing.latency(operation, machine),
            (_counted(dram), _counted(second)),
        )
        behind = (
            None if isinstance(operation, Pooling | Normalisation | Contraction | Transfer) else operation.pooling
        )
        pooling = timing.pooling_cycles(behind, machine) if behind else 0.0
        if not isinstance(operation, Convolution):
            streaming = _counted(timing.stream_cycles(operation, machine))
            return cls(*given, streaming, _counted(pooling))
        kernels, source, banks = operation.kernels, operation.source, operation.banks
        together = machine.kernel_group(source.precision)
        held = banks.weights * machine.bank_bytes
        first = min(kernels.bytes, held, together * kernels.kernel_bytes)
        computing = timing.compute_cycles(kernels, operation.destination, machine)
        return cls(
            *given,
            0,
            _counted(pooling),
            _counted(timing.fetch_cycles(source, kernels, machine)),
            _counted(computing),
            _counted(computing / ceil(kernels.count / together)),
            _counted(timing.loading_cycles(source, kernels, machine)),
            _counted(timing.beginning_cycles(source, kernels, first, machine)),
            banks.entries_per_slice * source.height,
            _counted(computing * (1 - held / kernels.bytes)) if kernels.bytes > held else None,
        )


def _counted(clocks: float) -> float:
    """The nearest time that is counted."""
    return round(clocks * GRAIN) / GRAIN


@dataclass(frozen=True)
class Progress:
    """When each engine is free, in clocks: for several beginnings of a program side by side."""

    state: Array
    """A column for each beginning. Since when the driver goes on; the ends of the latest REMEMBERED operations,
    the latest last; until when CDMA, the array, SDP, PDP, DRAM, the second memory and BDMA are busy; CBUF entries
    of the convolution before, its banks for data (0 where there was none) and for weights."""

    @classmethod
    def start(cls) -> Progress:
        """Of one beginning, before its first operation."""
        return cls(np.zeros((WEIGHTS + 1, 1)))

    @classmethod
    def joined(cls, parts: Sequence[Progress]) -> Progress:
        """The beginnings of all parts."""
        return cls(np.concatenate([each.state for each in parts], axis=1))

    def take(self, which: Sequence[int]) -> Progress:
        """Some of the beginnings, by number."""
        return Progress(self.state[:, which])

    def rebased(self) -> tuple[float, Progress]:
        """A time, and the same counted from then on; what is over for every engine is as if it were just over."""
        state = self.state.copy()
        past = [*range(ENDS.start, ENDS.stop), WRITTEN, POOLED, MOVED, SECOND, COPIED]
        state[past] = np.maximum(state[past], state[PROGRAMMED])
        base = float(state[PROGRAMMED].min())
        state[CLOCKS] -= base
        return base, Progress(state)

    @property
    def end(self) -> Array:
        """When everything so far has ended."""
        return self.state[ENDS].max(axis=0)

    @property
    def free(self) -> Array:
        """When the array and when CDMA is free, added up."""
        return self.state[COMPUTED] + self.state[FETCHED]

    def after(self, work: Work, running: Array, machine: Machine) -> Progress:
        """With one more operation.

        running: how many of the operations before it may still run when it is programmed, fetches and writes,
        for each beginning or for all.
        """
        before = self.state
        seen_program, seen_fetch, seen_write = self._passed(running)
        enabled = np.maximum(seen_program + work.programming, seen_fetch)
        allowed = np.maximum(enabled, seen_write)
        start = timing.START + work.latency
        new = np.empty_like(before)
        new[ENDS.start : ENDS.stop - 1], new[FETCHED:] = before[ENDS.start + 1 : ENDS.stop], before[FETCHED:]
        match work.operation:
            case Convolution() as operation:
                end = self._convolved(new, work, operation, enabled, allowed, machine)
            case Elementwise():
                begin = np.maximum(allowed, before[WRITTEN]) + start
                new[WRITTEN] = begin + work.streaming
                end = np.maximum(new[WRITTEN], self._pooled(work, begin))
                if work.pooling:
                    new[POOLED] = end
            case Pooling():
                end = np.maximum(allowed, before[POOLED]) + start + work.streaming
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
        return Progress(new)

    def _passed(self, running: Array) -> Array:
        """When the driver has seen the end of all but so many operations; a column for each beginning."""
        seen = np.maximum.accumulate(self.state[: ENDS.stop], axis=0)  # the latest end up to each operation
        return seen[np.maximum(REMEMBERED - running, 0), np.arange(seen.shape[1])]

    def _convolved(
        self, new: Array, work: Work, operation: Convolution, enabled: Array, allowed: Array, machine: Machine
    ) -> Array:
        """Sets what is new of the engines. Result: the end."""
        before, banks = self.state, operation.banks
        alike = (before[DATA] == banks.data) & (before[WEIGHTS] == banks.weights)  # the ring holds the last input
        begin = np.maximum(enabled, np.where(alike, before[FETCHED], before[COMPUTED]))
        here = begin + work.fetching
        room = banks.data * machine.cbuf_entries - work.entries
        if before[ENTRIES].max() > room:  # both inputs do not lie in the ring
            crowded = np.where(alike, np.clip((before[ENTRIES] - room) / work.entries, 0.0, 1.0), 0.0)
            left = np.round(work.fetching * crowded * GRAIN) / GRAIN
            here = np.where(crowded > 0, np.maximum(here, before[COMPUTED] + left), here)
        delay = timing.START + work.latency
        start = np.maximum(np.maximum(here, begin + work.beginning) + delay, allowed)
        start = np.maximum(np.maximum(start, before[COMPUTED]), before[WRITTEN])
        loaded = begin + work.loading
        if work.refilling is not None:
            loaded = np.maximum(loaded, start + work.refilling)
        computed = np.maximum(start + work.computing, loaded + (delay + work.group))
        end = np.maximum(computed, self._pooled(work, start))
        new[FETCHED] = np.maximum(here, loaded)
        new[COMPUTED] = new[WRITTEN] = computed
        if operation.pooling:
            new[POOLED] = end
        new[ENTRIES], new[DATA], new[WEIGHTS] = work.entries, banks.data, banks.weights
        return end

    def _pooled(self, work: Work, start: Array) -> Array:
        """When PDP behind SDP is through, if there is one."""
        return np.maximum(start, self.state[POOLED]) + work.pooling if work.pooling else start


def ends(operations: Sequence[tuple[Operation, Admission]], machine: Machine) -> list[float]:
    """When each operation of a program and all before it have ended, in clocks from its start."""
    progress, found = Progress.start(), list[float]()
    for count, (operation, admission) in enumerate(operations):
        progress = progress.after(Work.of(operation, machine), _running(admission, count), machine)
        found.append(float(progress.state[ENDS.stop - 1, 0]))
    return list(accumulate(found, max))


def layer_ends(layers: Iterable[Sequence[Operation]], machine: Machine) -> list[float]:
    """When each layer of a program and all before it have ended, in clocks from its start."""
    scoreboard, pairs, counts = Scoreboard(machine.atom_bytes), list[tuple[Operation, Admission]](), list[int]()
    for layer in layers:
        for operation in layer:
            admission, scoreboard = scoreboard.admit(operation)
            pairs.append((operation, admission))
        counts.append(len(pairs))
    found = [0.0, *ends(pairs, machine)]
    return [found[count] for count in counts]


def alone(operations: Iterable[Operation], machine: Machine) -> float:
    """Clocks of operations with nothing before or behind them."""
    scoreboard, progress = Scoreboard(machine.atom_bytes), Progress.start()
    for count, operation in enumerate(operations):
        admission, scoreboard = scoreboard.admit(operation)
        progress = progress.after(Work.of(operation, machine), _running(admission, count), machine)
    return float(progress.end[0])


def _running(admission: Admission, count: int) -> Array:
    """How many of so many operations may still run, as Progress.after takes it."""
    return np.array([[count - each] for each in admission.counts])
