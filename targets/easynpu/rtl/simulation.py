"""A core in Verilator: programs run on the hardware description itself, with the interface of the simulators."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.program import Program
from npuc.running import one_by_one
from npuc.storage.files import replacing
from npuc.target import Observer
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.chains import ChainStage, chains, check
from npuc.targets.easynpu.machine.isa import Instruction
from npuc.targets.easynpu.machine.memory import LANES, Map, groups, pack_feature
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.program.artefact import Contents, Segment
from npuc.targets.easynpu.simulate.running import Runner
from npuc.targets.easynpu.simulate.simulator import WordObserver, keep, load_images
from npuc.targets.easynpu.simulate.walk import chains_of, expect_apart

SEEN = np.dtype(
    [
        ("chain", "<u4"), ("stage", "<u2"), ("group", "u1"), ("row", "u1"), ("column", "u1"), ("unused", "u1", 7),
        ("lanes", "i1", LANES),
    ]
)  # fmt: skip
"""A word's result for one pixel and 16 channels, as recorded by harness.cpp."""
CYCLES_MOST = 100_000_000


class Board:
    """A core of this machine, accessed through its port as firmware does."""

    def __init__(self, machine: Machine, *, traced: bool = False) -> None:
        from npuc.targets.easynpu.rtl import build, port

        self.machine = machine
        self.port = port
        self.address_bits = port.address_bits(machine)
        self.library = build.library(machine, traced=True) if traced else build.library(machine)
        self.handle = ctypes.c_void_p(self.library.easynpu_new())

    def __del__(self) -> None:
        if hasattr(self, "handle"):
            self.library.easynpu_delete(self.handle)

    def _address(self, region: str, index: int) -> int:
        return (self.port.REGIONS.index(region) << self.address_bits) | index

    def write(self, region: str, index: int, words: Array) -> None:
        """Writes words (n, 16) int8 to a memory, or to registers, from an index on."""
        data = np.ascontiguousarray(words, np.int8)
        self.library.easynpu_write(self.handle, self._address(region, index), data.ctypes.data, len(data))

    def write_beside(self, region: str, index: int, words: Array) -> None:
        """The same for a memory, while the next run is clocked: a word in each cycle."""
        data = np.ascontiguousarray(words, np.int8)
        self.library.easynpu_beside(self.handle, self._address(region, index), data.ctypes.data, len(data))

    def read(self, region: str, index: int, count: int) -> Array:
        """Reads words (count, 16) int8 of a memory, or of the registers, from an index on."""
        data = np.empty((count, LANES), np.int8)
        self.library.easynpu_read(self.handle, self._address(region, index), data.ctypes.data, count)
        return data

    def set_register(self, index: int, value: int) -> None:
        """Writes a register."""
        self.write("registers", index, np.frombuffer(value.to_bytes(LANES, "little"), np.int8)[None])

    def register(self, index: int) -> int:
        """The value of a register."""
        return int.from_bytes(self.read("registers", index, 1).tobytes(), "little")

    def run(self, *, watched: bool = False) -> None:
        """Clocks the core until its interrupt. Raises ArtefactError (E503) if it never comes."""
        if not self.library.easynpu_run(self.handle, CYCLES_MOST, watched):
            raise ArtefactError("E503", "the core never interrupts")

    def trace(self, path: Path | None) -> None:
        """Writes the waveforms of all further runs of a traced board to a file (.vcd), or ends it with None."""
        self.library.easynpu_trace(self.handle, None if path is None else str(path).encode())

    def seen(self) -> Array:
        """The results of words since they were last cleared (SEEN)."""
        found = ctypes.c_void_p()
        count = self.library.easynpu_seen(self.handle, ctypes.byref(found))
        return _copy_array(found, count, SEEN)

    def chain_ends(self) -> list[int]:
        """The cycle of the run in which each chain ended."""
        found = ctypes.c_void_p()
        count = self.library.easynpu_chain_ends(self.handle, ctypes.byref(found))
        return [int(each) for each in _copy_array(found, count, np.dtype("<u4"))]

    def forget(self) -> None:
        """Clears the recorded results and chain ends."""
        self.library.easynpu_forget(self.handle)


def _copy_array(address: ctypes.c_void_p, count: int, kind: np.dtype) -> Array:
    data = ctypes.string_at(address, count * kind.itemsize) if count else b""
    return np.frombuffer(data, kind)


@dataclass
class State:
    """The host's view of a board between loading and running."""

    board: Board
    itcm: tuple[Instruction, ...] = ()

    def load_weights(self, address: int, words: Array) -> None:
        """Fills the weight DTCM with words (n, 16) from an address on."""
        self.board.write("weight", address, words)

    def read(self, where: Map) -> Array:
        """The words (height, width, groups, 16) of a map."""
        region = where.place.memory
        first, last = where.span
        return self.board.read(region, first, last - first + 1)[where.grid - first]

    def write(self, where: Map, words: Array, *, beside: bool = False) -> None:
        """Fills a map with words (height, width, groups, 16). beside: while the next run is clocked."""
        at = where.grid.ravel()
        order = np.argsort(at)
        runs = np.split(order, np.flatnonzero(np.diff(at[order]) != 1) + 1)
        for run in runs:
            put = self.board.write_beside if beside else self.board.write
            put(where.place.memory, int(at[run[0]]), words.reshape(-1, LANES)[run])


class Simulation:
    """Runs segments of one program on one sample at a time, like the simulators.

    noise: a seed for random initial contents of both map memories and the weight DTCM. traced: boards can write
    waveforms; the next one does, to the file `trace`, until `end_trace`.
    """

    def __init__(
        self, machine: Machine, files: Mapping[str, bytes], noise: int | None = 0, *, traced: bool = False
    ) -> None:
        self.machine = machine
        self.files = files
        self.noise = noise
        self.cycles: list[int] = []
        """Cycles of every chain that has run."""
        self.traced = traced
        self.trace: Path | None = None
        self._tracing: Board | None = None

    def state(self, samples: int) -> State:
        """A board at power-up."""
        if samples != 1:
            raise ValueError("the RTL simulation runs one sample at a time")
        board = Board(self.machine, traced=self.traced)
        if self.noise is not None:
            random = np.random.default_rng(self.noise)
            for name in (*isa.MEMORIES, "weight"):
                board.write(name, 0, random.integers(-128, 128, (self.machine.capacity_words(name), LANES)))
        if self.trace is not None:
            board.trace(self.trace)
            self.trace, self._tracing = None, board
        return State(board)

    def end_trace(self) -> None:
        """Completes the file of waveforms."""
        if self._tracing is not None:
            self._tracing.trace(None)
            self._tracing = None

    def run(
        self, segment: Segment, state: State, tensors: dict[str, Array], observe: WordObserver | None = None
    ) -> None:
        """Loads, runs and stores a segment; tensors (1, 1, C, H, W) int8 by name are read and added."""
        first = load_images(segment, self.files, self.machine, state)
        words = state.itcm[: segment.count]
        state.board.write("itcm", 0, np.frombuffer(isa.words_to_bytes(words), np.int8).reshape(-1, LANES))
        expect_apart(segment, chains_of(words, first, self.machine), self.machine)
        for image in segment.images_ahead:
            data = np.frombuffer(image.data(self.files, self.machine), np.int8)
            state.board.write_beside("weight", image.address, data.reshape(-1, LANES))
        for beside, moves in ((False, segment.loads), (True, segment.loads_ahead)):
            for move in moves:
                state.write(move.map, pack_feature(move.whole(tensors)[move.window])[0], beside=beside)
        self._execute(state, list(self._check_chains(words, first)), len(words), observe)
        for move in segment.stores:
            keep(move, state.read(move.map)[None], tensors)

    def _check_chains(self, words: tuple[Instruction, ...], first: int) -> Sequence[tuple[list[ChainStage], bool]]:
        """The chains, each with whether its map is at the Fmap DTCM's low end. Raises as the simulators do."""
        found: list[tuple[list[ChainStage], bool]] = []
        low = True
        for chain in chains(words, first):
            check(chain, self.machine, low)
            found.append((chain, low))
            low = low if "dst" in chain[-1].operands or chain[-1].leaves else not low
        return found

    def _execute(
        self,
        state: State,
        program: Sequence[tuple[list[ChainStage], bool]],
        count: int,
        observe: WordObserver | None,
    ) -> None:
        """Runs the chains; if results are observed, with a pause after every chain."""
        board, port = state.board, state.board.port
        if not count:  # an initialisation
            return
        board.forget()
        board.set_register(port.CONTROL, count | ((observe is not None) << port.PAUSE))
        for number, (chain, low) in enumerate(program if observe is not None else program[:1]):
            if number:
                board.set_register(port.RESUME, 0)
            board.run(watched=observe is not None)
            if observe is not None:
                self._observe(state, chain, low, board.seen(), observe)
        status = board.register(port.STATUS)
        if program and status & ~(1 << port.PAUSED):
            raise ArtefactError("E503", f"the core stops with status {status:#x}")
        ends = board.chain_ends()
        self.cycles += [int(each) for each in np.diff([0, *ends])]
        if status & (1 << port.PAUSED):
            board.set_register(port.RESUME, 0)
            board.run()

    def _observe(
        self, state: State, chain: Sequence[ChainStage], low: bool, seen: Array, observe: WordObserver
    ) -> None:
        """Reports the int8 results of a chain's words, from the PEs' outputs; those of a reshape from its map."""
        for position, stage in enumerate(chain):
            if stage.keeps:
                continue
            shape = (stage.word.Ho, stage.word.Wo, groups(stage.word.Co), LANES)
            if stage.reshape is not None:
                result = state.read(stage.ofmap(self.machine, not low))
            else:
                result = np.zeros(shape, np.int8)
                of_word = seen[seen["stage"] == position]
                result[of_word["row"], of_word["column"], of_word["group"]] = of_word["lanes"]
            observe(stage.number, result.reshape(1, *shape[:2], -1)[..., : stage.word.Co])
        state.board.library.easynpu_forget_seen(state.board.handle)


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
