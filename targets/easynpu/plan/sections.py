"""Runs that exceed the DTCMs: maps in sections of their channels, which segments load and store separately.

No job reads or writes across a section border: a section is the 256 channels of the map that a convolution reads,
or the channels that one of its jobs writes. Each is placed where there is room, in either DTCM. It is loaded with
the segment that first reads it and stored with the one that last writes it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

from npuc.errors import DoesNotFit
from npuc.frozen import frozen
from npuc.host.allocation import Buffer, allocate, fits, lower_bound, peak
from npuc.ir import Graph, Node
from npuc.targets.easynpu.layers.jobs import FIELD_CHANNELS, Job
from npuc.targets.easynpu.layers.nodes import map_shape
from npuc.targets.easynpu.layers.views import MapView
from npuc.targets.easynpu.layers.windows import MapWindow
from npuc.targets.easynpu.machine.memory import LANES, MapPlace, groups, low_end
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.plan.placement import (
    Crossing,
    PlacedJob,
    Placement,
    Run,
    Usage,
    assign,
    cut,
    pieces,
)
from npuc.targets.easynpu.plan.regions import run_of


@frozen
class Section:
    """Channel groups of a buffer, from `first` up to `end`."""

    buffer: str
    first: int
    end: int


@dataclass
class Life:
    """The lifetime of a section, in jobs and in segments."""

    first: int
    last: int
    written: int
    """The segment that loads it or last writes it."""
    loaded: bool = False
    stored: bool = False


@dataclass
class _Sections:
    """The sections of a run's buffers and their lifetimes."""

    run: Run
    segments: Sequence[Sequence[Job]]
    found: dict[str, list[Section]] = field(default_factory=dict[str, list[Section]])
    lives: dict[Section, Life] = field(default_factory=dict[Section, Life])

    def __post_init__(self) -> None:
        self.jobs = [job for jobs in self.segments for job in jobs]
        self.segment_of = [at for at, jobs in enumerate(self.segments) for _ in jobs]
        touched: dict[str, list[tuple[int, int]]] = {}
        for job in self.jobs:
            for view in (*job.reads, *job.writes):
                touched.setdefault(view.buffer, []).append(_span(view))
        self.found = {buffer: list(_joined(buffer, spans)) for buffer, spans in touched.items()}
        self._live()

    def of(self, view: MapView) -> Section:
        """The section that contains a view of a job."""
        first, end = _span(view)
        return next(each for each in self.found[view.buffer] if each.first <= first and end <= each.end)

    def crossing(self, view: MapView, window: MapWindow) -> Iterator[tuple[Section, MapView, MapWindow]]:
        """The parts of a tensor that enters or leaves the run: section, view and window of each.

        Raises DoesNotFit (E302) for channels that no job touches: the host would only pass them through.
        """
        first, end = _span(view)
        known = [each for each in self.found.get(view.buffer, []) if each.first < end and first < each.end]
        if sum(min(each.end, end) - max(each.first, first) for each in known) != end - first:
            raise DoesNotFit("E302", f"no word reads or writes all of '{view.buffer}'")
        for each in known:
            start = LANES * (max(each.first, first) - first)
            stop = min(LANES * (each.end - first), view.channels)
            channels = window.channels[0] + start, window.channels[0] + stop
            part = view.channel_groups(start // LANES, stop - start)
            yield each, part, replace(window, channels=channels)

    def _live(self) -> None:
        for at, job in enumerate(self.jobs):
            for view in job.writes:
                section = self.of(view)
                life = self.lives.setdefault(section, Life(at, at, 0))
                life.last, life.written = at, self.segment_of[at]
            for view in job.reads:
                self.lives.setdefault(self.of(view), Life(at, at, self.segment_of[at])).last = at
        for name, view in self.run.inputs.items():
            for section, _, _ in self.crossing(view, self.run.windows[name]):
                self.lives[section].loaded = True
        for name, view in self.run.outputs.items():
            for section, _, _ in self.crossing(view, self.run.stored[name]):
                self.lives[section].stored = True

    def words(self, section: Section) -> int:
        """DTCM words of a section."""
        _, height, width = self.run.views.buffers[section.buffer]
        return (section.end - section.first) * height * width

    def buffers(self) -> list[Buffer]:
        """The buffers to place, each alive from the segment that loads it to the one that stores it."""
        starts = [self.segment_of.index(at) for at in range(len(self.segments))]
        ends = [start + len(jobs) - 1 for start, jobs in zip(starts, self.segments, strict=True)]
        found: list[Buffer] = []
        for section, life in self.lives.items():
            first = starts[self.segment_of[life.first]] if life.loaded else life.first
            last = max(life.last, ends[life.written]) if life.stored else life.last
            found.append(Buffer(_name(section), self.words(section), first, last))
        return found


NARROW = 2
"""Groups of 16 channels that a job computes where sections must be small."""
HALF = FIELD_CHANNELS // 2


def in_sections(
    graph: Graph, nodes: Sequence[Node], machine: Machine, outputs: Mapping[str, MapWindow]
) -> list[Placement]:
    """The segments of the run that computes these windows, with their places, loads and stores.

    If sections of the channels that jobs use as they are do not fit, jobs of few channels run as soon as what they
    read is there, and only their maps are loaded with them. Raises DoesNotFit (E302) where the sections alive
    together exceed both memories even then.
    """
    try:
        return in_wide_sections(run_of(graph, nodes, machine, outputs, documented=False), machine)
    except DoesNotFit:
        most = max(map_shape(graph.shape(name))[0] for node in nodes for name in node.outputs)
        borders = tuple(range(NARROW * LANES, most, NARROW * LANES))
        run = run_of(graph, nodes, machine, outputs, documented=False, borders=borders, most_read=HALF)
    jobs = [piece for job in _soonest(run.jobs) for piece in pieces(job, machine)]
    crossing = {view.buffer for view in (*run.inputs.values(), *run.outputs.values())}
    alone = [any(view.buffer in crossing for view in (*job.reads, *job.writes)) for job in jobs]
    return _placed(run, cut(jobs, machine, extended=True, alone=alone), machine)


def in_wide_sections(run: Run, machine: Machine) -> list[Placement]:
    """The segments of a run with sections of the channels that jobs use as they are; raises as `in_sections`."""
    jobs = [piece for job in run.jobs for piece in pieces(job, machine)]
    return _placed(run, cut(jobs, machine, extended=True), machine)


def _soonest(jobs: Sequence[Job]) -> list[Job]:
    """The jobs in an order in which each follows what it reads as soon as it can."""
    depths = {node: at for at, node in enumerate(dict.fromkeys(job.stages[-1].node for job in jobs))}
    waits = [{before for before in range(at) if _meet(jobs[before], job)} for at, job in enumerate(jobs)]
    found, left = list[Job](), dict.fromkeys(range(len(jobs)))
    while left:
        ready = (at for at in left if waits[at].isdisjoint(left))
        at = max(ready, key=lambda at: (depths[jobs[at].stages[-1].node], -jobs[at].start[0], -at))
        found.append(jobs[at])
        del left[at]
    return found


def _meet(before: Job, job: Job) -> bool:
    """Whether a job uses channels of a buffer that an earlier one writes, or writes some that it reads."""
    pairs = [*product(before.writes, (*job.reads, *job.writes)), *product(before.reads, job.writes)]
    return any(
        one.buffer == other.buffer and _span(one)[0] < _span(other)[1] and _span(other)[0] < _span(one)[1]
        for one, other in pairs
    )


def _placed(run: Run, segments: Sequence[Sequence[Job]], machine: Machine) -> list[Placement]:
    """The segments with their places. Raises DoesNotFit (E302) where the sections exceed both memories."""
    sections = _Sections(run, segments)
    if any(job.kept is not None for job in sections.jobs):
        raise DoesNotFit("E302", "copies are not placed in sections")
    operands = {_name(sections.of(job.operand)) for job in sections.jobs if job.operand is not None}
    fmap, skip = _assigned(sections.buffers(), operands, machine)
    addresses = {"fmap": allocate(fmap), "skip": allocate(skip)}
    usage = {
        name: Usage(peak(each, addresses[name]), lower_bound(each))
        for name, each in (("fmap", fmap), ("skip", skip))
    }
    places = _SectionPlaces(sections, addresses)
    return [places.placement(at, jobs, usage) for at, jobs in enumerate(segments)]


def _assigned(
    buffers: Sequence[Buffer], operands: set[str], machine: Machine
) -> tuple[list[Buffer], list[Buffer]]:
    """The buffers of the Fmap and the skip DTCM. Raises DoesNotFit (E302) after three attempts."""
    longest = sorted(buffers, key=lambda each: (each.first - each.last, -each.size))
    for tried, wanted in ((buffers, operands), (buffers, set[str]()), (longest, {each.name for each in longest})):
        skip, fmap = assign(tried, wanted, machine)
        if fits(fmap, machine.fmap_words):
            return fmap, skip
    raise DoesNotFit(
        "E302",
        f"the maps alive together take {lower_bound(buffers)} words",
        limit=f"fmap_words = {machine.fmap_words}, skip_words = {machine.skip_words}",
    )


@frozen
class _SectionPlaces:
    """The places of sections, and of the tensors that enter and leave."""

    sections: _Sections
    addresses: Mapping[str, Mapping[str, int]]

    def placement(self, segment: int, jobs: Sequence[Job], usage: Mapping[str, Usage]) -> Placement:
        run, lives = self.sections.run, self.sections.lives
        inputs = tuple(
            Crossing(name, window, self._at(section, part))
            for name, view in run.inputs.items()
            for section, part, window in self.sections.crossing(view, run.windows[name])
            if self.sections.segment_of[lives[section].first] == segment
        )
        outputs = tuple(
            Crossing(name, window, self._at(section, part))
            for name, view in run.outputs.items()
            for section, part, window in self.sections.crossing(view, run.stored[name])
            if lives[section].written == segment
        )
        return Placement(tuple(map(self._job, jobs)), inputs, outputs, usage)

    def _job(self, job: Job) -> PlacedJob:
        operand = None if job.operand is None else self._place(job.operand)
        return PlacedJob(job, tuple(map(self._place, job.sources)), self._place(job.result), operand, None, True)

    def _place(self, view: MapView) -> MapPlace:
        return self._at(self.sections.of(view), view)

    def _at(self, section: Section, view: MapView) -> MapPlace:
        memory = "fmap" if _name(section) in self.addresses["fmap"] else "skip"
        _, _, width = self.sections.run.views.buffers[section.buffer]
        depth = LANES * (section.end - section.first)
        whole = low_end(memory, self.addresses[memory][_name(section)], depth, width)
        return replace(view, group=view.group - section.first).within(whole)


def _name(section: Section) -> str:
    return f"{section.buffer}/{section.first}"


def _span(view: MapView) -> tuple[int, int]:
    """The channel groups of its buffer that a view covers."""
    return view.group, view.group + (groups(view.channels) if view.group_step else 1)


def _joined(buffer: str, spans: Sequence[tuple[int, int]]) -> Iterator[Section]:
    """The spans merged into sections that do not overlap."""
    first, end = -1, -1
    for start, stop in sorted(set(spans)):
        if start < end:
            end = max(end, stop)
            continue
        if end > first:
            yield Section(buffer, first, end)
        first, end = start, stop
    yield Section(buffer, first, end)
