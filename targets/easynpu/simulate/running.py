"""The execution of a program's steps: host steps in numpy, segments on a simulator."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from math import prod
from typing import Any, Protocol

import numpy as np

from npuc.errors import ArtefactError
from npuc.host.manifest import outputs_among
from npuc.host.step import HostStep
from npuc.ir import Array
from npuc.program import Program, count_of
from npuc.system.budget import expect_room
from npuc.target import Observer
from npuc.targets.easynpu.program.artefact import Contents, Segment
from npuc.targets.easynpu.simulate.simulator import Observer as WordObserver
from npuc.targets.easynpu.simulate.simulator import Simulator, State
from npuc.targets.easynpu.simulate.tiles import Tiles, Wave, planned


class Executor(Protocol):
    """A simulator: memories for a number of samples, and the execution of segments on them."""

    def state(self, samples: int) -> Any:
        """The memories at power-up."""
        ...

    def run(
        self, segment: Segment, state: Any, tensors: dict[str, Array], observe: WordObserver | None = None
    ) -> None:
        """Loads, runs and stores."""
        ...


UNCOMPUTED = 1 << 8
"""Marks elements of observed tensors that no word wrote: it differs from every int8."""


MOST_BYTES = 1 << 26
"""The most bytes of the memories of machines that run side by side."""


class Runner:
    """A program ready to run batch after batch; its kernels are created once.

    executor: what runs its segments, one after the other; None: the word simulator, tiles side by side.
    """

    def __init__(self, program: Program, executor: Executor | None = None) -> None:
        self.contents = Contents.of(program.manifest)
        self.outputs = program.outputs
        self.executor = executor
        self.simulator = Simulator(self.contents.machine, program.files)

    def __call__(self, feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        """Outputs (samples, *shape) for inputs (samples, *shape)."""
        tensors = dict(feeds)
        samples = count_of(feeds)
        state = (self.executor or self.simulator).state(samples)
        seen: dict[str, Array] = {}

        def collect(number: int, values: Array) -> None:
            self._collect(seen, number, values)

        watch = None if observe is None else collect
        for step in self.contents.steps if self.executor is not None else self._plan:
            if isinstance(step, HostStep):
                step.run(tensors)
                seen.update((name, tensors[name]) for name in step.outputs if tensors[name].dtype == np.int8)
            elif isinstance(step, Segment):
                assert self.executor is not None
                self.executor.run(step, state, tensors, watch)
            else:
                self.run_wave(step, state, tensors, watch)
        if observe is not None:
            for name, values in seen.items():
                observe(name, values)
        return outputs_among(tensors, self.outputs)

    @cached_property
    def _plan(self) -> Sequence[HostStep | Wave]:
        return planned(self.contents.steps, self.simulator)

    def run_wave(self, wave: Wave, state: State, tensors: dict[str, Array], watch: WordObserver | None) -> None:
        """Runs all tiles; results are observed in the order of the program."""
        shown: list[tuple[int, int, Array]] = []
        most = max(MOST_BYTES // max(state.fmap.nbytes + state.skip.nbytes, 1), 1)
        for tiles in (piece for each in wave for piece in each.pieces(most)):
            try:
                self._run_tiles(tiles, state, tensors, None if watch is None else shown)
            except ArtefactError:
                for part in tiles.pieces(1):  # to name the first instruction that fails
                    self._run_tiles(part, state, tensors, None)
                raise
        if watch is not None:
            for _, number, values in sorted(shown, key=lambda each: each[:2]):
                watch(number, values)

    def _run_tiles(
        self, tiles: Tiles, state: State, tensors: dict[str, Array], shown: list[tuple[int, int, Array]] | None
    ) -> None:
        own = state if tiles.resumes else self.simulator.state(len(tiles.parts) * len(state.fmap))
        for segments, words in zip(zip(*tiles.parts, strict=True), tiles.words, strict=True):
            watches = None if shown is None else [_noted(shown, each.number) for each in segments]
            loads, stores = [each.loads for each in segments], [each.stores for each in segments]
            self.simulator.run_tiles(loads, words, stores, own, tensors, watches)

    def _collect(self, seen: dict[str, Array], number: int, values: Array) -> None:
        """Stores the result of one layer word (samples, Ho, Wo, Co), without its unused rows, in its window.

        A word with other extents leaves its window uncomputed.
        """
        table = self.contents.instructions
        entry = table[number] if number < len(table) else None
        if entry is None or entry.tensor is None or entry.shape is None:
            return
        if entry.tensor not in seen:
            size = len(values) * prod(entry.shape) * np.dtype(np.int16).itemsize
            expect_room(size + sum(each.nbytes for each in seen.values()), "what is shown", tensor=entry.tensor)
            seen[entry.tensor] = np.full((len(values), *entry.shape), UNCOMPUTED, np.int16)
        whole = seen[entry.tensor].reshape(len(values), *(*entry.shape[1:], 1, 1)[:3])
        first, row, column = entry.start
        row += entry.unused_rows
        planes = values.transpose(0, 3, 1, 2)[:, :, entry.unused_rows :]
        window = whole[
            :, first : first + planes.shape[1], row : row + planes.shape[2], column : column + planes.shape[3]
        ]
        if window.shape == planes.shape:
            window[...] = planes


def _noted(shown: list[tuple[int, int, Array]], segment: int) -> WordObserver:
    return lambda number, values: shown.append((segment, number, values))
