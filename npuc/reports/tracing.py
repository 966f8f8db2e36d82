"""A run of a program as a trace: lanes of slices, counters over time, and flows between slices.

A clock cycle is a nanosecond of the trace, whatever the clock of the machine, so that durations read as cycles and
add up to those of the report.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

from npuc.frozen import frozen
from npuc.inspect.outline import short_names
from npuc.inspect.timeline import Activity, Timeline
from npuc.program import Program

Report = Mapping[str, Any]
Value = int | float | str


@frozen
class Slice:
    """An activity from cycle `start` to cycle `end`."""

    lane: str
    name: str
    start: int
    end: int
    details: Mapping[str, Value]
    sources: tuple[int, ...]
    """Indices of the slices whose results it reads."""


@frozen
class Counter:
    """A quantity with its value from each given cycle on."""

    name: str
    unit: str
    points: tuple[tuple[int, float], ...]


@frozen
class Trace:
    """A run. about: facts on the program as a whole."""

    name: str
    about: Mapping[str, Value]
    slices: tuple[Slice, ...]
    counters: tuple[Counter, ...]

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes in order of their first slice."""
        return tuple(dict.fromkeys(each.lane for each in self.slices))


def trace(program: Program, timeline: Timeline) -> Trace:
    """The trace of a run of a program for one sample."""
    report = program.report
    layers: Sequence[Report] = report["layers"]
    names = short_names(each["name"] for each in layers)
    slices = tuple(_slice(each, layers, names) for each in timeline.activities)
    about = {
        "target": report["target"],
        "machine": report["machine"],
        "cycles": report["cycles"],
        "cycles_with_transfers": timeline.cycles,
        "time": "1 ns is 1 cycle",
    }
    clock = report.get("clock_mhz")
    if clock:
        about["clock"] = f"{clock} MHz"
    counters = (*_occupied(timeline), *_moved(timeline), *_utilised(timeline, layers))
    return Trace(f"{program.model.name} on {report['target']}", about, slices, counters)


def _slice(each: Activity, layers: Sequence[Report], names: Mapping[str, str]) -> Slice:
    details: dict[str, Value] = {"what": each.label, "cycles": each.end - each.start}
    name = each.label
    if each.layer is not None:
        layer = layers[each.layer]
        name = names[layer["name"]]
        details |= {"layer": layer["name"], "node": ", ".join(layer["nodes"])}
        if layer.get("tile"):
            details["tile"] = " x ".join(map(str, layer["tile"]))
    if each.tensor is not None:
        details["tensor"] = each.tensor
    if each.instruction is not None:
        details["instruction"] = each.instruction
    if each.bytes:
        details["bytes"] = each.bytes
    return Slice(each.engine, name, each.start, each.end, details, each.producers)


def _occupied(timeline: Timeline) -> Iterator[Counter]:
    """The bytes in use in every memory."""
    for memory in dict.fromkeys(each.memory for each in timeline.buffers):
        spans = [(each.start, each.end, each.size) for each in timeline.buffers if each.memory == memory]
        yield Counter(f"{memory} in use", "bytes", _summed(spans))


def _moved(timeline: Timeline) -> Iterator[Counter]:
    """The bytes per cycle that every engine moves."""
    for engine in timeline.engines:
        spans = [
            (each.start, each.end, each.bytes / (each.end - each.start))
            for each in timeline.activities
            if each.engine == engine and each.bytes and each.end > each.start
        ]
        if spans:
            yield Counter(f"{engine}, bytes a cycle", "bytes a cycle", _levels(spans))


def _utilised(timeline: Timeline, layers: Sequence[Report]) -> Iterator[Counter]:
    """The share of busy multipliers while the array works: a layer's ideal cycles over its actual ones."""
    found = [each for each in timeline.activities if each.engine == timeline.array and each.layer is not None]
    taken: dict[int | None, int] = {}
    for each in found:
        taken[each.layer] = taken.get(each.layer, 0) + each.end - each.start
    spans = [
        (each.start, each.end, 100 * (layers[each.layer].get("ideal_cycles") or 0) / taken[each.layer])
        for each in found
        if each.layer is not None and each.end > each.start
    ]
    if spans:
        yield Counter("multipliers at work", "%", _levels(spans))


def _summed(spans: Sequence[tuple[int, int, int]]) -> tuple[tuple[int, float], ...]:
    """The sum of all spans at every cycle; spans: (from, until, amount)."""
    changes: dict[int, int] = {0: 0}
    for start, end, size in spans:
        changes[start] = changes.get(start, 0) + size
        changes[end] = changes.get(end, 0) - size
    ordered = sorted(changes)
    return tuple(zip(ordered, accumulate(changes[at] for at in ordered), strict=True))


def _levels(spans: Sequence[tuple[int, int, float]]) -> tuple[tuple[int, float], ...]:
    """A level for each span, 0 between them; spans do not overlap."""
    found = {0: 0.0}
    for start, end, level in sorted(spans):
        found[start] = level
        found[end] = 0.0
    return tuple(found.items())
