"""The execution of a program's steps: host steps in numpy, segments on a simulator."""

from __future__ import annotations

from collections.abc import Generator, Mapping
from contextlib import contextmanager
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from npuc.errors import ArtefactError
from npuc.host.manifest import outputs_among
from npuc.host.running import one_by_one
from npuc.ir import Array
from npuc.program import Program, count_of
from npuc.system.budget import expect_room
from npuc.target import Observer
from npuc.targets.easynpu.program.artefact import Contents, Segment
from npuc.targets.easynpu.simulate.simulator import Observer as WordObserver
from npuc.targets.easynpu.simulate.simulator import Simulator

if TYPE_CHECKING:
    from npuc.targets.easynpu.simulate.events import LayerCount


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


class Runner:
    """A program ready to run batch after batch; its kernels are created once."""

    def __init__(self, program: Program) -> None:
        self.contents = Contents.of(program.manifest)
        self.outputs = program.outputs
        self.simulator: Executor = Simulator(self.contents.machine, program.files)

    def __call__(self, feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        """Outputs (samples, *shape) for inputs (samples, *shape)."""
        tensors = dict(feeds)
        samples = count_of(feeds)
        state = self.simulator.state(samples)
        seen: dict[str, Array] = {}

        def collect(number: int, values: Array) -> None:
            self._collect(seen, number, values)

        for step in self.contents.steps:
            if isinstance(step, Segment):
                self.simulator.run(step, state, tensors, None if observe is None else collect)
            else:
                step.run(tensors)
                seen.update((name, tensors[name]) for name in step.outputs if tensors[name].dtype == np.int8)
        if observe is not None:
            for name, values in seen.items():
                observe(name, values)
        return outputs_among(tensors, self.outputs)

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


class SteppingRunner:
    """A program on the stepping simulator, one sample after the other; the first one is traced."""

    def __init__(self, program: Program, trace: Path | None = None) -> None:
        from npuc.targets.easynpu.simulate.stepping import Stepper

        self.runner = Runner(program)
        self.stepper = Stepper(self.runner.contents.machine, program.files)
        self.runner.simulator = self.stepper
        self.trace = trace

    def __call__(self, feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        """Outputs (samples, *shape) for inputs (samples, *shape)."""
        return one_by_one(self._run, feeds, observe)

    def _run(self, feeds: Mapping[str, Array], observe: Observer | None) -> dict[str, Array]:
        self.stepper.layers.clear()
        with self._traced():
            return self.runner(feeds, observe)

    @property
    def layers(self) -> list[LayerCount]:
        """The counts of every chain of the last sample."""
        return self.stepper.layers

    def report(self) -> dict[str, Any]:
        """The cycles of a sample, and the counts and ONNX nodes of every layer."""
        table = self.runner.contents.instructions
        rows = [
            {
                "nodes": list(table[each.instruction].nodes) if each.instruction < len(table) else [],
                **each.as_json(),
            }
            for each in self.layers
        ]
        return {"cycles": sum(each.cycles for each in self.layers), "layers": rows}

    @contextmanager
    def _traced(self) -> Generator[None]:
        """Traces the first sample; after an error the trace so far is discarded.

        Raises ArtefactError (E506) where the file cannot be written.
        """
        if self.trace is None:
            yield
            return
        from npuc.targets.easynpu.simulate.trace import Tracer

        path, self.trace = self.trace, None
        staging = path.with_name(f".{path.name}.partial")
        try:
            with staging.open("w", encoding="ascii") as file:
                tracer = Tracer(file, self.runner.contents.machine)
                self.stepper.watcher = tracer
                try:
                    yield
                finally:
                    tracer.close()
                    self.stepper.watcher = None
            staging.replace(path)
        except OSError as error:
            raise ArtefactError("E506", f"'{path}' cannot be written: {error.strerror or error}") from None
        finally:
            staging.unlink(missing_ok=True)
