"""Runs a BM1684 program sample by sample: writes inputs to system memory, makes the calls, reads outputs.

To observe layers, the table gets a call at the end of each that stores its tensor after the program's own regions.

The vendor's chip model, which runs in a child process, is libbackend_bm1684.so of the PyPI package tpu_mlir
(docs/bm1684.md says how to get it). Nothing of it is part of npuc.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from math import prod
from mmap import PAGESIZE
from pathlib import Path

import numpy as np

from npuc.errors import ArtefactError
from npuc.frozen import frozen
from npuc.host.step import HostStep, outputs_among
from npuc.ir import Array
from npuc.program import Program, count_of
from npuc.storage.mapped import Content, contents_of, keep, pieces_of, place_of, release, size_of, view_of
from npuc.storage.records import damage_error
from npuc.system import interrupts
from npuc.system.budget import expect_simulable
from npuc.target import Observer
from npuc.targets.bm1684.lowering.kernel import Arg, Call, SystemPlace
from npuc.targets.bm1684.machine.local_memory import (
    Dim4,
    Position,
    ceil_div,
    okk_128_byte_aligned_stride_for_32bit,
)
from npuc.targets.bm1684.machine.parameters import SYSTEM_START, Machine
from npuc.targets.bm1684.program.artefact import (
    ELEMENT,
    Contents,
    KernelPort,
    Observed,
    of_words,
    table_of,
    to_words,
)
from npuc.targets.bm1684.program.table import LAYER, TABLE_FILE, line
from npuc.targets.bm1684.simulate import simulator
from npuc.targets.bm1684.simulate.simulator import MappedPiece
from npuc.text.terminal import page

PAGE = 4096
"""Regions of system memory start at multiples of this."""


class Runner:
    """A program on one of the chip models.

    Raises ArtefactError (E502) if the artefact is not one that npuc wrote.
    """

    def __init__(self, program: Program, chip_model: str) -> None:
        self.contents, self.chip_model = Contents.of(program.manifest), chip_model
        self.observed, self.files = Contents.read_observed(program.manifest), program.files
        self.outputs = program.outputs
        table_of(program)
        self.dtypes = {port.name: port.dtype for port in program.outputs}
        """The types of outputs; a quantised model's 8-bit integers are fp32 numbers in the machine."""
        self.starts: dict[str, int] = {}
        self.bytes = 0
        for region in self.contents.regions:
            self.starts[region.name] = self.bytes
            self.bytes += ceil_div(region.bytes, PAGE) * PAGE
        self.pieces = {name: _map_pieces(content) for name, content in contents_of(self.files).items()}
        """The content of every file; of a heavy one, in a file that is mapped."""
        self.last: Mapping[str, Array] | None = None
        """The inputs of the last sample."""
        self.counted: int | None = None
        """Its cycles, if it ran without stores of results."""

    @property
    def cycles(self) -> int | None:
        """Cycles of the last sample, without stores of layers' results; None before the first."""
        if self.counted is None and self.last is not None:
            self._sample(self.last, None)
        return self.counted

    def __call__(self, feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
        """Outputs (samples, *shape) for inputs (samples, *shape)."""
        count, tensors = count_of(feeds), dict(feeds)
        waiting = self._run_host_steps(self.contents.steps, tensors)
        wanted = [each.tensor for each in self.contents.placements if each.direction == "input"]
        if missing := sorted({*wanted} - tensors.keys()):
            raise damage_error("no step gives this input", tensor=missing[0])
        samples = [{name: tensors[name][index] for name in wanted} for index in range(count)]
        observation = self._observation() if observe is not None else None
        found = [self._sample(feed, observation) for feed in samples]
        results = [outputs for outputs, _ in found]
        if observe is not None:
            shown = [layers for _, layers in found]
            integers = self.contents.is_int8
            if integers:  # also what lies in system memory alone, joined from slices
                shown = [{**outputs, **layers} for outputs, layers in found]
            for name in shown[0]:
                if integers or name not in results[0]:
                    observe(name, np.stack([each[name] for each in shown]))
            for name, values in tensors.items():
                if name not in feeds and values.dtype == np.int8:
                    observe(name, values)
        tensors |= {name: np.stack([result[name] for result in results]) for name in results[0]}
        if self._run_host_steps(waiting, tensors):
            raise damage_error("no step gives an output")
        return outputs_among(tensors, self.outputs)

    def _run_host_steps(self, steps: Sequence[HostStep], tensors: dict[str, Array]) -> list[HostStep]:
        """Runs the host steps whose operands exist; returns the others."""
        waiting: list[HostStep] = []
        for step in steps:
            if all(name in tensors for name in step.inputs):
                step.run(tensors)
            else:
                waiting.append(step)
        return waiting

    def _observation(self) -> _Observation:
        table, places = self.files[TABLE_FILE], self.contents.places
        return _Observation.of(table, self.observed, self.bytes, places, self.contents.machine)

    def _sample(
        self, feed: Mapping[str, Array], observation: _Observation | None
    ) -> tuple[dict[str, Array], dict[str, Array]]:
        """The outputs and, with an observation, the results of all layers.

        The observation's stores change nothing that the program reads: the outputs are those of the program alone.
        """
        with tempfile.TemporaryDirectory(prefix="npuc-") as folder:
            image = Path(folder) / "memory"
            parts = self._load(image, max(observation.bytes if observation else self.bytes, 1))
            memory = np.memmap(image, np.uint8, "r+")
            self._fill(memory, feed)
            cycles = self._run(image, parts, observation)
            self.last, self.counted = feed, None if observation else cycles
            return self._results(memory), observation.values(memory) if observation else {}

    def _results(self, memory: Array) -> dict[str, Array]:
        """The outputs in system memory."""
        return {
            place.tensor: of_words(self._bytes(memory, place), place.shape, place.dtype).astype(self._dtype(place))
            for place in self.contents.placements
            if place.direction == "output"
        }

    def _dtype(self, place: KernelPort) -> str:
        """The type in which an output is returned."""
        return self.dtypes.get(place.tensor, "float32") if place.dtype == "float32" else "int8"

    def _load(self, image: Path, size: int) -> list[MappedPiece]:
        """Writes an image of system memory of `size` bytes with the program's files, except the parts returned."""
        mapped: list[MappedPiece] = []
        with image.open("wb") as file:
            file.truncate(size)  # a sparse file
            for region in self.contents.regions:
                at = self.starts[region.name]
                behind = at + region.bytes
                changing = any(each.region == region.name for each in self.contents.placements)
                for piece in self.pieces.get(region.file or "", ()):
                    data = view_of(piece)[: behind - at]
                    part = self._part(piece, at, 0 if changing else len(data))
                    mapped += [part] if part.bytes else []
                    file.seek(at + part.bytes)
                    file.write(data[part.bytes :])
                    at += len(data)
                    release()
        return mapped

    def _part(self, piece: Array, at: int, size: int) -> MappedPiece:
        """The pages of a piece that npuc's own model maps to byte `at` of system memory; 0 bytes without any."""
        place = None if self.chip_model == "vendor" else place_of(piece)
        if place is None or at % PAGESIZE or place.offset % PAGESIZE:
            return MappedPiece(at, Path(), 0, 0)
        return MappedPiece(at, place.file, place.offset, size // PAGESIZE * PAGESIZE)

    def _fill(self, memory: Array, feed: Mapping[str, Array]) -> None:
        """Writes inputs to system memory."""
        for place in self.contents.placements:
            if place.direction == "input":
                shape = feed[place.tensor].shape
                if shape != place.shape:
                    raise damage_error(f"'{place.tensor}' has the shape {list(shape)}")
                self._bytes(memory, place)[:] = to_words(feed[place.tensor], place.dtype)

    def _run(self, image: Path, parts: Sequence[MappedPiece], observation: _Observation | None) -> int:
        """Makes the calls on system memory; returns their cycles."""
        table = observation.table if observation else self.files[TABLE_FILE]
        addresses = [SYSTEM_START + start for start in (*self.starts.values(), self.bytes)]
        arguments = np.array(addresses, "<u8").tobytes()
        if self.chip_model == "vendor":
            return carry_out(table, arguments, image)
        return simulator.carry_out(table, arguments, image, self.contents.machine, parts).cycles

    def _bytes(self, memory: Array, place: KernelPort) -> Array:
        start = self.starts[place.region] + place.address
        return memory[start : start + place.bytes]


def _map_pieces(content: Content) -> list[Array]:
    """The pieces of a content, in files that are mapped if they are heavy."""
    filled = (each for each in pieces_of(content) if size_of(each))
    return [keep(np.frombuffer(each, np.uint8) if isinstance(each, bytes) else each) for each in filled]


SHOWN = "shown"
"""The region after the program's own."""


@frozen
class _Observation:
    """The table that stores all results, and where each tensor is then in system memory."""

    table: bytes
    starts: Mapping[str, int]
    bytes: int
    """Bytes of system memory, including the program's own."""
    tensors: tuple[Observed, ...]

    @classmethod
    def of(
        cls, table: bytes, tensors: Sequence[Observed], start: int, places: Sequence[str], machine: Machine
    ) -> _Observation:
        """Adds the stores to a table. start: the program's bytes of system memory, after which the stores go.

        Raises ArtefactError (E509) above the memory limit.
        """
        starts: dict[str, int] = {}
        end = start
        for each in tensors:
            starts[each.tensor] = end
            end += ceil_div(ELEMENT * prod(each.words), PAGE) * PAGE
        expect_simulable(end, "system memory with the result of every layer")
        stores = {
            f"{LAYER} {each.layer}".encode(): line(
                _store(each, starts[each.tensor] - start, machine), [*places, SHOWN], machine
            ).encode()
            for each in tensors
        }
        lines = (stores.get(text, text) for text in table.split(b"\n"))
        return cls(b"\n".join(lines), starts, end, tuple(tensors))

    def values(self, memory: Array) -> dict[str, Array]:
        """Every tensor, in its shape in the graph, from system memory (bytes,) uint8 after the run."""
        found: dict[str, Array] = {}
        for each in self.tensors:
            part = memory[self.starts[each.tensor] :][: ELEMENT * prod(each.words)]
            found[each.tensor] = of_words(part, each.shape, each.dtype)
        return found


def _store(each: Observed, offset: int, machine: Machine) -> Call:
    """The call that stores a tensor."""
    shape, at, to = Dim4(*each.local_shape), Position(each.npu, each.offset), SystemPlace(SHOWN, offset)
    if prod(shape) == prod(each.words):
        _, c, h, w = shape
        stride = okk_128_byte_aligned_stride_for_32bit(each.npu, shape, machine)
        args: tuple[Arg, ...] = (to, at, shape, Dim4(c * h * w, h * w, w, 1), stride)
        return Call("gdma_32bit_cpy_L2S", args)
    columns = each.words[-1]
    return Call("gdma_32bit_matrix_L2S", (to, at, shape.n, columns, shape.w, columns))


LIBRARY = "libbackend_bm1684.so"
VARIABLE = "NPUC_OKK_LIBS"
CHILD = Path(__file__).with_name("vendor_run.py")
LOG = simulator.MODEL / "vendor_log.c"


def library(folder: str | None = None) -> Path:
    """The vendor's library in a folder, or in the one that NPUC_OKK_LIBS names.

    Raises ArtefactError (E507) if it is not there.
    """
    wanted = folder or os.environ.get(VARIABLE)
    known = page("bm1684.md")
    remedy = f"unpack the package tpu_mlir and name its lib folder with {VARIABLE} ({known})"
    if not wanted:
        raise ArtefactError("E507", "the vendor's chip model is not at hand", remedy=remedy)
    found = Path(wanted) / LIBRARY
    if not found.is_file():
        raise ArtefactError("E507", f"there is no {LIBRARY} in {wanted}", remedy=remedy)
    return found.resolve()


def carry_out(table: bytes, arguments: bytes, image: Path, folder: str | None = None) -> int:
    """Runs a table, with the addresses of its regions, on a file that is system memory; returns its cycles.

    Raises ArtefactError: E507 without the library or a compiler, E503 if the vendor's model refuses a call.
    """
    wanted, file = library(folder), image.with_name("table")
    file.write_bytes(table)
    kernels = simulator.interpreting_library(image.parent)
    return call_library(wanted, kernels, f"@{file}", arguments, image)


def call_library(wanted: Path, kernels: Path, kernel: str, arguments: bytes, image: Path) -> int:
    """Runs a kernel of a library, which changes the image; returns its cycles."""
    log = image.with_name("log")
    log.mkdir()
    libraries = (simulator.shared_library({LOG.name: LOG.read_bytes()}, log), wanted)
    paths = {"arguments": image.with_name("arguments"), "memory": image, "cycles": image.with_name("cycles")}
    paths["arguments"].write_bytes(arguments or b"\0")
    given = [*map(str, (*libraries, kernels)), kernel, *map(str, paths.values()), str(SYSTEM_START)]
    done = interrupts.run([sys.executable, str(CHILD), *given])
    if done.returncode or not paths["cycles"].is_file():
        raise _refusal(done)
    return int(paths["cycles"].read_text(encoding="ascii"))


def _refusal(done: subprocess.CompletedProcess[str]) -> ArtefactError:
    lines = (done.stdout + done.stderr).splitlines()
    asserted = [line.rpartition("/")[2] for line in lines if line.startswith("ASSERT")]
    reason = asserted[0] if asserted else (lines or [f"exit code {done.returncode}"])[-1]
    return ArtefactError("E503", f"the vendor's chip model refuses the program: {reason}")
