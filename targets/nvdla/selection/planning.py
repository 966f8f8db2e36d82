"""In how many tiles of rows each layer is computed, and how the CBUF is divided: as the program is fastest.

Layer by layer the cheapest beginnings of the program are kept, each with where its engines stand, so that a tile
which lets the next layer's input be fetched in time is worth what it costs. A layer's first tile ends where the
layer before allows it to be fetched while the last tile of that one is computed. Banks are divided alike
throughout, in each of a few proportions in turn. Everything is compared by the model of pingpong and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from npuc.targets.nvdla.operations.operation import Operation
from npuc.targets.nvdla.operations.pingpong import Progress, Work
from npuc.targets.nvdla.operations.scoreboard import Scoreboard, Touched, touched
from npuc.targets.nvdla.operations.tiling import divided_anew, equal_edges
from npuc.targets.nvdla.selection import (
    Context,
    PlannedLayer,
    largest_tile,
    likeness,
    needed_lines,
    passes,
    select,
)

KEPT = 3
"""Beginnings of the program that are kept for every tiling of its last layer."""
MORE = (2, 3, 4, 6, 8)
"""Numbers of tiles that are tried beside the fewest."""
OPERATIONS = 32
"""No more tiles are tried than give a layer so many operations: its passes run beside one another already."""
PROPORTIONS = (2, 1, 3)
"""Quarters of the banks that data may have."""

Edges = tuple[int, ...]


@dataclass(frozen=True)
class Plan:
    """The edges of the tiles of every layer by the name of its result, and the banks that data gets."""

    edges: Mapping[str, Edges]
    data_banks: int
    clocks: float
    """Of the program."""


@dataclass(frozen=True)
class _Tiling:
    """The tiles of the latest layer, and of those before it."""

    edges: Edges
    before: _Tiling | None

    @property
    def path(self) -> tuple[Edges, ...]:
        """Of every layer, in order."""
        found: list[Edges] = []
        tiling: _Tiling | None = self
        while tiling is not None:
            found.append(tiling.edges)
            tiling = tiling.before
        return tuple(reversed(found))


@dataclass(frozen=True)
class _Begun:
    """Beginnings of the program, the cheapest first."""

    base: float
    """The time from which their progress is counted."""
    progress: Progress
    scoreboard: Sequence[Scoreboard]
    tilings: Sequence[_Tiling | None]
    order: Sequence[int]
    """Ranks of the tilings: what decides between beginnings of the same cost."""
    written: str = ""
    """The buffer that the last layer writes."""


@dataclass(frozen=True)
class _Step:
    """What one more layer makes of beginnings: for each that is kept from which one it comes, and its tiles."""

    base: float
    progress: Progress
    scoreboard: Sequence[Scoreboard]
    tiled: Sequence[tuple[int, Edges]]
    order: Sequence[int]


def plan(context: Context, turns: Sequence[Sequence[PlannedLayer]]) -> Plan:
    """The plan of a program; turns: its layers, one sequence for each turn of NVDLA between those of the host."""
    layers = [layer for turn in turns for layer in turn]
    found: tuple[tuple[float, float, tuple[Edges, ...]], int] | None = None
    shared = _Shared(context)
    for quarters in PROPORTIONS:
        banks = max(context.machine.cbuf_banks * quarters // 4, 1)
        cost = _Search(replace(context, data_banks=banks), shared).run(turns)
        if found is None or cost < found[0]:
            found = cost, banks
    assert found is not None
    return Plan({each.name: edges for each, edges in zip(layers, found[0][2], strict=True)}, found[1], found[0][0])


class _Admissions:
    """When operations may begin behind others: what is in flight repeats, so that each case is looked at once."""

    def __init__(self) -> None:
        self._places: dict[Touched, Touched] = {}
        self._flights: dict[tuple[object, ...], Scoreboard] = {}
        self._known: dict[tuple[int, int], tuple[tuple[int, int, int], Scoreboard]] = {}

    def admit(
        self, scoreboard: Scoreboard, operation: Operation, place: Touched
    ) -> tuple[tuple[int, int, int], Scoreboard]:
        """How many operations may still run when it is programmed, fetches and writes, and what runs from then on.

        scoreboard and place are objects that live as long as this one.
        """
        key = id(scoreboard), id(place)
        if key not in self._known:
            admission, after = scoreboard.admit(operation, place)
            program, fetch, write = (scoreboard.count - each for each in admission.counts)
            self._known[key] = (program, fetch, write), self.shared(after)
        return self._known[key]

    def place(self, place: Touched) -> Touched:
        """The one object of all that are equal."""
        return self._places.setdefault(place, place)

    def shared(self, scoreboard: Scoreboard) -> Scoreboard:
        """The one object of all that are equal, but for how many operations were before."""
        key = (
            *((id(each.touched), each.tables, *each.groups.items()) for each in scoreboard.issued),
            *sorted(scoreboard.groups.items()),
        )
        return self._flights.setdefault(key, scoreboard)


@dataclass
class _Shared:
    """What is known of layers whatever the banks."""

    context: Context
    likes: dict[str, tuple[object, int, int]] = field(default_factory=dict[str, tuple[object, int, int]])
    """The likeness of every layer, and where its maps lie."""
    tilings: dict[tuple[Edges, object], list[Edges]] = field(
        default_factory=dict[tuple[Edges, object], "list[Edges]"]
    )
    """What is tried, by where the last tile of what is read begins and by likeness or name."""
    admissions: _Admissions = field(default_factory=_Admissions)
    selected: dict[tuple[object, Edges], list[tuple[Operation, Touched]]] = field(
        default_factory=dict[tuple[object, Edges], "list[tuple[Operation, Touched]]"]
    )
    """Operations and what they touch, by likeness or name; by likeness in maps at address 0."""

    def operations(self, layer: PlannedLayer, edges: Edges) -> list[tuple[Operation, Touched]]:
        """What computes a layer in these tiles: as of an equal layer elsewhere, but for what it touches."""
        like, source, result = self.likeness(layer)
        key = like or layer.name, edges
        if key not in self.selected:
            atom = self.context.machine.atom_bytes
            found = [(each, touched(each, atom)) for each in select(self.context, layer, edges)]
            self.selected[key] = [(each, place.moved(-source, -result)) for each, place in found]
        return [(each, self.admissions.place(place.moved(source, result))) for each, place in self.selected[key]]

    def likeness(self, layer: PlannedLayer) -> tuple[object, int, int]:
        """What a layer has in common with others, and the places of its maps."""
        if layer.name not in self.likes:
            self.likes[layer.name] = likeness(self.context, layer)
        return self.likes[layer.name]

    def tried(self, before: Edges, layer: PlannedLayer) -> list[Edges]:
        """The tilings that are tried: those of an equal layer elsewhere, if they are known."""
        key = before, self.likeness(layer)[0] or layer.name
        if key not in self.tilings:
            self.tilings[key] = list(_edges(self.context, before, layer))
        return self.tilings[key]


@dataclass
class _Search:
    """One division of the banks; work that is known is not found again, nor are steps that were taken."""

    context: Context
    shared: _Shared
    known: dict[tuple[str, Edges], list[tuple[Work, Touched]]] = field(
        default_factory=dict[tuple[str, Edges], "list[tuple[Work, Touched]]"]
    )
    alike: dict[tuple[object, Edges], list[Work]] = field(default_factory=dict[tuple[object, Edges], "list[Work]"])
    """The work by what layers have in common, or by name."""
    steps: dict[tuple[object, ...], _Step] = field(default_factory=dict[tuple[object, ...], _Step])

    def run(self, turns: Sequence[Sequence[PlannedLayer]]) -> tuple[float, float, tuple[Edges, ...]]:
        """The cheapest program: its end, when the MAC array and memory are free, and its tiles."""
        shared = self.shared.admissions.shared
        none = shared(Scoreboard(self.context.machine.atom_bytes))
        begun = _Begun(0.0, Progress.start(), [none], [None], [0])
        for turn in turns:
            for layer in turn:
                begun = self._after(begun, layer)
            drained = [shared(each.drained()) for each in begun.scoreboard]
            begun = replace(begun, scoreboard=drained, written="")
        progress, tiling = begun.progress, begun.tilings[0]
        ends = begun.base + float(progress.end[0]), 2 * begun.base + float(progress.free[0])
        return *ends, tiling.path if tiling else ()

    def _after(self, begun: _Begun, layer: PlannedLayer) -> _Begun:
        """The cheapest beginnings with one more layer, some with every tiling of it."""
        reads = self.context.placed[layer.node.inputs[0]].view.buffer.name == begun.written
        before = [tiling.edges[-2:-1] if reads and tiling else () for tiling in begun.tilings]
        like, *addresses = self.shared.likeness(layer)
        scoreboards = tuple(map(id, begun.scoreboard))
        state = begun.progress.state.tobytes()
        key = (like or layer.name, *addresses, state, scoreboards, tuple(before), tuple(begun.order))
        if key not in self.steps:
            self.steps[key] = self._step(begun, layer, before)
        step = self.steps[key]
        tilings = [_Tiling(edges, begun.tilings[number]) for number, edges in step.tiled]
        written = self.context.placed[layer.name].view.buffer.name
        return _Begun(begun.base + step.base, step.progress, step.scoreboard, tilings, step.order, written)

    def _step(self, begun: _Begun, layer: PlannedLayer, before: Sequence[Edges]) -> _Step:
        """One more layer; before: where the last tile of what it reads begins in each beginning, if known."""
        groups: dict[Edges, list[int]] = {}
        for number, edge in enumerate(before):
            for edges in self.shared.tried(edge, layer):
                groups.setdefault(edges, []).append(number)
        parts = [self._with(begun, layer, edges, numbers) for edges, numbers in groups.items()]
        progress = Progress.joined([part for part, _ in parts])
        scoreboard = [each for _, part in parts for each in part]
        steps = [(number, edges) for edges, numbers in groups.items() for number in numbers]
        ranked = sorted(range(len(steps)), key=lambda at: (begun.order[steps[at][0]], steps[at][1]))
        order = np.empty(len(steps), np.int64)
        order[ranked] = np.arange(len(steps))
        kept: list[int] = []
        ranks: dict[Edges, int] = {}
        for at in np.lexsort((order, progress.free, progress.end)).tolist():
            edges = steps[at][1]
            ranks[edges] = ranks.get(edges, 0) + 1
            if ranks[edges] <= KEPT:
                kept.append(at)
        base, rebased = progress.take(kept).rebased()
        ordered = np.argsort(np.argsort(order[kept])).tolist()
        return _Step(base, rebased, [scoreboard[at] for at in kept], [steps[at] for at in kept], ordered)

    def _with(
        self, begun: _Begun, layer: PlannedLayer, edges: Edges, numbers: Sequence[int]
    ) -> tuple[Progress, list[Scoreboard]]:
        """Some beginnings with one more layer, in these tiles."""
        machine, admit = self.context.machine, self.shared.admissions.admit
        if (layer.name, edges) not in self.known:
            self.known[layer.name, edges] = self._operations(layer, edges)
        progress, scoreboard = begun.progress.take(numbers), [begun.scoreboard[number] for number in numbers]
        for work, place in self.known[layer.name, edges]:
            different = {id(each): each for each in scoreboard}
            known = {key: admit(each, work.operation, place) for key, each in different.items()}
            admitted = [known[id(each)] for each in scoreboard]
            running = np.array([counts for counts, _ in admitted]).T
            scoreboard = [each for _, each in admitted]
            progress = progress.after(work, running, machine)
        return progress, scoreboard

    def _operations(self, layer: PlannedLayer, edges: Edges) -> list[tuple[Work, Touched]]:
        """Work and places of a layer in these tiles; the work is that of an equal layer, if one is known."""
        machine, found = self.context.machine, self.shared.operations(layer, edges)
        key = self.shared.likeness(layer)[0] or layer.name, edges
        if key not in self.alike:
            anew = (divided_anew(machine, each, self.context.preferred_banks) for each, _ in found)
            self.alike[key] = [Work.of(each, machine) for each in anew]
        return list(zip(self.alike[key], (place for _, place in found), strict=True))


def _edges(context: Context, before: Edges, layer: PlannedLayer) -> Iterator[Edges]:
    """The tilings that are tried; before: where the last tile of what the layer reads begins, if known."""
    if layer.node.op != "NvConv":
        yield ()
        return
    height = context.placed[layer.name].view.height
    most = largest_tile(context, layer)
    least, passed = -(-height // most), len(passes(context, layer.node))
    more = (each for each in MORE if least < each <= height and each * passed <= OPERATIONS)
    for count in sorted({least, *more}):
        edges = equal_edges(height, count, layer.form)
        yield edges
        early = _early_rows(context, before, layer, edges[1]) if layer.form.kind != "winograd" else 0
        if count > 1 and 0 < early < edges[1]:
            yield (0, early, *(edges[2:] if edges[2] - early <= most else edges[1:]))


def _early_rows(context: Context, before: Edges, layer: PlannedLayer, most: int) -> int:
    """Rows of the result, so many at most, whose input the last tile of the layer before does not write.

    before: where that tile begins.
    """
    if not before:
        return most
    return next((rows for rows in range(most, 0, -1) if needed_lines(context, layer, rows) <= before[0]), 0)
