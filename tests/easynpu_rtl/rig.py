"""The RTL with the word simulator's interface, in the cycles of the cycle model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ctypes import CDLL
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest

from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.storage.bits import encode
from npuc.targets.easynpu.machine.isa import Instruction, Reshape, bytes_to_words
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.machine.rearrangement import SETUP, run_length
from npuc.targets.easynpu.program.artefact import Segment
from npuc.targets.easynpu.rtl import build
from npuc.targets.easynpu.rtl.simulation import Board, Simulation
from npuc.targets.easynpu.simulate.walk import chains_of
from tests.easynpu import naive
from tests.easynpu import test_simulator as programs
from tests.easynpu_rtl import mutants

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


@dataclass
class Memories:
    """The memories of several machines, as the word simulator holds them."""

    fmap: Array
    skip: Array
    weight: Array


class Rtl:
    """The word simulator's interface: sample after sample on one core, in the cycles of the cycle model."""

    def __init__(self, machine: Machine, files: Mapping[str, bytes]) -> None:
        self.machine = machine
        self.simulation = Simulation(machine, files, noise=None)

    def state(self, samples: int) -> Memories:
        sizes = (
            (samples, self.machine.fmap_words),
            (samples, self.machine.skip_words),
            (self.machine.weight_words,),
        )
        return Memories(*(np.zeros((*size, 16), np.int8) for size in sizes))

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
            for name, values in (("fmap", fmap), ("skip", skip)):
                board.board.write(name, 0, values)
            if self.machine.overlap:
                self._load_beside(board.board, segment, {"fmap": fmap, "skip": skip, "weight": state.weight})
            self.simulation.cycles.clear()
            self.simulation.run(
                segment, board, tensors, lambda number, values: found.setdefault(number, []).append(values)
            )
            for name, values in (("fmap", fmap), ("skip", skip)):
                values[...] = board.board.read(name, 0, len(values))
            expect_modelled(board.itcm[: segment.count], self.machine, self.simulation.cycles)
        for number, values in found.items():
            if observe is not None:
                observe(number, np.concatenate(values))

    def _load_beside(self, board: Board, segment: Segment, memories: Mapping[str, Array]) -> None:
        """What the words do not use gets its contents only while they run; wrong ones before."""
        used = {name: np.zeros(len(words), np.bool_) for name, words in memories.items()}
        words = bytes_to_words(self.simulation.files["itcm.bin"])[: segment.count]
        for image in segment.images:
            used.get(image.memory, np.zeros(0))[image.address : image.address + image.words] = True
        for chain in chains_of(words, 0, self.machine):
            for each in (*chain.read, *(each for stage in chain.stages for each in chain.written(stage))):
                used[each.place.memory][each.grid] = True
        for name, contents in memories.items():
            free = np.flatnonzero(~used[name])
            for run in np.split(free, np.flatnonzero(np.diff(free) != 1) + 1):
                if len(run):
                    board.write(name, int(run[0]), ~contents[run])
                    board.write_beside(name, int(run[0]), contents[run])


def expect_modelled(words: Sequence[Instruction], machine: Machine, cycles: Sequence[int]) -> None:
    """The cycle model gives the cycles of every chain; the pieces of a map that a reshape reads are naive's."""
    chains = list(chains_of(words, 0, machine))
    assert cycles == [chain.cycles for chain in chains]
    for chain, took in zip(chains, cycles, strict=True):
        word = chain.stages[0].reshape
        if word is not None:  # a word is read, and written to every word that it has lanes for
            map_words = chain.stages[0].ifmap(machine, chain.low).grid.size
            assert took == chain.words + SETUP + map_words + sum(scattered(word))


def scattered(word: Reshape) -> list[int]:
    """For every word of a map the pieces that it falls into, by the interpreter of the document."""
    fields = naive.fields(naive.RESHAPE, encode(word))
    number = np.arange(word.Hi * word.Wi * word.Ci).reshape(word.Hi, word.Wi, word.Ci)
    pieces = np.zeros((word.Hi * word.Wi, -(-word.Ci // 16)), np.int64)
    for at, of in np.ndenumerate(naive.restacked(number, fields)):
        pixel, channel = divmod(int(of), word.Ci)
        pieces[pixel, channel // 16] += 0 in (channel % 16, channel % run_length(word), at[2] % 16)
    return [int(each) for each in pieces.ravel()]
