"""When NVDLA's engines work and what its memories contain, from the manifest and the register writes."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from npuc.frozen import frozen
from npuc.inspect.timeline import Activity, Buffer, Timeline
from npuc.program import Program
from npuc.storage.records import damaged, read
from npuc.targets.nvdla.machine.commands import Write
from npuc.targets.nvdla.machine.parameters import SRAM_BASE
from npuc.targets.nvdla.program.artefact import Contents, TensorMove
from npuc.text.terminal import count

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
    layers: Sequence[_Layer], jobs: Sequence[_Job], maps: Sequence[tuple[int, Buffer]], contents: Contents
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


def _makers(number: int, job: _Job, maps: Sequence[tuple[int, Buffer]], contents: Contents) -> Iterator[int]:
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
            raise damaged(f"report.layers[{number}] is {each.jobs} times {each.op}", ", ".join(OPERATIONS))
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
        written = {registers.at(command.address).title: command.value for command in given}
        yield _Job(number, each.start, start, end, (edges[0], edges[1]), written, each.result)


def _constants(program: Program, contents: Contents, end: int) -> Iterator[Buffer]:
    """Memory images, which stay for the whole run."""
    for image in contents.dram.images:
        size = len(program.files.get(image.file, b""))
        yield Buffer("dram", image.file, image.address - contents.dram.base, size, 0, end)


def _maps(contents: Contents, jobs: Sequence[_Job], end: int) -> Iterator[tuple[int, Buffer]]:
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
        yield number, Buffer(memory, move.tensor, first - base, size, start, max(until, written))


def _reads(job: _Job, first: int, behind: int) -> bool:
    return any(first <= value < behind for title, value in job.registers.items() if READS.search(title))


def _overlaps(move: TensorMove, contents: Contents, first: int, behind: int) -> bool:
    start = move.place.address
    return start < behind and first < start + move.bytes(contents.machine)


def _banks(contents: Contents, jobs: Sequence[_Job]) -> Iterator[Buffer]:
    """The convolution buffer: data from bank 0 on, then weights. Both register fields are counts minus one."""
    size = contents.machine.bank_bytes
    for job in jobs:
        value = job.registers.get("CDMA.D_BANK")
        if value is None:
            continue
        banks = contents.registers["CDMA.D_BANK"].decoded(value)
        data, weights = size * (banks.DATA_BANK + 1), size * (banks.WEIGHT_BANK + 1)
        yield Buffer("cbuf", "data", 0, data, *job.slot)
        yield Buffer("cbuf", "weights", data, weights, *job.slot)
