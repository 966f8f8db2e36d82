"""The RTL with the fast simulator's interface, beside the stepping simulator, whose cycles it must take."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from ctypes import CDLL
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.program.artefact import Segment
from npuc.targets.easynpu.rtl import build
from npuc.targets.easynpu.rtl.simulation import Simulation
from tests.easynpu import test_simulator as programs
from tests.easynpu_rtl import mutants
from tests.easynpu_stepping.test_programs import Memories, Stepping

SMALL = replace(programs.MACHINE, weight_words=1200)
"""Its weights are written word by word before every program."""
CORES = {
    "three rows": replace(SMALL, pe_rows=3),
    "one set of pads": replace(SMALL, ifmap_pad_sets=1, psum_write_first=True),
}
"""Machines for random programs. Their cores have the mistakes of `mutants` built in, and none is in effect."""


@cache
def core(name: str) -> CDLL:
    """The core of one of CORES, or skips the test with the reason."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(build, "verilog", mutants.verilog)
        try:
            return build.library.__wrapped__(CORES[name])
        except ArtefactError as error:
            pytest.skip(error.problems[0].reason)


def install(patch: pytest.MonkeyPatch, name: str) -> None:
    """Tests of the fast simulator run on the RTL of one of CORES."""
    library = core(name)

    def found(_machine: Machine) -> CDLL:
        return library

    patch.setattr(build, "library", found)
    patch.setattr(programs, "Simulator", Rtl)
    patch.setattr(programs, "MACHINE", CORES[name])


def needed(machine: Machine) -> None:
    """Builds the simulation of this machine, or skips the test with the reason."""
    try:
        build.library(machine)
    except ArtefactError as error:
        pytest.skip(error.problems[0].reason)


class Rtl(Stepping):
    """The fast simulator's interface: sample after sample on one core, in the cycles of the stepping simulator."""

    def __init__(self, machine: Machine, files: Mapping[str, bytes]) -> None:
        super().__init__(machine, files)
        self.simulation = Simulation(machine, files, noise=None)

    def run(
        self,
        segment: Segment,
        state: Memories,
        tensors: dict[str, Array],
        observe: Callable[[int, Array], None] | None = None,
    ) -> None:
        found: dict[int, list[Array]] = {}
        board = self.simulation.state(1)
        board.board.write("weight", 0, state.weight)
        for fmap, skip in zip(state.fmap, state.skip, strict=True):
            cycles = self._stepped(segment, {"fmap": fmap, "skip": skip, "weight": state.weight})
            for name, values in (("fmap", fmap), ("skip", skip)):
                board.board.write(name, 0, values)
            self.simulation.cycles.clear()
            self.simulation.run(
                segment, board, tensors, lambda number, values: found.setdefault(number, []).append(values)
            )
            for name, values in (("fmap", fmap), ("skip", skip)):
                values[...] = board.board.read(name, 0, len(values))
            assert self.simulation.cycles == cycles
        for number, values in found.items():
            if observe is not None:
                observe(number, np.concatenate(values))

    def _stepped(self, segment: Segment, memories: Mapping[str, Array]) -> list[int]:
        """Cycles of every chain on the stepping simulator."""
        hardware = self.stepper.state(1)
        for dtcm in (hardware.fmap, hardware.skip, hardware.weight):
            dtcm.values[...], dtcm.written[...] = memories[dtcm.name], True
        self.stepper.layers.clear()
        self.stepper.run(segment, hardware, {})
        return [layer.cycles for layer in self.stepper.layers]
