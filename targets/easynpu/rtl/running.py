"""A program on the core in Verilator, one sample after the other."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from npuc.host.running import one_by_one
from npuc.ir import Array
from npuc.program import Program
from npuc.storage.files import replacing
from npuc.target import Observer
from npuc.targets.easynpu.program.artefact import Contents
from npuc.targets.easynpu.rtl.simulation import Simulation
from npuc.targets.easynpu.simulate.running import Runner


class RtlRunner:
    """Runs the steps of the manifest, with segments on the hardware description.

    trace: the file for the waveforms of the first sample (.vcd); ArtefactError (E506) where it cannot be written.
    """

    def __init__(self, program: Program, trace: Path | None = None) -> None:
        machine = Contents.of(program.manifest).machine
        self.simulation = Simulation(machine, program.files, traced=trace is not None)
        self.runner = Runner(program, self.simulation)
        self.trace = trace
        self.layer_cycles: list[int] = []
        """Cycles of every chain for the last sample."""

    def __call__(self, feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        """Outputs (samples, *shape) for inputs (samples, *shape)."""
        return one_by_one(self._run, feeds, observe)

    def _run(self, feeds: Mapping[str, Array], observe: Observer | None) -> dict[str, Array]:
        self.simulation.cycles.clear()
        if self.trace is None:
            found = self.runner(feeds, observe)
        else:
            with replacing(self.trace) as staging:
                self.simulation.trace = staging
                found = self.runner(feeds, observe)
                self.simulation.end_trace()
            self.trace = None
        self.layer_cycles = list(self.simulation.cycles)
        return found

    @property
    def cycles(self) -> int | None:
        """Cycles of the core for the last sample; None before the first."""
        return sum(self.layer_cycles) if self.layer_cycles else None
