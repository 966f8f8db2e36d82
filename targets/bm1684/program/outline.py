"""Headings of a BM1684 listing, and the tensors that each call reads and writes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import prod

from npuc.inspect.outline import Heading, Line, Name, host_line, names_of
from npuc.program import Program
from npuc.targets.bm1684.lowering.kernel import System
from npuc.targets.bm1684.machine.local_memory import Position
from npuc.targets.bm1684.program.artefact import Contents, Instruction, Occupied, Placement, instructions
from npuc.text.terminal import count

Where = tuple[int, int] | tuple[str, int]
"""NPU and offset in local memory, or a region of system memory and a byte offset."""


def outline(program: Program) -> list[Heading]:
    """The headings of the kernel with the host's copies, its layers, and regions in which both engines run.

    A note per call names the tensors that it writes and reads. Raises ArtefactError (E502) for a damaged artefact.
    """
    contents, calls = Contents.of(program.manifest), instructions(program)
    kept = {each.tensor: each.shape for each in Contents.observed(program.manifest)}
    regions = (tuple(group) for _, group in groupby(calls, lambda call: call.region))
    layers = (tuple(group) for _, group in groupby(regions, lambda region: _main(region).tensor))
    headings = (heading for layer in layers for heading in _layer(layer, kept))
    notes = (
        Heading("note", call.index, 1, (line,)) for call, line in zip(calls, _notes(program, calls), strict=True)
    )
    return [_segment(contents, len(calls)), *headings, *notes]


def _segment(contents: Contents, calls: int) -> Heading:
    held = [
        (f"load   {count(each.bytes):>11} bytes  {each.name}  ", Name(each.file))
        for each in contents.regions
        if each.file
    ]
    ports = {
        way: [_copied(what, each) for each in contents.placements if each.direction == way]
        for way, what in (("input", "load"), ("output", "store"))
    }
    run = f"run    calls 0..{calls - 1} of {contents.kernel}"
    host = [host_line(step) for step in contents.steps]
    lines: list[Line] = [("segment 0",), *host, *held, *ports["input"], (run,), *ports["output"]]
    return Heading("segment", 0, calls, tuple(lines))


def _copied(what: str, placement: Placement) -> Line:
    """The line of a copy between the host and system memory."""
    place = f"{count(placement.bytes):>11} bytes  {placement.region} from {placement.address:#x}  "
    return (f"{what:<5}  {place}", Name(placement.tensor), f" [{'x'.join(map(str, placement.shape))}]")


Calls = tuple[Instruction, ...]


def _main(region: Calls) -> Instruction:
    """The call that identifies a region's layer: beside it, data for other layers may be moved."""
    return next((call for call in region if call.engine == "bdc"), region[0])


def _layer(regions: Sequence[Calls], kept: Mapping[str, tuple[int, ...]]) -> Iterator[Heading]:
    """The headings of a layer and of those of its regions in which both engines run."""
    main = _main(regions[0])
    shape = f" [{'x'.join(map(str, kept[main.tensor]))}]" if main.tensor in kept else ""
    took = count(sum(max(_spent(region).values()) for region in regions))
    line = (*names_of(main.nodes), " -> ", Name(main.tensor), f"{shape}, {took} cycles")
    yield Heading("layer", regions[0][0].index, sum(map(len, regions)), (line,))
    for region in regions:
        spent = _spent(region)
        if min(spent.values()):
            both = ", ".join(f"{engine} {count(cycles)} cycles" for engine, cycles in spent.items())
            line = (f"region {region[0].region}: both engines at once, {both}",)
            yield Heading("operation", region[0].index, len(region), (line,))


def _spent(region: Calls) -> dict[str, int]:
    """Cycles of each engine."""
    return {engine: sum(call.cycles for call in region if call.engine == engine) for engine in ("bdc", "gdma")}


def _notes(program: Program, calls: Sequence[Instruction]) -> Iterator[Line]:
    """For each call, the names of the operand that it writes, then of those that it reads."""
    contents = Contents.of(program.manifest)
    regions = 1 + max((call.region for call in calls), default=-1)
    buffers = Contents.occupied(program.manifest, regions)
    results = {each.tensor: (each.npu, each.offset) for each in Contents.observed(program.manifest)}
    held: dict[Where, Line] = {
        (each.region, each.address): (Name(each.tensor),) for each in contents.placements if prod(each.shape)
    }
    for call in calls:
        places = [_where(arg) for arg in call.call.args if isinstance(arg, (Position, System))]
        read = [held.get(each) or _named(each, call.region, buffers) for each in places[1:]]
        if not places:
            yield ()
            continue
        wrote: Line = (Name(call.tensor),)
        if results.get(call.tensor) != places[0]:
            known = isinstance(places[0][0], str) and held.get(places[0])
            wrote = known or _named(places[0], call.region, buffers)
        held[places[0]] = wrote
        yield (*wrote, " <- ", *_listed(read)) if read else wrote


def _where(arg: Position | System) -> Where:
    return (arg.npu, arg.offset) if isinstance(arg, Position) else (arg.region, arg.offset)


def _named(where: Where, region: int, buffers: Iterable[Occupied]) -> Line:
    """The name of a place while a region runs: a buffer and a byte offset."""
    place, offset = where
    if isinstance(place, str):
        return (Name(place), f"+{offset:#x}") if offset else (Name(place),)
    for each in buffers:
        if each.start <= offset < each.end and each.first <= region <= each.last:
            return (
                (Name(each.buffer), f"+{offset - each.start:#x}") if offset > each.start else (Name(each.buffer),)
            )
    return (f"local {offset:#x}",)


def _listed(lines: Iterable[Line]) -> Line:
    """The distinct lines, separated by commas."""
    pieces: Line = ()
    for line in dict.fromkeys(lines):
        pieces = (*pieces, ", ", *line) if pieces else line
    return pieces
