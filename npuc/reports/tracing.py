"""A run of a program as a trace: lanes of slices, counters over time, and flows between slices.

A clock cycle is a nanosecond of the trace, whatever the clock of the machine, so that durations read as cycles and
add up to those of the report.

It becomes a file for Perfetto: its own track events, or the JSON of Chrome's trace events. Source: Perfetto,
Synthetic track events; Trace Event Format (X is a slice, C a counter, M metadata; a flow goes from s to f).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Literal

from npuc.account import short_names
from npuc.frozen import frozen
from npuc.program import Program
from npuc.text.escaping import json_text, terminal
from npuc.view import Activity, Timeline

if TYPE_CHECKING:
    from perfetto.protos.perfetto.trace.perfetto_trace_pb2 import TrackDescriptor, TrackEvent


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
class TracedRun:
    """A run. about: facts on the program as a whole."""

    name: str
    about: Mapping[str, Value]
    slices: tuple[Slice, ...]
    counters: tuple[Counter, ...]

    @property
    def lanes(self) -> tuple[str, ...]:
        """The lanes in order of their first slice."""
        return tuple(dict.fromkeys(each.lane for each in self.slices))


def trace(program: Program, timeline: Timeline) -> TracedRun:
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
    counters = (*_occupancy(timeline), *_traffic(timeline), *_utilisation(timeline, layers))
    return TracedRun(f"{program.model.name} on {report['target']}", about, slices, counters)


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


def _occupancy(timeline: Timeline) -> Iterator[Counter]:
    """The bytes in use in every memory."""
    for memory in dict.fromkeys(each.memory for each in timeline.buffers):
        spans = [(each.start, each.end, each.size) for each in timeline.buffers if each.memory == memory]
        yield Counter(f"{memory} in use", "bytes", _sum_spans(spans))


def _traffic(timeline: Timeline) -> Iterator[Counter]:
    """The bytes per cycle that every engine moves."""
    for engine in timeline.engines:
        spans = [
            (each.start, each.end, each.bytes / (each.end - each.start))
            for each in timeline.activities
            if each.engine == engine and each.bytes and each.end > each.start
        ]
        if spans:
            yield Counter(f"{engine}, bytes a cycle", "bytes a cycle", _levels(spans))


def _utilisation(timeline: Timeline, layers: Sequence[Report]) -> Iterator[Counter]:
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


def _sum_spans(spans: Sequence[tuple[int, int, int]]) -> tuple[tuple[int, float], ...]:
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


PROCESS = 1
"""The track of the whole trace, which is its process in JSON; lanes and counters follow."""
Kind = Literal["INSTANT", "SLICE_BEGIN", "SLICE_END", "COUNTER"]
MICROSECOND = 1000
"""Cycles per microsecond, the unit of time in JSON."""


def perfetto(trace: TracedRun) -> bytes:
    """The trace as Perfetto's protocol buffers: a track for each lane and each counter, in order.

    They are children of one track with the trace's name, as Perfetto's UI sorts the tracks of a process by name.
    """
    packets = _Packets()
    track = packets.track(PROCESS)
    track.name, track.child_ordering = terminal(trace.name), track.EXPLICIT
    tracks = {name: PROCESS + 1 + number for number, name in enumerate(trace.lanes)}
    for name, number in tracks.items():
        packets.track(number, name)
    _detail(packets.event(0, "INSTANT", PROCESS, "about"), trace.about)
    given, taken = _flows(trace)
    for number, each in enumerate(trace.slices):
        begun = packets.event(each.start, "SLICE_BEGIN", tracks[each.lane], each.name)
        _detail(begun, each.details)
        begun.flow_ids.extend(given[number])
        begun.terminating_flow_ids.extend(taken[number])
        packets.event(each.end, "SLICE_END", tracks[each.lane])
    for number, each in enumerate(trace.counters, PROCESS + 1 + len(tracks)):
        packets.track(number, each.name).counter.unit_name = each.unit
        for time, value in each.points:
            packets.event(time, "COUNTER", number).double_counter_value = value
    return packets.found.SerializeToString(deterministic=True)


class _Packets:
    """Packets of one sequence."""

    def __init__(self) -> None:
        from perfetto.protos.perfetto.trace import perfetto_trace_pb2 as protocol

        self.found, self.event_type = protocol.Trace(), protocol.TrackEvent

    def track(self, number: int, name: str = "") -> TrackDescriptor:
        """A track; one with a name is a child of the trace, ordered by number."""
        track = self.found.packet.add(trusted_packet_sequence_id=PROCESS).track_descriptor
        track.uuid = number
        if name:
            track.parent_uuid, track.name, track.sibling_order_rank = PROCESS, terminal(name), number
        return track

    def event(self, time: int, kind: Kind, track: int, name: str = "") -> TrackEvent:
        """An event of a track; time: in cycles."""
        packet = self.found.packet.add(timestamp=time, trusted_packet_sequence_id=PROCESS)
        event = packet.track_event
        event.type, event.track_uuid = getattr(self.event_type, f"TYPE_{kind}"), track
        if name:
            event.name = terminal(name)
        return event


def _detail(event: TrackEvent, details: Mapping[str, Value]) -> None:
    for name, value in details.items():
        detail = event.debug_annotations.add(name=name)
        match value:
            case str():
                detail.string_value = terminal(value)
            case int():
                detail.int_value = value
            case float():
                detail.double_value = value


def _flows(trace: TracedRun) -> tuple[list[list[int]], list[list[int]]]:
    """The flows that begin at each slice, and those that end at it, numbered from 1."""
    given: list[list[int]] = [[] for _ in trace.slices]
    taken: list[list[int]] = [[] for _ in trace.slices]
    number = 0
    for at, each in enumerate(trace.slices):
        for source in each.sources:
            number += 1
            given[source].append(number)
            taken[at].append(number)
    return given, taken


def chrome(trace: TracedRun) -> bytes:
    """The trace as JSON: a thread for each lane."""
    found = {"displayTimeUnit": "ns", "otherData": dict(trace.about), "traceEvents": [*_events(trace)]}
    return json_text(found, None).encode()


def _events(trace: TracedRun) -> Iterator[dict[str, Any]]:
    yield {"ph": "M", "pid": PROCESS, "name": "process_name", "args": {"name": trace.name}}
    threads = {name: number for number, name in enumerate(trace.lanes, 1)}
    for name, number in threads.items():
        yield {"ph": "M", "pid": PROCESS, "tid": number, "name": "thread_name", "args": {"name": name}}
        yield {
            "ph": "M",
            "pid": PROCESS,
            "tid": number,
            "name": "thread_sort_index",
            "args": {"sort_index": number},
        }
    given, taken = _flows(trace)
    for at, each in enumerate(trace.slices):
        place = {"pid": PROCESS, "tid": threads[each.lane], "ts": each.start / MICROSECOND}
        lasting = (each.end - each.start) / MICROSECOND
        yield {"ph": "X", **place, "dur": lasting, "name": each.name, "args": dict(each.details)}
        flow = {**place, "name": "data", "cat": "flow"}
        yield from ({"ph": "s", **flow, "id": number} for number in given[at])
        yield from ({"ph": "f", "bp": "e", **flow, "id": number} for number in taken[at])
    for each in trace.counters:
        for time, value in each.points:
            told = {"ph": "C", "pid": PROCESS, "ts": time / MICROSECOND, "name": each.name}
            yield {**told, "args": {each.unit: value}}
