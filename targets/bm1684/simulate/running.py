"""A BM1684 program run sample by sample: inputs into system memory, the kernel, outputs out of it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path

import numpy as np

from npuc.ir import Array
from npuc.program import Program
from npuc.target import Observer
from npuc.targets.bm1684.machine.local_memory import ceil_div
from npuc.targets.bm1684.machine.parameters import SYSTEM_START
from npuc.targets.bm1684.program.artefact import ELEMENT, KERNEL_FILE, Contents, Placement
from npuc.targets.bm1684.simulate import compilation, simulator, vendor
from npuc.targets.bm1684.simulate.observation import Observation

PAGE = 4096
"""Regions of system memory start at multiples of it."""


class Runner:
    """A program on one of the chip models, its weights in place."""

    def __init__(self, program: Program, chip_model: str) -> None:
        self.contents, self.chip_model = Contents.of(program.manifest), chip_model
        self.observed = Contents.observed(program.manifest)
        self.sources = {KERNEL_FILE: program.files.get(KERNEL_FILE, b"")}
        self.starts: dict[str, int] = {}
        size = 0
        for region in self.contents.regions:
            self.starts[region.name] = size
            size += ceil_div(region.bytes, PAGE) * PAGE
        self.memory = np.zeros(size, np.uint8)
        for region in self.contents.regions:
            data = np.frombuffer(program.files.get(region.file or "", b""), np.uint8)[: region.bytes]
            self.memory[self.starts[region.name] :][: data.size] = data
        self.arguments = np.array([SYSTEM_START + start for start in self.starts.values()], "<u8").tobytes()
        self.cycles: int | None = None
        """Of the last sample."""

    def __call__(self, feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        """Outputs (samples, *shape) for inputs (samples, *shape)."""
        samples = [
            {name: values[index] for name, values in feeds.items()}
            for index in range(len(next(iter(feeds.values()))))
        ]
        results = self._samples(samples, None)
        if observe is not None:
            shown = self._samples(samples, self._observation())
            for name in shown[0].keys() - results[0].keys():
                observe(name, np.stack([each[name] for each in shown]))
        return {name: np.stack([result[name] for result in results]) for name in results[0]}

    def _observation(self) -> Observation:
        kernel = self.sources[KERNEL_FILE]
        return Observation.of(kernel, self.observed, len(self.memory), SYSTEM_START, self.contents.machine)

    def _samples(
        self, feeds: Sequence[Mapping[str, Array]], observation: Observation | None
    ) -> list[dict[str, Array]]:
        """Outputs and, with an observation, what layers computed."""
        sources = observation.sources if observation else self.sources
        with tempfile.TemporaryDirectory(prefix="npuc-") as folder:
            own = compilation.program(sources, Path(folder)) if self.chip_model == "own" else None
            return [self._sample(feed, sources, own, observation) for feed in feeds]

    def _sample(
        self,
        feed: Mapping[str, Array],
        sources: Mapping[str, bytes],
        own: Path | None,
        observation: Observation | None,
    ) -> dict[str, Array]:
        memory = self.memory.copy()
        if observation is not None:
            memory = np.concatenate([memory, np.zeros(observation.bytes - len(memory), np.uint8)])
        for place in self.contents.placements:
            if place.direction == "input":
                value = np.ascontiguousarray(feed[place.tensor], np.float32)
                self._bytes(memory, place)[:] = value.reshape(-1).view(np.uint8)
        left, cycles = self._run(memory, sources, own)
        if observation is not None:
            return observation.values(left)
        self.cycles = cycles
        return {
            place.tensor: self._bytes(left, place).view(np.float32).reshape(place.shape).copy()
            for place in self.contents.placements
            if place.direction == "output"
        }

    def _run(self, memory: Array, sources: Mapping[str, bytes], own: Path | None) -> tuple[Array, int]:
        """System memory after the kernel, and its cycles."""
        kernel = self.contents.kernel
        if own is None:
            on_vendor = vendor.run(sources, kernel, self.arguments, memory)
            return on_vendor.memory, on_vendor.cycles
        on_own = simulator.run(own, kernel, self.arguments, memory, self.contents.machine)
        return on_own.memory, on_own.cost.cycles

    def _bytes(self, memory: Array, place: Placement) -> Array:
        start = self.starts[place.region] + place.address
        return memory[start : start + ELEMENT * prod(place.shape)]
