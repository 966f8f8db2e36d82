"""A program with what its segments load and store: as test programs of NVDLA's environment, as a self test in C.

A test program is one segment, with CRC-32 of its results. The input is one image-like sample from a fixed seed:
noise around zero would hide different rounding rules. Memory contents before a segment and its results are those
of the functional model. Each segment runs from reset: what earlier ones set once is set again, and every block
begins with group 0. Before it is returned, each test program is run once more as written.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path

from npuc.errors import ArtefactError
from npuc.host.c_text import sources, vectors
from npuc.ir import Array, TensorType
from npuc.program import Program
from npuc.samples.loading import varied_samples
from npuc.target import Observer
from npuc.targets.nvdla import model
from npuc.targets.nvdla.emission import BRIDGE
from npuc.targets.nvdla.export.c_export import SOURCES
from npuc.targets.nvdla.formats.precision import round_to_precision
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.machine.registers import (
    SEQUENTIAL,
    VERILATOR,
    Command,
    Poll,
    RegisterMap,
    Wait,
    Write,
    register_map,
)
from npuc.targets.nvdla.model import ChipModel
from npuc.targets.nvdla.program.artefact import Produced, Segment, TensorMove
from npuc.targets.nvdla.program.running import Runner
from npuc.targets.nvdla.trace import CrcCheck, Trace, write_files

SEED = 0
NAME = "trace"
SLACK, SHORTEST = 3, 2000
"""The multiple of its modelled clocks that an operation may take, and clocks added for short ones."""
FLYING = 2
"""Operations of a block that may run or be queued: it is idle once they have ended."""


class _ProgramRecorder(Runner):
    """A runner that records every segment as a test program."""

    def __init__(self, program: Program, player: str) -> None:
        super().__init__(program)
        self.player = player
        self.clocks = _clocks(program, self.contents.operations) if player == VERILATOR else ()
        self.traces: list[Trace] = []
        self.moves: list[Segment] = []

    def _segment(
        self, segment: Segment, nvdla: ChipModel, tensors: dict[str, Array], observe: Observer | None
    ) -> None:
        for move in segment.loads:
            self._load(move, nvdla.memory, tensors)
        before = [(address, data.tobytes()) for address, data in nvdla.memory.regions]
        super()._segment(segment, nvdla, tensors, observe)
        machine = self.contents.machine
        places = [_place(move, machine) for move in segment.stores]
        if self.player == VERILATOR:  # it checks one region for each interrupt
            first, behind = min(at for at, _ in places), max(at + size for at, size in places)
            places = [(first, behind - first)]
        checks = [CrcCheck(at, size, zlib.crc32(nvdla.memory.read(at, size))) for at, size in places]
        end = segment.start + segment.count
        commands = from_reset(
            register_map(machine.registers), self.commands[: segment.start], self.commands[segment.start : end]
        )
        name = f"{NAME}_{len(self.traces)}"
        waits = [at for at in range(segment.start, end) if isinstance(self.commands[at], Wait)]
        clocks = tuple(_most_clocks(self.clocks, at) for at in waits) if self.clocks else ()
        found = Trace(name, machine.registers, tuple(commands), tuple(before), tuple(checks), clocks)
        self.traces.append(found)
        self.moves.append(segment)


def _clocks(program: Program, operations: Sequence[Produced]) -> Sequence[tuple[int, int]]:
    """The first command of every operation, and the clocks that it may take: a share of its layer's."""
    layers = sorted((row["instruction"], row["cycles"], row["jobs"]) for row in program.report["layers"])
    found: list[tuple[int, int]] = []
    for each in operations:
        _, cycles, jobs = next(row for row in reversed(layers) if row[0] <= each.start)
        found.append((each.start, SLACK * cycles // jobs + SHORTEST))
    return found


def _most_clocks(clocks: Sequence[tuple[int, int]], command: int) -> int:
    """The most clocks that the operations still running at a command may take together."""
    return sum([taken for start, taken in clocks if start <= command][-FLYING:])


def _place(move: TensorMove, machine: Machine) -> tuple[int, int]:
    """Address and size of a tensor's cube."""
    return move.place.address, move.bytes(machine)


def from_reset(registers: RegisterMap, earlier: Sequence[Command], commands: Sequence[Command]) -> list[Command]:
    """The commands of a segment, changed so that they run from reset without the earlier ones.

    Earlier writes to registers that exist once come first. Polls precede the first OP_ENABLE, as in NVDLA's own
    test programs, whose player soon gives up: by then the CBUF has been flushed. Blocks that would begin with
    group 1 have their groups swapped, as group 0 runs first after reset.
    """
    first: dict[str, int] = {}
    for each in commands:
        if isinstance(each, Write) and registers.register_at(each.address).name == "S_POINTER":
            first.setdefault(registers.register_at(each.address).block, each.value & 1)
    once = [each for each in earlier if not isinstance(each, Wait) and _exists_once(registers, each)]
    every = [*once, *(_swap_groups(registers, each, first) for each in commands)]
    polls = [each for each in every if isinstance(each, Poll)]
    others = [each for each in every if not isinstance(each, Poll)]
    enables = (at for at, each in enumerate(others) if _enables(registers, each))
    start = next(enables, len(others))
    return [*others[:start], *polls, *others[start:]]


def _exists_once(registers: RegisterMap, command: Write | Poll) -> bool:
    """Whether a register keeps its value for later operations: it has no groups and is not a group pointer.

    BDMA's registers do not count: they describe the next copy, and earlier segments have finished theirs.
    """
    register = registers.register_at(command.address)
    return not register.of_group and register.name != "S_POINTER" and register.block != BRIDGE


def _enables(registers: RegisterMap, command: Command) -> bool:
    """Whether a command enables a block."""
    return isinstance(command, Write) and registers.register_at(command.address).name == "D_OP_ENABLE"


def _swap_groups(registers: RegisterMap, command: Command, first: Mapping[str, int]) -> Command:
    """The command with the groups of its block swapped if the block would begin with group 1."""
    match command:
        case Wait(source, group) if source is not None:
            return Wait(source, group ^ first.get(source, 0))
        case Write(address, value) if registers.register_at(address).name == "S_POINTER":
            return Write(address, value ^ first[registers.register_at(address).block])
        case _:
            return command


def traces(program: Program, player: str = SEQUENTIAL) -> dict[str, bytes]:
    """The files of all segments for one of commands.PLAYERS, and map.json with the places of their tensors.

    Raises ArtefactError (E506) for a segment that depends on registers left by an earlier one.
    """
    recorder = _ProgramRecorder(program, player)
    inputs = {port.name: TensorType(port.shape, port.dtype) for port in program.inputs}
    recorder(varied_samples(inputs, 1, SEED).inputs)
    files: dict[str, bytes] = {}
    for each in recorder.traces:
        _expect_self_contained(each, recorder.contents.machine)
        files |= write_files(each, player)
    machine = recorder.contents.machine
    entries = [
        {"program": f"{each.name}.cfg", "loads": _map(moves.loads, machine), "stores": _map(moves.stores, machine)}
        for each, moves in zip(recorder.traces, recorder.moves, strict=True)
    ]
    return {**files, "map.json": (json.dumps(entries, indent=2) + "\n").encode()}


def _expect_self_contained(trace: Trace, machine: Machine) -> None:
    """Raises ArtefactError (E506) if a test program run from reset does not give its results."""
    try:
        after = model.run(machine, trace.commands, trace.memory())
        holds = all(check.holds(after) for check in trace.checks)
    except ArtefactError:
        holds = False
    if not holds:
        raise ArtefactError(
            "E506",
            f"segment {trace.name} does not run on its own: it needs what an earlier one has left in NVDLA",
            remedy="export a network whose host steps stand at its beginning and end",
        )


def _map(moves: tuple[TensorMove, ...], machine: Machine) -> list[Mapping[str, str | int | list[int] | None]]:
    return [
        {
            "tensor": move.tensor,
            "shape": list(move.shape),
            "address": move.place.address,
            "bytes": move.bytes(machine),
            "pixels": move.place.pixels or None,
            "line_stride": move.place.line_stride,
            "surface_stride": move.place.surface_stride,
        }
        for move in moves
    ]


FOLDER = Path(__file__).parent / "c_self_test"
MAKE = """
# The same with the samples and the comparison of npuc_self_test.h
OBJECTS += npuc_self_test.o npuc_vectors.o
HEADERS += npuc_self_test.h
"""


class _MoveRecorder(Runner):
    """A runner that records what segments load and store, in the form npuc_put takes."""

    def __init__(self, program: Program) -> None:
        super().__init__(program)
        self.pairs: list[tuple[list[Array], list[Array]]] = []

    def _segment(
        self, segment: Segment, nvdla: ChipModel, tensors: dict[str, Array], observe: Observer | None
    ) -> None:
        loads = _values(segment.loads, tensors)
        super()._segment(segment, nvdla, tensors, observe)
        self.pairs.append((loads, _values(segment.stores, tensors)))


def _values(moves: Sequence[TensorMove], tensors: Mapping[str, Array]) -> list[Array]:
    return [
        round_to_precision(tensors[move.tensor].reshape(move.map_shape), move.place.precision) for move in moves
    ]


def self_test_files(program: Program, inputs: Mapping[str, Array]) -> dict[str, bytes]:
    """npuc_vectors.c, the comparison, and a Makefile that builds both.

    inputs: (samples, *shape) by name. Expected values come from the functional model, which reads only the
    artefact. Raises ArtefactError (E506) for fp16 programs that the model does not compute bit-exactly.
    """
    recorder = _MoveRecorder(program)
    recorder.expect_exact("export a part of the network, or in int8")
    recorder(inputs)
    segments = len(recorder.contents.segments)
    count = len(recorder.pairs) // segments if segments else 0
    makefile = (SOURCES / "Makefile").read_text().replace("\nlibnpuc.a:", MAKE + "\nlibnpuc.a:", 1)
    return {
        **sources(FOLDER),
        "npuc_vectors.c": vectors(program.model.name, recorder.pairs, ("npuc_sample_count", count)),
        "Makefile": makefile.encode(),
    }
