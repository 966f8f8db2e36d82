"""What people see of a program on any target: headings of its listing, annotated files, activity over time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from itertools import accumulate, groupby
from typing import Any, Literal

from npuc.frozen import frozen
from npuc.host.step import HostStep


@frozen
class Name:
    """A name of the model inside a line: shown shortened, and escaped."""

    text: str


Line = tuple["str | Name", ...]
"""The consecutive pieces of a line."""


@frozen
class Heading:
    """Comment lines above the instructions start..start + count - 1; a note follows its instruction."""

    kind: Literal["segment", "layer", "operation", "unit", "note"]
    start: int
    count: int
    lines: tuple[Line, ...]

    def covers(self, index: int) -> bool:
        """Whether an instruction belongs to the heading."""
        return self.start <= index < self.start + self.count


def names_of(nodes: Sequence[str]) -> Line:
    """Names separated by commas.

    >>> names_of(["a", "b"])
    (Name(text='a'), ', ', Name(text='b'))
    """
    pieces: list[str | Name] = []
    for node in nodes:
        pieces += [", "] * bool(pieces) + [Name(node)]
    return tuple(pieces)


def host_line(step: HostStep) -> Line:
    """A description of a host step between segments."""
    given = (" -> ", *names_of(step.outputs)) if step.outputs else ()
    return (f"host   {step.op} ", *names_of(step.inputs), *given)


def by_nodes(entries: Iterable[Mapping[str, Any]]) -> list[Heading]:
    """A heading for each run of instructions with the same nodes, if nothing more is known of them."""
    found: list[Heading] = []
    for nodes, group in groupby(entries, lambda entry: tuple(entry["nodes"])):
        members = list(group)
        tensors = dict.fromkeys(entry["tensor"] for entry in members if entry["tensor"])
        if nodes or tensors:
            result: Line = (" -> ", *names_of(list(tensors))) if tensors else ()
            line = (*names_of(nodes), *result)
            found.append(Heading("layer", members[0]["index"], len(members), (line,)))
    return found


@frozen
class MemoryAnnotation:
    """What a file contains from byte `start` on, up to the next annotation."""

    start: int
    what: str
    nodes: tuple[str, ...] = ()
    """The ONNX nodes to which the bytes belong."""


@frozen
class Activity:
    """An engine at work from cycle `start` to cycle `end`."""

    engine: str
    label: str
    start: int
    end: int
    tensor: str | None = None
    """The result's name."""
    layer: int | None = None
    """Index into the report's layers."""
    instruction: int | None = None
    """Index into the listing, of the first instruction executed."""
    bytes: int = 0
    """Bytes moved between memories, or to and from the array."""
    producers: tuple[int, ...] = ()
    """Indices of the activities whose results it reads."""


@frozen
class BufferUse:
    """Bytes of a memory in use from cycle `start`, when they are written, to cycle `end`, when they are freed."""

    memory: str
    label: str
    address: int
    size: int
    start: int
    end: int
    used: int | None = None
    """The cycle in which the last use ends, if the bytes are freed later."""


@frozen
class Timeline:
    """A complete run of a program, for one sample."""

    cycles: int
    activities: tuple[Activity, ...]
    buffers: tuple[BufferUse, ...]
    array: str | None = None
    """The engine with the multipliers."""
    banks: Mapping[str, int] = field(default_factory=dict[str, int])
    """Bytes per bank, for memories with banks."""
    initial: Timeline | None = None
    """The loads before the first inference; of several parts, each begins every inference with its own."""

    @property
    def engines(self) -> tuple[str, ...]:
        """The engines in order of their first activity."""
        return tuple(dict.fromkeys(each.engine for each in self.activities))

    def with_cycles(self, cycles: Sequence[int]) -> Timeline:
        """The timeline with measured cycles for the array's activities, in order; later activities move.

        For machines whose engines work in turn. Raises ValueError if the number of activities differs.
        """
        found = [each for each in self.activities if each.engine == self.array]
        changes = sorted(
            (each.end, took - (each.end - each.start)) for each, took in zip(found, cycles, strict=True)
        )
        ends, moves = [end for end, _ in changes], [0, *accumulate(change for _, change in changes)]

        def move(at: int) -> int:
            return at + moves[bisect_right(ends, at)]

        return replace(
            self,
            cycles=move(self.cycles),
            activities=tuple(
                replace(each, start=move(each.start), end=move(each.end)) for each in self.activities
            ),
            buffers=tuple(
                replace(
                    each,
                    start=move(each.start),
                    end=move(each.end),
                    used=None if each.used is None else move(each.used),
                )
                for each in self.buffers
            ),
        )


def separate_buffers(buffers: Iterable[BufferUse]) -> tuple[BufferUse, ...]:
    """The buffers, with interleaved ones merged, so that no two overlap.

    >>> one, other = BufferUse("m", "x", 0, 8, 0, 5), BufferUse("m", "x", 4, 8, 3, 9)
    >>> separate_buffers([one, other, BufferUse("m", "y", 0, 8, 9, 12)])[0]
    BufferUse(memory='m', label='x', address=0, size=12, start=0, end=9, used=None)
    """
    found: list[BufferUse] = []
    alive: list[BufferUse] = []
    for each in sorted(buffers, key=lambda each: each.start):
        found += [other for other in alive if other.end <= each.start]
        alive = [other for other in alive if other.end > each.start]
        joined = each
        while meeting := [other for other in alive if _overlap(joined, other)]:
            alive = [other for other in alive if other not in meeting]
            joined = _join([*meeting, joined])
        alive.append(joined)
    return (*found, *alive)


def _overlap(a: BufferUse, b: BufferUse) -> bool:
    together = a.memory == b.memory and a.start < b.end and b.start < a.end
    return together and a.address < b.address + b.size and b.address < a.address + a.size


def _join(parts: Sequence[BufferUse]) -> BufferUse:
    """A buffer from the first byte to the last and the first cycle to the last, named after all parts."""
    first = min(each.address for each in parts)
    return replace(
        parts[0],
        label=", ".join(dict.fromkeys(name for each in parts for name in each.label.split(", "))),
        address=first,
        size=max(each.address + each.size for each in parts) - first,
        start=min(each.start for each in parts),
        end=max(each.end for each in parts),
    )


def layer_at(layers: Sequence[Mapping[str, Any]], instruction: int) -> int | None:
    """The index in the report of the layer to which an instruction belongs; None before the first."""
    firsts = [each["instruction"] for each in layers]
    number = bisect_right(firsts, instruction) - 1
    return None if number < 0 else number


def in_turn(layers: Sequence[Mapping[str, Any]], engine: str) -> Timeline:
    """The layers of a report one after the other on a single engine, its multiplier array."""
    ends = [0, *accumulate(each["cycles"] for each in layers)]
    busy = tuple(
        Activity(engine, each["op"], ends[number], ends[number + 1], each["name"], number)
        for number, each in enumerate(layers)
    )
    return Timeline(ends[-1], busy, (), engine)


def totals(layers: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The figures of a whole program, whose layers run one after the other."""
    cycles, ideal = sum(row["cycles"] for row in layers), sum(row["ideal_cycles"] for row in layers)
    return {
        "macs": sum(row["macs"] for row in layers),
        "cycles": cycles,
        "ideal_cycles": ideal,
        "utilization": ideal / cycles if cycles else None,
    }


def memory_use(peak: int, capacity: int | None, least: int) -> dict[str, int | None]:
    """The use of a memory in bytes. least: a lower bound for any plan."""
    return {"peak_bytes": peak, "capacity_bytes": capacity, "lower_bound_bytes": least}
