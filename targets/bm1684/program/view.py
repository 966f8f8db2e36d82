"""What people see of a BM1684 program: headings, timeline, annotated weights, and where tensors lie."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from math import prod

from npuc.program import Program
from npuc.target import Origin, Stored
from npuc.targets.bm1684.lowering.kernel import SystemPlace
from npuc.targets.bm1684.machine.local_memory import Dim4, Position, okk_128_byte_aligned_stride_for_32bit
from npuc.targets.bm1684.machine.parameters import Machine
from npuc.targets.bm1684.plan.pricing import system_bytes
from npuc.targets.bm1684.program.artefact import (
    ELEMENT,
    Contents,
    Instruction,
    KernelPort,
    Observed,
    Occupied,
    in_words,
    instructions,
    of_words,
)
from npuc.text.terminal import count
from npuc.view import Activity, BufferUse, Heading, Line, MemoryAnnotation, Name, Timeline, host_line, names_of

Where = tuple[int, int] | tuple[str, int]
"""NPU and offset in local memory, or a region of system memory and a byte offset."""


def outline(program: Program) -> list[Heading]:
    """The headings of the kernel with the host's copies, its layers, and regions in which both engines run.

    A note per call names the tensors that it writes and reads. Raises ArtefactError (E502) for a damaged artefact.
    """
    contents, calls = Contents.of(program.manifest), instructions(program)
    kept = {each.tensor: each.shape for each in Contents.read_observed(program.manifest)}
    regions = (tuple(group) for _, group in groupby(calls, lambda call: call.region))
    layers = (tuple(group) for _, group in groupby(regions, lambda region: _main_call(region).tensor))
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
        way: [_copy_line(what, each) for each in contents.placements if each.direction == way]
        for way, what in (("input", "load"), ("output", "store"))
    }
    run = f"run    calls 0..{calls - 1} of {contents.kernel}"
    host = [host_line(step) for step in contents.steps]
    lines: list[Line] = [("segment 0",), *host, *held, *ports["input"], (run,), *ports["output"]]
    return Heading("segment", 0, calls, tuple(lines))


def _copy_line(what: str, placement: KernelPort) -> Line:
    """The line of a copy between the host and system memory."""
    place = f"{count(placement.bytes):>11} bytes  {placement.region} from {placement.address:#x}  "
    return (f"{what:<5}  {place}", Name(placement.tensor), f" [{'x'.join(map(str, placement.shape))}]")


Calls = tuple[Instruction, ...]


def _main_call(region: Calls) -> Instruction:
    """The call that identifies a region's layer: beside it, data for other layers may be moved."""
    return next((call for call in region if call.engine == "bdc"), region[0])


def _layer(regions: Sequence[Calls], kept: Mapping[str, tuple[int, ...]]) -> Iterator[Heading]:
    """The headings of a layer and of those of its regions in which both engines run."""
    main = _main_call(regions[0])
    shape = f" [{'x'.join(map(str, kept[main.tensor]))}]" if main.tensor in kept else ""
    took = count(sum(max(_engine_cycles(region).values()) for region in regions))
    line = (*names_of(main.nodes), " -> ", Name(main.tensor), f"{shape}, {took} cycles")
    yield Heading("layer", regions[0][0].index, sum(map(len, regions)), (line,))
    for region in regions:
        spent = _engine_cycles(region)
        if min(spent.values()):
            both = ", ".join(f"{engine} {count(cycles)} cycles" for engine, cycles in spent.items())
            line = (f"region {region[0].region}: both engines at once, {both}",)
            yield Heading("operation", region[0].index, len(region), (line,))


def _engine_cycles(region: Calls) -> dict[str, int]:
    """Cycles of each engine."""
    return {engine: sum(call.cycles for call in region if call.engine == engine) for engine in ("bdc", "gdma")}


def _notes(program: Program, calls: Sequence[Instruction]) -> Iterator[Line]:
    """For each call, the names of the operand that it writes, then of those that it reads."""
    contents = Contents.of(program.manifest)
    regions = 1 + max((call.region for call in calls), default=-1)
    buffers = Contents.read_occupied(program.manifest, regions)
    results = {each.tensor: (each.npu, each.offset) for each in Contents.read_observed(program.manifest)}
    held: dict[Where, Line] = {
        (each.region, each.address): (Name(each.tensor),) for each in contents.placements if prod(each.shape)
    }
    for call in calls:
        places = [_place_of(arg) for arg in call.call.args if isinstance(arg, (Position, SystemPlace))]
        read = [held.get(each) or _name_place(each, call.region, buffers) for each in places[1:]]
        if not places:
            yield ()
            continue
        wrote: Line = (Name(call.tensor),)
        if results.get(call.tensor) != places[0]:
            known = isinstance(places[0][0], str) and held.get(places[0])
            wrote = known or _name_place(places[0], call.region, buffers)
        held[places[0]] = wrote
        yield (*wrote, " <- ", *_list_lines(read)) if read else wrote


def _place_of(arg: Position | SystemPlace) -> Where:
    return (arg.npu, arg.offset) if isinstance(arg, Position) else (arg.region, arg.offset)


def _name_place(where: Where, region: int, buffers: Iterable[Occupied]) -> Line:
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


def _list_lines(lines: Iterable[Line]) -> Line:
    """The distinct lines, separated by commas."""
    pieces: Line = ()
    for line in dict.fromkeys(lines):
        pieces = (*pieces, ", ", *line) if pieces else line
    return pieces


def timeline(program: Program) -> Timeline:
    """The calls in sequence on each engine; a region starts when both engines have ended the preceding one."""
    calls = instructions(program)
    starts = _starts(calls)
    clock = {(region, engine): start for region, start in enumerate(starts) for engine in ("gdma", "bdc")}
    layers = {layer["name"]: number for number, layer in enumerate(program.report["layers"])}
    activities: list[Activity] = []
    writers: dict[Position | SystemPlace, int] = {}
    for number, call in enumerate(calls):
        start = clock[call.region, call.engine]
        clock[call.region, call.engine] = start + call.cycles
        places = [arg for arg in call.call.args if isinstance(arg, (Position, SystemPlace))]  # the result first
        found = Activity(
            call.engine.upper(),
            call.call.name,
            start,
            start + call.cycles,
            call.tensor,
            layers.get(call.tensor),
            call.index,
            system_bytes(call.call) if call.call.on_gdma else 0,
            tuple(dict.fromkeys(writers[place] for place in places[1:] if place in writers)),
        )
        activities.append(found)
        writers |= dict.fromkeys(places[:1], number)
    occupied = Contents.read_occupied(program.manifest, len(starts) - 1)
    touched: dict[int, list[tuple[int, int]]] = {}
    for call, each in zip(calls, activities, strict=True):
        places = (argument for argument in call.call.args if isinstance(argument, Position))
        touched.setdefault(call.region, []).extend((place.offset, each.end) for place in places)
    local = (_buffer_use(each, starts, touched) for each in occupied)
    banks = {"local": Contents.of(program.manifest).machine.bank_bytes}
    return Timeline(starts[-1], tuple(activities), (*local, *_system(program, starts[-1])), "BDC", banks)


def _buffer_use(
    each: Occupied, starts: Sequence[int], touched: Mapping[int, Sequence[tuple[int, int]]]
) -> BufferUse:
    """A buffer of local memory, which is freed at the end of a region.

    touched: by region, the offsets that its calls read or write, and the end cycles of these calls.
    """
    end = starts[each.last + 1]
    uses = [
        cycle
        for region in range(each.first, each.last + 1)
        for offset, cycle in touched[region]
        if each.start <= offset < each.end
    ]
    last = max(uses, default=end)
    size = each.end - each.start
    return BufferUse("local", each.buffer, each.start, size, starts[each.first], end, last if last < end else None)


def _system(program: Program, end: int) -> Iterator[BufferUse]:
    """The regions of system memory, consecutive, for the whole run."""
    at = 0
    for region in Contents.of(program.manifest).regions:
        if region.bytes:
            yield BufferUse("system", region.name, at, region.bytes, 0, end)
        at += region.bytes


def _starts(calls: Sequence[Instruction]) -> list[int]:
    """The start cycle of every region, and the end cycle of the last one."""
    spent: dict[int, dict[str, int]] = {}
    for call in calls:
        engines = spent.setdefault(call.region, {"gdma": 0, "bdc": 0})
        engines[call.engine] += call.cycles
    starts = [0]
    for region in range(len(spent)):
        starts.append(starts[-1] + max(spent[region].values()))
    return starts


def memory_annotations(program: Program, name: str) -> Iterator[MemoryAnnotation]:
    """An annotation per call that reads a region's file. Raises ArtefactError (E502) for a damaged manifest."""
    regions = [region.name for region in Contents.of(program.manifest).regions if region.file == name]
    for each in instructions(program):
        for arg in each.call.args:
            if isinstance(arg, SystemPlace) and arg.region in regions:
                yield MemoryAnnotation(
                    arg.offset, f"call {each.index} okk_{each.call.name} for {each.tensor}", each.nodes
                )


def storage_of(program: Program, tensor: str) -> Stored | None:
    """The words of an input, an output, or a layer's result copied from local memory without gaps.

    8-bit integers have four images per word (4N). Raises ArtefactError (E502) if the program is not one that
    npuc wrote.
    """
    placed = {each.tensor: each for each in Contents.of(program.manifest).placements}.get(tensor)
    result = {each.tensor: each for each in Contents.read_observed(program.manifest)}.get(tensor)
    if placed is not None:
        shape, dtype, where = placed.shape, placed.dtype, f"region {placed.region}, byte {placed.address}"
    elif result is not None:
        shape, dtype, where = result.shape, result.dtype, f"NPU {result.npu}, byte {result.offset}"
    else:
        return None
    return Stored(where, ELEMENT * prod(in_words(shape, dtype)), lambda data: of_words(data, shape, dtype))


def origin(program: Program, tensor: str, element: tuple[int, ...]) -> Origin | None:
    """The call that computes this element; None if none does.

    A layer has one kind of call that does the work, and others around it (an activation, moves): the kind with the
    most cycles is taken. It may be repeated for pieces of the tensor, distinguished by their destinations.
    """
    calls = [call for call in instructions(program) if call.tensor == tensor]
    calls = [call for call in calls if call.engine == "bdc"] or calls
    if not calls:
        return None
    spent = Counter[str]()
    for call in calls:
        spent[call.call.name] += call.cycles
    (main, _), *_ = spent.most_common(1)
    calls = [call for call in calls if call.call.name == main]
    kept = next((each for each in Contents.read_observed(program.manifest) if each.tensor == tensor), None)
    if kept is not None and len(kept.shape) == len(element) == len(kept.local_shape):
        place = _place(kept, element, Contents.of(program.manifest).machine)
        calls = [call for call in calls if _destination(call) <= place] or calls
    found = max(calls, key=lambda call: (_destination(call), call.index))
    return Origin(found.index, found.text, None)


def _destination(call: Instruction) -> tuple[int, int]:
    """The offset and NPU that a call writes to."""
    to = call.call.args[0] if call.call.args else None
    return (to.offset, to.npu) if isinstance(to, Position) else (0, 0)


def _place(kept: Observed, element: tuple[int, ...], machine: Machine) -> tuple[int, int]:
    """The offset and NPU of an element in the aligned layout."""
    image, channel, row, column = element
    stride = okk_128_byte_aligned_stride_for_32bit(kept.npu, Dim4(*kept.local_shape), machine)
    block, npu = divmod(kept.npu + channel, machine.npus)
    inside = image * stride.n + block * stride.c + row * stride.h + column * stride.w
    return kept.offset + ELEMENT * inside, npu
