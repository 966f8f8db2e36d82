"""Maps that stay in the DTCMs from the strip that computes them to the last that reads them.

A plan of strips stores every map between two strips. Where a part of the DTCMs is set aside for the first channels
of such a map, they are neither stored nor loaded, and the strips in between have tiles for the rest of the memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache

from npuc.errors import DoesNotFit
from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.targets.easynpu.layers.nodes import is_part
from npuc.targets.easynpu.layers.views import MapView, surrounds
from npuc.targets.easynpu.layers.windows import MapWindow, is_channelwise, whole
from npuc.targets.easynpu.machine.memory import LANES, MapPlace, groups, low_end
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.plan.grids import JobShare, StayingMap, Strip, weights
from npuc.targets.easynpu.plan.placement import Run
from npuc.targets.easynpu.plan.ranges import Range
from npuc.targets.easynpu.plan.regions import inputs_of, outputs_of, run_of

SHARES = (8, 7, 6, 5, 4, 2)
"""Eighths of a map that may stay."""
GAIN = 0.0002
"""The part of all cycles that a map must save."""


def beside(graph: Graph, strip: Strip, tile: Mapping[str, MapWindow], machine: Machine) -> tuple[Run, Machine]:
    """The run of a tile with the maps that stay, and the machine without their part of the DTCMs."""
    borders = tuple(sorted(LANES * end for each in strip.staying.values() for _, end, _ in each.parts))
    run = run_of(graph, strip.nodes, machine, tile, documented=False, borders=borders)
    if strip.free is None:
        return run, machine
    fmap, skip = strip.free
    return in_place(graph, run, strip.staying), replace(machine, fmap_words=fmap, skip_words=skip)


def in_place(graph: Graph, run: Run, staying: Mapping[str, StayingMap]) -> Run:
    """The run with what stays of its maps where it lies, which is neither loaded nor stored.

    A map that the host loads is loaded whole, which only the first tile needs.
    Raises DoesNotFit (E302) where a job uses channels on both sides of a border, or a map is a part of another.
    """
    mine = {name: each for name, each in staying.items() if name in run.views.tensors}
    fixed = {f"{name}/{first}": place for name, each in mine.items() for first, _, place in each.parts}
    buffers, windows = dict(run.views.buffers), dict(run.windows)
    inputs, outputs, stored = dict(run.inputs), dict(run.outputs), dict(run.stored)

    def moved(view: MapView) -> MapView:
        if view.buffer not in mine:
            return view
        window, each = run.windows[view.buffer], mine[view.buffer]
        start = window.channels[0] // LANES + view.group
        end = start + (groups(view.channels) if view.group_step else 1)
        for first, stop, _ in each.parts:
            if first <= start and end <= stop:
                row, column = view.row + window.rows[0], view.column + window.columns[0]
                return replace(view, buffer=f"{view.buffer}/{first}", group=start - first, row=row, column=column)
        if start < each.end:
            raise DoesNotFit("E302", f"a job reads or writes across a part of '{view.buffer}' that stays")
        return replace(view, group=start - max(each.end, window.channels[0] // LANES))

    for name, each in mine.items():
        view, window = run.views.tensors[name], run.windows[name]
        if view.buffer != name or not run.views.is_whole(view):
            raise DoesNotFit("E302", f"'{name}' is a part of another map")
        first = max(window.channels[0], LANES * each.end)
        del buffers[name]
        extents = window.rows[1], window.columns[1]
        buffers |= {f"{name}/{low}": (LANES * (end - low), *extents) for low, end, _ in each.parts}
        if first < window.channels[1]:
            buffers[name] = (window.channels[1] - first, *window.shape[1:])
            windows[name] = replace(window, channels=(first, window.channels[1]))
        if each.loaded:
            windows[name] = whole(graph, name)
            inputs[name] = MapView(f"{name}/0", *windows[name].shape)
            continue
        for crossing, given in ((inputs, run.windows), (outputs, run.stored)):
            if name in crossing:
                view, (low, end) = crossing.pop(name), given[name].channels
                if first < end:
                    crossing[name] = moved(view.channel_groups((first - low) // LANES, end - first))
        if name in outputs:
            stored[name] = replace(stored[name], channels=(first, stored[name].channels[1]))
    jobs = tuple(
        replace(
            job,
            stages=tuple(replace(each, source=each.source and moved(each.source)) for each in job.stages),
            result=moved(job.result),
            operand=job.operand and moved(job.operand),
            kept=job.kept and moved(job.kept),
        )
        for job in run.jobs
    )
    views = replace(run.views, buffers=buffers)
    return replace(
        run, jobs=jobs, inputs=inputs, outputs=outputs, views=views, windows=windows, stored=stored, fixed=fixed
    )


def with_staying_maps(
    graph: Graph, strips: Sequence[Strip], machine: Machine, shares: Mapping[str, JobShare], objective: str
) -> tuple[Strip, ...]:
    """The strips with maps that stay where this costs less; those that would be moved most come first.

    Not every tile need have a place: a job may cross a border of what stays.
    """
    return _Staying(graph, list(strips), machine, shares, weights(machine)[objective]).result()


@frozen
class _Candidate:
    """A map, the first strip and the last that use it, and the words moved for it."""

    tensor: str
    first: int
    last: int
    moved: int
    loaded: bool


class _Staying:
    def __init__(
        self, graph: Graph, strips: list[Strip], machine: Machine, shares: Mapping[str, JobShare], weight: float
    ) -> None:
        self.graph, self.strips, self.machine, self.weight = graph, strips, machine, weight
        self.worth = GAIN * sum(each.cost(self.weight) for each in strips)
        self.used = [(*inputs_of(graph, each.nodes), *outputs_of(graph, each.nodes)) for each in strips]

        @cache
        def best(at: int, free: tuple[int, int], staying: tuple[tuple[str, int], ...]) -> Strip | None:
            reduced = replace(machine, fmap_words=free[0], skip_words=free[1])
            return Range(graph, strips[at].nodes, reduced, shares, staying=dict(staying)).best(self.weight)

        self.best = best

    def result(self) -> tuple[Strip, ...]:
        for each in sorted(self._candidates(), key=lambda each: -each.moved):
            held = any(each.tensor in self.strips[at].staying for at in range(each.first, each.last + 1))
            if each.moved * self.weight > self.worth and not held:
                self._keep(each)
        return tuple(self.strips)

    def _candidates(self) -> Iterator[_Candidate]:
        at = {node: number for number, strip in enumerate(self.strips) for node in strip.nodes}
        for name in dict.fromkeys(name for used in self.used for name in used):
            made, readers = self.graph.producers.get(name), self.graph.readers[name]
            if any(_is_view(self.graph, each) for each in (*readers, *([made] if made else []))):
                continue
            first, words, loads = at.get(made, -1) if made else -1, whole(self.graph, name).words, dict[int, int]()
            for node in sorted((each for each in readers if each in at), key=lambda each: at[each]):
                tiles = 1 if is_channelwise(self.graph, node) else self.strips[at[node]].grid.channels
                loads[at[node]] = max(loads.get(at[node], 0), words * tiles * (at[node] > first))
            if first >= 0 and name not in self.graph.outputs and all(each in at for each in readers):
                yield _Candidate(name, first, max(loads), words + sum(loads.values()), loaded=False)
            for start in loads if first not in loads else ():
                for last in {start, max(loads)}:
                    moved = sum(each for number, each in loads.items() if start <= number <= last)
                    yield _Candidate(name, start, last, moved - words, loaded=True)

    def _keep(self, candidate: _Candidate) -> None:
        span = range(candidate.first, candidate.last + 1)
        before = sum(self.strips[at].cost(self.weight) for at in span)
        found: tuple[float, list[Strip]] | None = None
        for parts in self._divisions(candidate):
            limit = before - self.worth if found is None else found[0]
            strips = self._with(candidate, parts, span, limit)
            if strips:
                found = sum(each.cost(self.weight) for each in strips), strips
        if found is not None:
            for at, strip in zip(span, found[1], strict=True):
                self.strips[at] = strip

    def _divisions(self, candidate: _Candidate) -> Iterator[StayingMap]:
        """What may stay of a map: as much in the skip DTCM as it has room for, the rest in the Fmap DTCM."""
        window = whole(self.graph, candidate.tensor)
        depth, width = groups(window.shape[0]), window.shape[2]
        words = window.words // depth
        room = self._free(range(candidate.first, candidate.last + 1))
        together = candidate.loaded or any(
            not is_channelwise(self.graph, each) for each in self.graph.readers[candidate.tensor]
        )
        for count in dict.fromkeys(depth * quarters // 8 for quarters in SHARES):
            skip = min(count, room[1] // words)
            fmap = count - skip
            if not count or fmap * words > room[0] or (together and ((skip and fmap) or count < depth)):
                continue
            parts: list[tuple[int, int, MapPlace]] = []
            for first, end, memory, free in ((0, skip, "skip", room[1]), (skip, count, "fmap", room[0])):
                if first < end:
                    base = free - (end - first) * words
                    parts.append((first, end, low_end(memory, base, (end - first) * LANES, width)))
            yield StayingMap(tuple(parts), candidate.loaded)

    def _free(self, span: range) -> tuple[int, int]:
        frees = [self.strips[at].free or (self.machine.fmap_words, self.machine.skip_words) for at in span]
        return min(fmap for fmap, _ in frees), min(skip for _, skip in frees)

    def _with(self, candidate: _Candidate, parts: StayingMap, span: range, limit: float) -> list[Strip]:
        """The strips of a span if so much of a map stays; none if one has no tiles then, or they cost too much."""
        found: list[Strip] = []
        for at in span:
            fmap, skip = self._free(range(at, at + 1))
            places = {place.memory: place.base for _, _, place in parts.parts}
            staying = dict(self.strips[at].staying)
            if candidate.tensor in self.used[at]:
                staying[candidate.tensor] = parts
            room = places.get("fmap", fmap), places.get("skip", skip)
            strip = self.best(at, room, tuple((name, each.end) for name, each in staying.items()))
            if strip is not None and candidate.loaded and at == span[0]:
                strip = replace(
                    strip, traffic_words=strip.traffic_words + whole(self.graph, candidate.tensor).words
                )
            if strip is None or (limit := limit - strip.cost(self.weight)) <= 0:
                return []
            found.append(replace(strip, free=room, staying=staying))
        return found


def _is_view(graph: Graph, node: Node) -> bool:
    """Whether a node's results or operands are parts of other maps, or moved."""
    return is_part(graph, node) or surrounds(node) or node.op in ("Concat", "DepthToSpace", "IntReshape")
