"""The timeline of GDMA, BDC and the buffers in local memory, from the manifest."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from npuc.inspect.timeline import Activity, Buffer, Timeline
from npuc.program import Program
from npuc.targets.bm1684.lowering.kernel import System
from npuc.targets.bm1684.machine.local_memory import Position
from npuc.targets.bm1684.plan.pricing import system_bytes
from npuc.targets.bm1684.program.artefact import Contents, Instruction, Occupied, instructions


def timeline(program: Program) -> Timeline:
    """The calls in sequence on each engine; a region starts when both engines have ended the preceding one."""
    calls = instructions(program)
    starts = _starts(calls)
    clock = {(region, engine): start for region, start in enumerate(starts) for engine in ("gdma", "bdc")}
    layers = {layer["name"]: number for number, layer in enumerate(program.report["layers"])}
    activities: list[Activity] = []
    writers: dict[Position | System, int] = {}
    for number, call in enumerate(calls):
        start = clock[call.region, call.engine]
        clock[call.region, call.engine] = start + call.cycles
        places = [arg for arg in call.call.args if isinstance(arg, (Position, System))]  # the result first
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
    occupied = Contents.occupied(program.manifest, len(starts) - 1)
    touched: dict[int, list[tuple[int, int]]] = {}
    for call, each in zip(calls, activities, strict=True):
        places = (argument for argument in call.call.args if isinstance(argument, Position))
        touched.setdefault(call.region, []).extend((place.offset, each.end) for place in places)
    local = (_local(each, starts, touched) for each in occupied)
    banks = {"local": Contents.of(program.manifest).machine.bank_bytes}
    return Timeline(starts[-1], tuple(activities), (*local, *_system(program, starts[-1])), "BDC", banks)


def _local(each: Occupied, starts: Sequence[int], touched: Mapping[int, Sequence[tuple[int, int]]]) -> Buffer:
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
    return Buffer("local", each.buffer, each.start, size, starts[each.first], end, last if last < end else None)


def _system(program: Program, end: int) -> Iterator[Buffer]:
    """The regions of system memory, consecutive, for the whole run."""
    at = 0
    for region in Contents.of(program.manifest).regions:
        if region.bytes:
            yield Buffer("system", region.name, at, region.bytes, 0, end)
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
