"""A program on the core in Verilator, one sample after the other."""

from __future__ import annotations

from collections.abc import Mapping

from npuc.host.running import one_by_one
from npuc.ir import Array
from npuc.program import Program
from npuc.target import Observer
from npuc.targets.easynpu.program.artefact import Contents
from npuc.targets.easynpu.rtl.simulation import Simulation
from npuc.targets.easynpu.simulate.running import Runner


class RtlRunner:
    """Runs the steps of the manifest, with segments on the hardware description."""

    def __init__(self, program: Program) -> None:
        self.simulation = Simulation(Contents.of(program.manifest).machine, program.files)
        self.runner = Runner(program, self.simulation)
        self._cycles: int | None = None

    def __call__(self, feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        """Outputs (samples, *shape) for inputs (samples, *shape)."""
        return one_by_one(self._run, feeds, observe)

    def _run(self, feeds: Mapping[str, Array], observe: Observer | None) -> dict[str, Array]:
        self.simulation.cycles.clear()
        found = self.runner(feeds, observe)
        self._cycles = sum(self.simulation.cycles)
        return found

    @property
    def cycles(self) -> int | None:
        """Cycles of the core for the last sample; None before the first."""
        return self._cycles
