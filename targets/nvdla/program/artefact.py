"""The contents of an NVDLA program besides its weights: steps of the host and commands of the driver.

A program is a list of steps. A host step computes one operator on host tensors; a segment writes tensors to
memory, issues the commands of some operations, and reads tensors back. `registers.bin` contains the commands as
records of four 32-bit words, little endian: kind (0 write, 1 poll, 2 wait), byte address, mask, value. A wait is
for bits of GLB.S_INTR_STATUS, which the driver then clears. As files, a program is these records and its memory,
as they are or for $readmemh, with a map of their contents.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import numpy as np

from npuc.errors import ArtefactError, EncodingError
from npuc.frozen import frozen
from npuc.host.step import HostStep, steps_of
from npuc.program import Program, canonical_json
from npuc.storage import readmemh
from npuc.storage.records import damage_error, read, recorded_machine
from npuc.system.budget import expect_room, expect_simulable, read_file
from npuc.targets.nvdla.emission.describing import Described
from npuc.targets.nvdla.firmware import descriptors as of
from npuc.targets.nvdla.firmware.structures import assemble, numbers_of, pack
from npuc.targets.nvdla.formats.feature import Cube
from npuc.targets.nvdla.formats.pixels import FORMATS, PixelFormat
from npuc.targets.nvdla.machine.parameters import SRAM_BASE, Machine
from npuc.targets.nvdla.machine.registers import (
    RECORD_BYTES,
    Command,
    Poll,
    RegisterMap,
    Wait,
    Write,
    register_map,
)

WRITE, POLL, WAIT = range(3)
RECORD = np.dtype("<u4")
STATUS = "GLB.S_INTR_STATUS"
LARGEST = 1 << 31
"""The most bytes of memory that a program may ask for."""
COPIES = 8
"""Elements of a tensor count this many times against the limit: results of several samples are kept at once."""
MOST_LANES = 1 << 16
"""The most lanes of a cube: registers for channel counts have fewer bits."""


@frozen
class CubePlace:
    """A tensor's feature cube or image in memory, strides in bytes; channel lanes as runs (first, count)."""

    address: int
    line_stride: int
    surface_stride: int
    lanes: tuple[tuple[int, int], ...]
    precision: str = "int8"
    pixels: str = ""
    """The format of an image (table 33), whose lanes are pixel components; empty for a feature cube."""

    @property
    def lane_numbers(self) -> list[int]:
        """The lane of every channel."""
        return [lane for first, count in self.lanes for lane in range(first, first + count)]


@frozen
class TensorMove:
    """A tensor and its place in memory; an fp16 tensor is float32 on the host and converted on the way."""

    tensor: str
    shape: tuple[int, ...]
    """(1, C, H, W) or (1, C)."""
    place: CubePlace

    @property
    def map_shape(self) -> tuple[int, int, int]:
        """(C, H, W)."""
        channels, height, width = (*self.shape[1:], 1, 1)[:3]
        return channels, height, width

    def bytes(self, machine: Machine) -> int:
        """Bytes from the start to the end of the tensor. Raises ArtefactError (E502) for an invalid entry."""
        if self.place.pixels:
            return len(self.image().planes) * self.map_shape[1] * self.place.line_stride
        return self.cube(machine).bytes

    @property
    def _has_map_shape(self) -> bool:
        """Whether the shape can be that of a map."""
        known = 2 <= len(self.shape) <= 4 and min(self.shape) > 0 and prod(self.shape) <= LARGEST
        return known and prod(self.shape) == prod(self.map_shape)

    def image(self) -> PixelFormat:
        """The pixel format of an image, plane behind plane. Raises ArtefactError (E502) for an invalid entry."""
        form, place = FORMATS.get(self.place.pixels), self.place
        if form is None or not self._has_map_shape:
            raise damage_error(f"{self}")
        channels, height, width = self.map_shape
        line = width * max(plane.pixel_bytes for plane in form.planes)
        apart = len(form.planes) > 1 and place.surface_stride != height * place.line_stride
        if apart or channels > form.channels or place.lanes != ((0, channels),) or place.line_stride < line:
            raise damage_error(f"{self}")
        return form

    def cube(self, machine: Machine) -> Cube:
        """The feature cube of all lanes. Raises ArtefactError (E502) for an invalid entry."""
        if not self._has_map_shape:
            raise damage_error(f"{self}")
        channels, height, width = self.map_shape
        runs = self.place.lanes
        few = sum(count for _, count in runs) == channels and all(
            first + count <= MOST_LANES for first, count in runs
        )
        lanes = self.place.lane_numbers if few and min((count for _, count in runs), default=0) > 0 else []
        if self.place.precision not in machine.precisions:
            raise damage_error(f"{machine.name} has no {self.place.precision}")
        if len(lanes) != channels or min(lanes, default=-1) < 0 or self.place.line_stride < width:
            raise damage_error(f"{self}")
        place = self.place
        strides = place.line_stride, place.surface_stride
        return Cube(width, height, max(lanes) + 1, place.precision, machine.atom_bytes, *strides)


@frozen
class Segment:
    """Loads, then the commands `start` to `start + count`, then stores."""

    loads: tuple[TensorMove, ...]
    start: int
    count: int
    stores: tuple[TensorMove, ...]


Step = HostStep | Segment


@frozen
class Produced:
    """What a range of commands does: the operation, its ONNX nodes, and the tensor complete afterwards."""

    start: int
    count: int
    operation: str
    nodes: tuple[str, ...]
    result: TensorMove | None


@frozen
class Engine:
    """What one engine does of an operation: the firmware's descriptors, by the names of their numbers."""

    engine: int
    op: Mapping[str, Any]
    surfaces: Mapping[str, Any]
    lut: int | None
    """Index into the manifest's tables."""
    behind: bool
    reciprocals: tuple[int, int] | None
    mixed: str


def engines_as_json(operations: Iterable[Iterable[Described]]) -> dict[str, Any]:
    """The manifest's entries `engines`, by operation, and `tables`."""
    tables: dict[of.Lut, int] = {}
    entries = [
        [
            vars(
                Engine(
                    each.engine, numbers_of(each.op), numbers_of(each.surfaces),
                    None if each.lut is None else tables.setdefault(each.lut, len(tables)),
                    each.behind, each.reciprocals, each.mixed,
                )
            )
            for each in operation
        ]
        for operation in operations
    ]  # fmt: skip
    return {"engines": entries, "tables": [numbers_of(each) for each in tables]}


def _read_engine(engine: Engine, tables: Sequence[Mapping[str, Any]]) -> Described:
    """The descriptors of an entry. Raises ArtefactError (E502) if npuc did not write it."""
    if engine.engine not in of.OPERATIONS or not -1 < (engine.lut or 0) < max(len(tables), 1):
        raise damage_error(f"engine {engine.engine} with table {engine.lut} of {len(tables)}")
    kinds = of.OPERATIONS[engine.engine]
    try:
        op, surfaces = assemble(kinds[0], engine.op), assemble(kinds[1], engine.surfaces)
        lut = None if engine.lut is None else assemble(of.Lut, tables[engine.lut])
        for each in (op, surfaces, lut or of.Lut()):
            pack(each)
    except EncodingError as error:
        raise damage_error(f"engines: {error.problems[0].reason}") from error
    return Described(engine.engine, op, surfaces, lut, engine.behind, engine.reciprocals, engine.mixed)


@frozen
class Image:
    """A file's bytes at an address in memory."""

    file: str
    address: int

    def data(self, files: Mapping[str, bytes]) -> bytes:
        """The bytes. Raises ArtefactError (E502) if the file is missing."""
        if self.file not in files:
            raise damage_error(f"no file '{self.file}'")
        return files[self.file]


@frozen
class Dram:
    """The program's memory, from `base` on, with its contents before the first step."""

    base: int
    bytes: int
    images: tuple[Image, ...]


@frozen
class Contents:
    """The parts of a manifest that the simulator needs."""

    steps: tuple[Step, ...]
    operations: tuple[Produced, ...]
    dram: Dram
    machine: Machine

    @classmethod
    def of(cls, manifest: Mapping[str, Any]) -> Contents:
        """Raises ArtefactError (E502) if npuc did not write the manifest."""
        steps, machine = steps_of(manifest, Segment), recorded_machine(manifest, Machine.of)
        dram = read(Dram, manifest.get("dram"), "dram")
        if not 0 < dram.bytes <= LARGEST or not 0 <= dram.base < 1 << 40:
            raise damage_error(f"dram has {dram.bytes} bytes at {dram.base}")
        found = cls(steps, read(tuple[Produced, ...], manifest.get("operations"), "operations"), dram, machine)
        for move in found.moves:
            move.bytes(machine)
        expect_simulable(dram.bytes, "its memory")
        expect_simulable(COPIES * max((prod(each.shape) for each in found.moves), default=0), "a tensor")
        return found

    @property
    def registers(self) -> RegisterMap:
        """The registers of the machine."""
        return register_map(self.machine.registers)

    def commands(self, program: Program) -> list[Command]:
        """The commands of the program that has this manifest. Raises ArtefactError (E502) for damaged records."""
        return decode(program.files.get("registers.bin", b""), self.registers)

    def engines(self, program: Program, segment: Segment) -> list[Described]:
        """What the engines do in a segment, in order. Raises ArtefactError (E502) for damaged entries."""
        entries = read(tuple[tuple[Engine, ...], ...], program.manifest.get("engines"), "engines")
        tables = read(tuple[Mapping[str, Any], ...], program.manifest.get("tables"), "tables")
        if len(entries) != len(self.operations):
            raise damage_error(f"{len(entries)} engines of {len(self.operations)} operations")
        end = segment.start + segment.count
        inside = [segment.start <= each.start < end for each in self.operations]
        return [
            _read_engine(each, tables)
            for entry, used in zip(entries, inside, strict=True)
            if used
            for each in entry
        ]

    @property
    def segments(self) -> list[Segment]:
        """The steps that run on the machine."""
        return [step for step in self.steps if isinstance(step, Segment)]

    @property
    def moves(self) -> Iterator[TensorMove]:
        """Every tensor in memory, once for each entry of the manifest."""
        for segment in self.segments:
            yield from (*segment.loads, *segment.stores)
        yield from (each.result for each in self.operations if each.result is not None)


def encode(commands: Iterable[Command], registers: RegisterMap) -> bytes:
    """The records of commands."""
    return np.array([_record(each, registers) for each in commands], RECORD).tobytes()


def _record(command: Command, registers: RegisterMap) -> tuple[int, int, int, int]:
    match command:
        case Write(address, value):
            return WRITE, address, 0xFFFFFFFF, value
        case Poll(address, mask, value):
            return POLL, address, mask, value
        case Wait(source, group):
            status = registers[STATUS]
            bit = 1 << status.places[f"{source}_DONE_STATUS{group}"].low
            return WAIT, status.address, bit, bit


DECODED = 64
"""Approximate bytes of a decoded command and its description, per record."""


def decode(data: bytes, registers: RegisterMap) -> list[Command]:
    """The commands of records. Raises ArtefactError (E502) for an invalid one, ModelError (E110) for too many."""
    expect_room(len(data) * DECODED, "the commands")
    known: dict[tuple[int, ...], Command] = {}  # most writes are repeated often
    commands: list[Command] = []
    for number, record in enumerate(map(tuple, records_of(data))):
        if record not in known:
            known[record] = _command(number, record, registers)
        commands.append(known[record])
    return commands


def records_of(data: bytes) -> Sequence[Sequence[int]]:
    """Kind, address, mask and value of every record. Raises ArtefactError (E502) for an incomplete one."""
    if len(data) % RECORD_BYTES:
        raise ArtefactError("E502", f"the register program has {len(data)} bytes", limit="records of 16 bytes")
    words = np.frombuffer(data, RECORD)
    records: Sequence[Sequence[int]] = words.reshape(-1, RECORD_BYTES // RECORD.itemsize).tolist()
    return records


def _command(number: int, record: Sequence[int], registers: RegisterMap) -> Command:
    kind, address, mask, value = record
    if kind == WRITE:
        return Write(address, value)
    if kind == POLL:
        return Poll(address, mask, value)
    sources = {1 << place.low: name for name, place in registers[STATUS].places.items() if "_DONE_" in name}
    if kind != WAIT or value not in sources:
        raise ArtefactError(
            "E502", f"record {number} of the register program is {list(record)}", limit="write, poll or wait"
        )
    source, _, group = sources[value].partition("_DONE_STATUS")
    return Wait(source, int(group))


def memory_files(program: Program, form: str) -> dict[str, bytes]:
    """Registers, memory and map.json.

    bin: the program's own files; map.json has the byte address of each image. readmemh: a line of registers.hex is
    a record, most significant digit first: value, mask, byte address, kind (0 write, 1 poll, 2 wait). A line of
    dram.hex is an atom of the machine; `@` counts atoms from the beginning of the memory, which is 0 elsewhere. A
    second memory is empty before the program runs.
    """
    contents = Contents.of(program.manifest)
    if form == "bin":
        images = [{"file": each.file, "address": each.address} for each in contents.dram.images]
        return {**program.files, "map.json": _memory_map(program, contents, "registers.bin", {"images": images})}
    dram, atom = contents.dram, contents.machine.atom_bytes
    placed = [(each.address - dram.base, each.data(program.files)) for each in dram.images]
    return {
        "registers.hex": readmemh.image_text(program.files.get("registers.bin", b""), RECORD_BYTES),
        "dram.hex": readmemh.memory_text(placed, atom),
        "map.json": _memory_map(program, contents, "registers.hex", {"file": "dram.hex", "word_bytes": atom}),
    }


def _memory_map(program: Program, contents: Contents, registers: str, dram: Mapping[str, Any]) -> bytes:
    """map.json: steps with the places of inputs and outputs, the registers' file, what memory holds."""
    described = {key: program.manifest.get(key) for key in ("target", "machine", "steps")}
    described |= {
        "registers": {"file": registers, "word_bytes": RECORD_BYTES},
        "dram": {**dram, "base": contents.dram.base, "bytes": contents.dram.bytes},
    }
    if contents.machine.sram_bytes:
        described["sram"] = {"base": SRAM_BASE, "bytes": contents.machine.sram_bytes}
    return canonical_json(described)


def read_commands(path: Path, registers: RegisterMap) -> list[Command]:
    """The commands of a lone file of records. Raises NpucError (E501, E502, E110) as `decode` does."""
    try:
        return decode(readmemh.image_of(read_file(path, "E501", readmemh.WORDS), RECORD_BYTES), registers)
    except ArtefactError as error:
        raise error.advising(readmemh.WORDS) from None
