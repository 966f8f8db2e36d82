"""What people see of an NVDLA program: headings, timeline, annotated files, and where tensors lie."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any

import numpy as np

from npuc.frozen import frozen
from npuc.host.step import HostStep
from npuc.ir import Array
from npuc.program import Program
from npuc.storage.bits import named_fields
from npuc.storage.records import damage_error, read
from npuc.target import Stored
from npuc.targets.nvdla.formats import feature
from npuc.targets.nvdla.formats.precision import HOST_DTYPES
from npuc.targets.nvdla.machine.parameters import SRAM_BASE
from npuc.targets.nvdla.machine.registers import RECORD_BYTES, RESERVED, Command, Register, RegisterMap, Write
from npuc.targets.nvdla.program.artefact import Contents, Produced, TensorMove
from npuc.text.terminal import count
from npuc.view import Activity, BufferUse, Heading, Line, MemoryAnnotation, Name, Timeline, host_line, names_of

POINTER = "S_POINTER"
"""Its lowest bit selects the ping-pong group that writes to a unit's D_ registers go to."""
FEWEST = 3
"""The fewest consecutive writes to one unit that get a heading."""
SOURCES = ("CDMA.D_DAIN_ADDR_LOW_0", "SDP_RDMA.D_SRC_BASE_ADDR_LOW", "PDP_RDMA.D_SRC_BASE_ADDR_LOW",
           "CDP_RDMA.D_SRC_BASE_ADDR_LOW", "RBK.D_DAIN_ADDR_LOW", "BDMA.CFG_SRC_ADDR_LOW")  # fmt: skip
RESULTS = ("SDP.D_DST_BASE_ADDR_LOW", "PDP.D_DST_BASE_ADDR_LOW", "CDP.D_DST_BASE_ADDR_LOW",
           "RBK.D_DAOUT_ADDR_LOW", "BDMA.CFG_DST_ADDR_LOW")  # fmt: skip
Extents = tuple[tuple[str, str], ...]
TAKEN: tuple[Extents, ...] = (
    (("CDMA.D_DATAIN_SIZE_1", "DATAIN_CHANNEL"), ("CDMA.D_DATAIN_SIZE_0", "DATAIN_HEIGHT"),
     ("CDMA.D_DATAIN_SIZE_0", "DATAIN_WIDTH")),
    (("PDP.D_DATA_CUBE_IN_CHANNEL", "CUBE_IN_CHANNEL"), ("PDP.D_DATA_CUBE_IN_HEIGHT", "CUBE_IN_HEIGHT"),
     ("PDP.D_DATA_CUBE_IN_WIDTH", "CUBE_IN_WIDTH")),
    (("CDP_RDMA.D_DATA_CUBE_CHANNEL", "CHANNEL"), ("CDP_RDMA.D_DATA_CUBE_HEIGHT", "HEIGHT"),
     ("CDP_RDMA.D_DATA_CUBE_WIDTH", "WIDTH")),
    (("SDP_RDMA.D_DATA_CUBE_CHANNEL", "CHANNEL"), ("SDP_RDMA.D_DATA_CUBE_HEIGHT", "HEIGHT"),
     ("SDP_RDMA.D_DATA_CUBE_WIDTH", "WIDTH")),
)  # fmt: skip
"""Fields with channels, rows and columns (minus 1) of an operation's input; the first set written counts."""
GIVEN: tuple[Extents, ...] = (
    (("PDP.D_DATA_CUBE_OUT_CHANNEL", "CUBE_OUT_CHANNEL"), ("PDP.D_DATA_CUBE_OUT_HEIGHT", "CUBE_OUT_HEIGHT"),
     ("PDP.D_DATA_CUBE_OUT_WIDTH", "CUBE_OUT_WIDTH")),
    (("SDP.D_DATA_CUBE_CHANNEL", "CHANNEL"), ("SDP.D_DATA_CUBE_HEIGHT", "HEIGHT"),
     ("SDP.D_DATA_CUBE_WIDTH", "WIDTH")),
)  # fmt: skip
"""The same for its result."""


def outline(program: Program) -> list[Heading]:
    """The headings of segments, layers, operations and units, in order.

    Raises ArtefactError (E502) for a damaged artefact.
    """
    contents = Contents.of(program.manifest)
    commands = contents.commands(program)
    return [
        *_segments(program, contents, len(commands)),
        *_layer_headings(contents, program.report["layers"]),
        *_operations(contents, commands, contents.registers),
    ]


def _segments(program: Program, contents: Contents, commands: int) -> Iterator[Heading]:
    """What the host loads before each range of commands and stores after it."""
    host: list[Line] = []
    images = [
        (f"load   {count(len(each.data(program.files))):>9} bytes  dram from {each.address:#x}  ", Name(each.file))
        for each in contents.dram.images
    ]
    number = 0
    for step in contents.steps:
        if isinstance(step, HostStep):
            host.append(host_line(step))
            continue
        run = f"run    commands {step.start}..{step.start + step.count - 1}"
        moves = [_move("load", each, contents) for each in step.loads]
        stores = [_move("store", each, contents) for each in step.stores]
        lines: list[Line] = [(f"segment {number}",), *host, *images, *moves, (run,), *stores]
        yield Heading("segment", step.start, step.count, tuple(lines))
        host, images, number = [], [], number + 1
    if host:
        yield Heading("segment", commands, 0, (("the host's last steps",), *host))


def _move(what: str, move: TensorMove, contents: Contents) -> Line:
    size = f"{count(move.bytes(contents.machine)):>9} bytes  dram from {move.place.address:#x}  "
    return (f"{what:<5}  {size}", Name(move.tensor), f" [{'x'.join(map(str, move.map_shape))}]")


def _by_layer(contents: Contents) -> Iterator[list[Produced]]:
    """Consecutive operations for the same nodes."""
    return (list(group) for _, group in groupby(contents.operations, lambda each: each.nodes))


def _layer_headings(contents: Contents, reported: Sequence[Mapping[str, Any]]) -> Iterator[Heading]:
    """A heading per group of operations for the same nodes: their result and modelled cycles."""
    cycles = {each.get("instruction"): each.get("cycles") for each in reported}
    for members in _by_layer(contents):
        start, last = members[0].start, members[-1]
        took = cycles.get(start)
        line: Line = names_of(members[0].nodes)
        for each in members:
            if each.result:
                shape = "x".join(map(str, each.result.map_shape))
                line = (*line, " -> ", Name(each.result.tensor), f" [{shape}]")
        if isinstance(took, int):
            line = (*line, f", {count(took)} cycles")
        yield Heading("layer", start, last.start + last.count - start, (line,))


def _operations(contents: Contents, commands: Sequence[Command], registers: RegisterMap) -> Iterator[Heading]:
    pointers: dict[str, int] = {}
    for members in _by_layer(contents):
        for number, each in enumerate(members, 1):
            yield from _operation(each, (number, len(members)), commands, registers, pointers)


def _operation(
    each: Produced,
    place: tuple[int, int],
    commands: Sequence[Command],
    registers: RegisterMap,
    pointers: dict[str, int],
) -> Iterator[Heading]:
    """An operation and its runs of writes to one unit; pointers: the ping-pong group selected in each unit."""
    written: dict[str, int] = {}
    groups: dict[str, int] = {}
    units: list[Heading] = []
    numbered = enumerate(commands[each.start : each.start + each.count], each.start)
    for block, run in groupby(numbered, lambda pair: _block(pair[1], registers)):
        writes = list(run)
        for _, command in writes:
            if isinstance(command, Write):
                register = registers.register_at(command.address)
                written[register.title] = command.value
                if register.name == POINTER:
                    pointers[block] = command.value & 1
                elif register.of_group:
                    groups[block] = pointers.get(block, 0)
        if block and len(writes) >= FEWEST:
            group = f", group {groups[block]}" if block in groups else ""
            units.append(Heading("unit", writes[0][0], len(writes), ((f"{block}{group}",),)))
    of = "" if place[1] == 1 else " {} of {}".format(*place)
    line = f"{each.operation}{of}{_groups(groups)}{_cubes(written, registers)}"
    yield Heading("operation", each.start, each.count, ((line,),))
    yield from units


def _block(command: Command, registers: RegisterMap) -> str:
    return registers.register_at(command.address).block if isinstance(command, Write) else ""


def _groups(groups: Mapping[str, int]) -> str:
    """The ping-pong group of an operation's units, as text."""
    found = set(groups.values())
    if len(found) == 1:
        return f", ping-pong group {found.pop()}"
    return "".join(f", {block} group {group}" for block, group in groups.items())


def _cubes(written: Mapping[str, int], registers: RegisterMap) -> str:
    """Extents (channels x rows x columns) and addresses of input and result, as written to the registers."""
    source = next((written[each] for each in SOURCES if written.get(each)), None)
    result = next((written[each] for each in RESULTS if written.get(each)), None)
    taken, given = _extents(TAKEN, written, registers), _extents(GIVEN, written, registers)
    shapes = f": {taken or given} -> {given or taken}" if taken or given else ""
    places = [hex(each) if each is not None else "on the fly" for each in (source, result)]
    return f"{shapes}, {' -> '.join(places)}" if source is not None or result is not None else shapes


def _extents(choices: Sequence[Extents], written: Mapping[str, int], registers: RegisterMap) -> str:
    for fields in choices:
        if all(title in written for title, _ in fields):
            return "x".join(str(_field(registers, title, name, written[title]) + 1) for title, name in fields)
    return ""


def _field(registers: RegisterMap, title: str, name: str, value: int) -> int:
    place = registers[title].places[name]
    return value >> place.low & (1 << place.width) - 1


def describe_write(register: Register, value: int) -> str:
    """A write with its values decoded: names and decimal numbers, addresses in hexadecimal.

    Of a register with several fields those with their reset value are left out.
    """
    fields, usual = (named_fields(register.decode(each)) for each in (value, register.reset))
    known = {name: each for name, each in fields.items() if not name.startswith(RESERVED)}
    told = known if len(known) == 1 else {name: each for name, each in known.items() if each != usual[name]}
    told |= {name: each for name, each in fields.items() if name.startswith(RESERVED) and each != 0}
    return " ".join([register.title, *(f"{name}={_number(register, name, each)}" for name, each in told.items())])


def _number(register: Register, name: str, value: int | str) -> str:
    """A number as text; addresses in bytes, even if their register leaves out low bits."""
    if isinstance(value, int) and "ADDR" in name:
        return hex(value << register.places[name].low)
    return str(value)


OPERATIONS = ("convolution", "elementwise", "pooling", "normalisation", "contraction", "transfer")
ARRAY, MEMORY = "CONV", "DRAM"
UNITS = {ARRAY: "CACC.", "SDP": "SDP.", "PDP": "PDP.", "CDP": "CDP.", "RUBIK": "RBK.", "BDMA": "BDMA."}
"""The units in order of data flow, with the prefix of their registers."""
READS = re.compile(r"D_(DAIN_ADDR_LOW(_0)?|SRC_BASE_ADDR_LOW|(BS|BN|EW)_BASE_ADDR_LOW|WEIGHT_ADDR_LOW)$")
"""The registers with addresses that an operation reads."""


@frozen
class _Layer:
    """A layer of the report: its first command, and its number of operations."""

    name: str
    op: str
    cycles: int
    instruction: int
    jobs: int
    bytes: int = 0


@frozen
class _Job:
    """An operation: when its layer runs, the registers written for it, and the tensor that it completes."""

    layer: int
    instruction: int
    start: int
    end: int
    slot: tuple[int, int]
    """Its share of that time; the operations of a layer are shown in sequence."""
    registers: Mapping[str, int]
    result: TensorMove | None


def timeline(program: Program) -> Timeline:
    """The layers of the report in sequence, with the maps in DRAM and the banks of the convolution buffer.

    A map is in DRAM from the layer that completes it, or the host's transfer, to the last layer that reads it.
    Raises ArtefactError (E502, E503) if npuc did not write the program.
    """
    layers = _layers(program)
    ends = list(accumulate((layer.cycles for layer in layers), initial=0))
    contents = Contents.of(program.manifest)
    jobs = list(_jobs(program, contents, layers, ends))
    maps = list(_maps(contents, jobs, ends[-1]))
    activities = (*_activities(layers, jobs, maps, contents), *_moves(layers, ends))
    buffers = (*_constants(program, contents, ends[-1]), *(each for _, each in maps), *_banks(contents, jobs))
    return Timeline(ends[-1], activities, buffers, ARRAY)


def _activities(
    layers: Sequence[_Layer], jobs: Sequence[_Job], maps: Sequence[tuple[int, BufferUse]], contents: Contents
) -> list[Activity]:
    """The activities of every operation: its units run in parallel, each fed by the previous one or by maps."""
    found: list[Activity] = []
    lasts: list[int | None] = []
    for number, job in enumerate(jobs):
        layer = layers[job.layer]
        makers = [lasts[at] for at in _makers(number, job, maps, contents)]
        producers = tuple(dict.fromkeys(each for each in makers if each is not None))
        units = [unit for unit, title in UNITS.items() if any(each.startswith(title) for each in job.registers)]
        for unit in units:
            found.append(
                Activity(unit, layer.op, *job.slot, layer.name, job.layer, job.instruction, producers=producers)
            )
            producers = (len(found) - 1,)
        lasts.append(len(found) - 1 if units else None)
    return found


def _makers(number: int, job: _Job, maps: Sequence[tuple[int, BufferUse]], contents: Contents) -> Iterator[int]:
    """The operations that completed what an operation reads."""
    for title, value in job.registers.items():
        if READS.search(title):
            second = contents.machine.in_sram(value)
            memory, at = ("sram", value - SRAM_BASE) if second else ("dram", value - contents.dram.base)
            there = ((maker, each) for maker, each in maps if each.memory == memory)
            written = (maker for maker, each in there if each.address <= at < each.address + each.size)
            maker = max((each for each in written if each < number), default=-1)
            if maker >= 0:
                yield maker


def _moves(layers: Sequence[_Layer], ends: Sequence[int]) -> Iterator[Activity]:
    """Memory traffic of every layer, spread over the layer's time."""
    for number, layer in enumerate(layers):
        if layer.bytes:
            yield Activity(
                MEMORY,
                f"{layer.op}: {count(layer.bytes)} bytes",
                ends[number],
                ends[number + 1],
                layer.name,
                number,
                layer.instruction,
                layer.bytes,
            )


def _layers(program: Program) -> tuple[_Layer, ...]:
    """The layers of the report. Raises ArtefactError (E502) if npuc did not write them."""
    found = read(tuple[_Layer, ...], program.report["layers"], "report.layers")
    for number, each in enumerate(found):
        if each.op not in OPERATIONS or each.jobs < 1:
            raise damage_error(f"report.layers[{number}] is {each.jobs} times {each.op}", ", ".join(OPERATIONS))
    return found


def _jobs(program: Program, contents: Contents, layers: Sequence[_Layer], ends: Sequence[int]) -> Iterator[_Job]:
    """Every operation, with the time of its layer; ends: the start of each layer, and the end of the last."""
    registers, commands = contents.registers, contents.commands(program)
    seen = [0] * len(layers)
    for each in contents.operations:
        number = max((at for at, layer in enumerate(layers) if layer.instruction <= each.start), default=None)
        if number is None:
            continue
        start, end, parts = ends[number], ends[number + 1], layers[number].jobs
        edges = tuple(start + (end - start) * part // parts for part in (seen[number], seen[number] + 1))
        seen[number] += 1
        given = (
            command for command in commands[each.start : each.start + each.count] if isinstance(command, Write)
        )
        written = {registers.register_at(command.address).title: command.value for command in given}
        yield _Job(number, each.start, start, end, (edges[0], edges[1]), written, each.result)


def _constants(program: Program, contents: Contents, end: int) -> Iterator[BufferUse]:
    """Memory images, which stay for the whole run."""
    for image in contents.dram.images:
        size = len(program.files.get(image.file, b""))
        yield BufferUse("dram", image.file, image.address - contents.dram.base, size, 0, end)


def _maps(contents: Contents, jobs: Sequence[_Job], end: int) -> Iterator[tuple[int, BufferUse]]:
    """The tensors in memory, each with the operation that completes it, or -1 if the host loads it."""
    fetched = {move.tensor for segment in contents.segments for move in segment.stores}
    stored = [(-1, 0, move) for segment in contents.segments for move in segment.loads]
    for number, start, move in stored + [(at, job.start, job.result) for at, job in enumerate(jobs) if job.result]:
        first, size = move.place.address, move.bytes(contents.machine)
        later = jobs[number + 1 :]
        written = jobs[number].end if number >= 0 else start
        reuses = (
            at
            for at, job in enumerate(later)
            if job.result and _overlaps(job.result, contents, first, first + size)
        )
        reused = next(reuses, len(later))
        last = max((job.end for job in later[:reused] if _reads(job, first, first + size)), default=written)
        until = min(end if move.tensor in fetched else last, later[reused].start if reused < len(later) else end)
        second = contents.machine.in_sram(first)
        memory, base = ("sram", SRAM_BASE) if second else ("dram", contents.dram.base)
        yield number, BufferUse(memory, move.tensor, first - base, size, start, max(until, written))


def _reads(job: _Job, first: int, behind: int) -> bool:
    return any(first <= value < behind for title, value in job.registers.items() if READS.search(title))


def _overlaps(move: TensorMove, contents: Contents, first: int, behind: int) -> bool:
    start = move.place.address
    return start < behind and first < start + move.bytes(contents.machine)


def _banks(contents: Contents, jobs: Sequence[_Job]) -> Iterator[BufferUse]:
    """The convolution buffer: data from bank 0 on, then weights. Both register fields are counts minus one."""
    size = contents.machine.bank_bytes
    for job in jobs:
        value = job.registers.get("CDMA.D_BANK")
        if value is None:
            continue
        banks = contents.registers["CDMA.D_BANK"].decode(value)
        data, weights = size * (banks.DATA_BANK + 1), size * (banks.WEIGHT_BANK + 1)
        yield BufferUse("cbuf", "data", 0, data, *job.slot)
        yield BufferUse("cbuf", "weights", data, weights, *job.slot)


ADDRESSES = 1 << 32
ROLES = {
    "CDMA.D_WEIGHT_ADDR_LOW": "weights",
    "CDMA.D_WMB_ADDR_LOW": "mask of compressed weights (WMB)",
    "CDMA.D_WGS_ADDR_LOW": "group sizes of compressed weights (WGS)",
    "BDMA.CFG_SRC_ADDR_LOW": "weights that BDMA copies",
    "SDP_RDMA.D_BS_BASE_ADDR_LOW": "operands of X1 (BS)",
    "SDP_RDMA.D_BN_BASE_ADDR_LOW": "operands of X2 (BN)",
    "SDP_RDMA.D_EW_BASE_ADDR_LOW": "operands of Y (EW)",
}
"""The purpose of the data at an address, by the address register."""


def commands(texts: list[tuple[str, list[str]]]) -> Iterator[MemoryAnnotation]:
    """The text and nodes of every record of registers.bin, in order."""
    for number, (text, nodes) in enumerate(texts):
        yield MemoryAnnotation(number * RECORD_BYTES, text, tuple(nodes))


def constants(program: Program, name: str) -> Iterator[MemoryAnnotation]:
    """What begins where in a memory image, from the registers that are set to its addresses.

    Raises ArtefactError (E502) if npuc did not write the program.
    """
    contents = Contents.of(program.manifest)
    registers, given = contents.registers, contents.commands(program)
    bases = [image.address for image in contents.dram.images if image.file == name]
    for operation in contents.operations:
        for command in given[operation.start : operation.start + operation.count]:
            title = registers.register_at(command.address).title if isinstance(command, Write) else ""
            if not isinstance(command, Write) or not re.search(r"ADDR_LOW", title):
                continue
            for base in bases:
                offset = (command.value - base) % ADDRESSES
                if offset < len(program.files[name]):
                    yield MemoryAnnotation(
                        offset, f"{ROLES.get(title, title)} of a {operation.operation}", operation.nodes
                    )


def storage_of(program: Program, tensor: str) -> Stored | None:
    """The place of a complete tensor; None for an image or a tensor that only the host has.

    Raises ArtefactError (E502) if npuc did not write the program.
    """
    contents = Contents.of(program.manifest)
    move = next((each for each in contents.moves if each.tensor == tensor and not each.place.pixels), None)
    if move is None:
        return None
    cube, lanes = move.cube(contents.machine), move.place.lane_numbers

    def unpack(data: Array) -> Array:
        values = feature.unpack(cube, data)[lanes]
        return np.ascontiguousarray(values, HOST_DTYPES[cube.precision]).reshape(move.shape)

    return Stored(f"memory from {move.place.address:#x}", cube.bytes, unpack)
