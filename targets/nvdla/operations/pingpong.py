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
    written,
)
from npuc.targets.nvdla.operations.scoreboard import Admission, Scoreboard

REMEMBERED = 8
"""Operations that may still be waited for, at most: each block has two groups."""


@dataclass(frozen=True)
class Work:
    """An operation and the clocks that each engine takes for it, whatever runs beside it."""

    operation: Operation
    programming: float
    """Of the driver."""
    moving: float
    """Of memory for everything: what is read, or what is written if that is more."""
    streaming: float
    """Of SDP, PDP or CDP on a map in memory."""
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

    @classmethod
    def of(cls, operation: Operation, machine: Machine) -> Work:
        """What the model of single operations says."""
        speed = machine.dram_bytes_per_cycle
        read, result = timing.read_bytes(operation, machine), timing.cube_bytes(written(operation), machine)
        moving, programming = max(read, result) / speed, timing.programming_cycles(operation, machine)
        behind = None if isinstance(operation, Pooling | Normalisation | Contraction) else operation.pooling
        pooling = timing.pooling_cycles(behind, machine) if behind else 0.0
        if not isinstance(operation, Convolution):
            return cls(operation, programming, moving, timing.stream_cycles(operation, machine), pooling)
        kernels, source, banks = operation.kernels, operation.source, operation.banks
        together, size = machine.kernel_group(source.precision), timing.cube_bytes(source, machine)
        first = min(kernels.bytes, banks.weights * machine.bank_bytes, together * kernels.kernel_bytes)
        computing = timing.compute_cycles(kernels, operation.destination, machine)
        return cls(
            operation,
            programming,
            moving,
            0,
            pooling,
            timing.fetch_cycles(source, kernels, machine),
            computing,
            computing / ceil(kernels.count / together),
            (size + kernels.moved_bytes) / speed,
            (first + min(first, size)) / speed,
            banks.entries_per_slice * source.height,
        )


@dataclass(frozen=True)
class Progress:
    """When each engine is free, in clocks from the start: for several beginnings of a program side by side.

    Every field is an array with an element for each beginning; `ends` has a row.
    """

    ends: Array
    """Of the latest REMEMBERED operations, the latest last."""
    count: Array
    programmed: Array
    """Since when the driver goes on."""
    fetched: Array
    computed: Array
    written: Array
    pooled: Array
    moved: Array
    """Until when memory is busy."""
    entries: Array
    """CBUF entries of the convolution before."""
    data: Array
    """Its banks for data; 0 where there was none."""
    weights: Array
    """Its banks for weights."""

    @classmethod
    def start(cls) -> Progress:
        """Of one beginning, before its first operation."""
        free, none = np.zeros(1), np.zeros(1, np.int64)
        return cls(np.zeros((1, REMEMBERED)), none, free, free, free, free, free, free, none, none, none)

    @classmethod
    def joined(cls, parts: Sequence[Progress]) -> Progress:
        """The beginnings of all parts."""
        return cls(*(np.concatenate([getattr(each, name) for each in parts]) for name in cls.__match_args__))

    def take(self, which: Sequence[int]) -> Progress:
        """Some of the beginnings, by number."""
        return Progress(*(getattr(self, name)[which] for name in self.__match_args__))

    @property
    def end(self) -> Array:
        """When everything so far has ended."""
        return self.ends.max(axis=1)

    def after(
        self, work: Work, program: Array | int, fetch: Array | int, write: Array | int, machine: Machine
    ) -> Progress:
        """With one more operation.

        program, fetch, write: how many operations of each beginning must have ended until it is programmed,
        fetches and writes.
        """
        seen_program, seen_fetch, seen_write = self._passed(np.array([program, fetch, write]).reshape(3, -1))
        enabled = np.maximum(seen_program + work.programming, seen_fetch)
        allowed = np.maximum(enabled, seen_write)
        start = timing.START + machine.latency
        new = dict[str, Array]()
        match work.operation:
            case Convolution() as operation:
                new, end = self._convolved(work, operation, enabled, allowed, machine)
            case Elementwise():
                begin = np.maximum(allowed, self.written) + start
                written = begin + work.streaming
                pooled = self._pooled(work, begin)
                end = np.maximum(written, pooled)
                new = {"written": written, "pooled": end if work.pooling else self.pooled}
            case Pooling():
                end = np.maximum(allowed, self.pooled) + start + work.streaming
                new = {"pooled": end}
            case Normalisation() | Contraction():
                end = allowed + start + work.streaming
        moved = np.maximum(self.moved, enabled) + work.moving
        new["ends"] = np.concatenate([self.ends[:, 1:], np.maximum(end, moved)[:, None]], axis=1)
        new |= {"count": self.count + 1, "programmed": allowed, "moved": moved}
        return Progress(**{**vars(self), **new})

    def _passed(self, ended: Array) -> Array:
        """When the driver has seen the end of so many operations; ended has a column for each beginning."""
        seen = np.maximum.accumulate(self.ends, axis=1)  # the latest end up to each operation
        which = np.minimum(ended - self.count + REMEMBERED, REMEMBERED)
        passed = np.maximum(self.programmed, seen[np.arange(len(seen)), np.maximum(which, 1) - 1])
        return np.where(which > 0, passed, self.programmed)

    def _convolved(
        self, work: Work, operation: Convolution, enabled: Array, allowed: Array, machine: Machine
    ) -> tuple[dict[str, Array], Array]:
        """What is new of the engines, and the end."""
        banks = operation.banks
        alike = (self.data == banks.data) & (self.weights == banks.weights)  # the input before lies in the ring
        begin = np.maximum(enabled, np.where(alike, self.fetched, self.computed))
        here = begin + work.fetching
        room = banks.data * machine.cbuf_entries - work.entries
        if self.entries.max() > room:  # both inputs do not lie in the ring
            crowded = np.where(alike, np.clip((self.entries - room) / work.entries, 0.0, 1.0), 0.0)
            waits = np.maximum(here, self.computed + work.fetching * crowded)
            here = np.where(crowded > 0, waits, here)
        delay = timing.START + machine.latency
        start = np.maximum(np.maximum(here, begin + work.beginning) + delay, allowed)
        start = np.maximum(np.maximum(start, self.computed), self.written)
        loaded = begin + work.loading
        size, held = operation.kernels.bytes, banks.weights * machine.bank_bytes
        if size > held:
            loaded = np.maximum(loaded, start + work.computing * (1 - held / size))
        computed = np.maximum(start + work.computing, loaded + delay + work.group)
        end = np.maximum(computed, self._pooled(work, start))
        ready = {
            "fetched": np.maximum(here, loaded),
            "computed": computed,
            "written": computed,
            "pooled": end if operation.pooling else self.pooled,
        }
        now = {"entries": work.entries, "data": banks.data, "weights": banks.weights}
        return {**ready, **{name: np.full(len(self.count), value) for name, value in now.items()}}, end

    def _pooled(self, work: Work, start: Array) -> Array:
        """When PDP behind SDP is through, if there is one."""
        return np.maximum(start, self.pooled) + work.pooling if work.pooling else start


def ends(operations: Sequence[tuple[Operation, Admission]], machine: Machine) -> list[float]:
    """When each operation of a program and all before it have ended, in clocks from its start."""
    progress, found = Progress.start(), list[float]()
    for operation, admission in operations:
        progress = progress.after(Work.of(operation, machine), *admission.counts, machine)
        found.append(float(progress.ends[0, -1]))
    return list(accumulate(found, max))


def alone(operations: Iterable[Operation], machine: Machine) -> float:
    """Clocks of operations with nothing before or behind them."""
    scoreboard, progress = Scoreboard(machine.atom_bytes), Progress.start()
    for operation in operations:
        admission, scoreboard = scoreboard.admit(operation)
        progress = progress.after(Work.of(operation, machine), *admission.counts, machine)
    return float(progress.end[0])
