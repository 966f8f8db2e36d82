"""The planner: how many row tiles each layer has, and how the CBUF is divided, for the fastest program.

A beam search over the layers keeps the cheapest partial plans with the state of their engines, so that a tile that
lets the next layer fetch its input in time is worth its cost. A layer's first tile may end where its input is
complete before the last tile of the previous layer is computed. All layers prefer the same number of data banks; a
few proportions are tried in turn. All costs come from the model of pingpong.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from npuc.frozen import frozen
from npuc.targets.nvdla.operations.operation import Convolution, Operation
from npuc.targets.nvdla.operations.pingpong import EngineProgress, Work
from npuc.targets.nvdla.operations.scoreboard import Scoreboard, Touched, touched_memory
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
"""Partial plans kept for every tiling of their last layer."""
MORE = (2, 3, 4, 6, 8)
"""Numbers of tiles tried besides the fewest."""
OPERATIONS = 32
"""More tiles are not tried if the layer would have more operations than this: its passes overlap already."""
PROPORTIONS = (2, 1, 3)
"""Shares of the banks for data that are tried, in quarters."""

Edges = tuple[int, ...]


@frozen
class TilePlan:
    """The tile edges of every layer by the name of its result, and the banks preferred for data."""

    edges: Mapping[str, Edges]
    data_banks: int
    clocks: float
    """Clocks that the program takes."""


@frozen
class _Tiling:
    """The tiles of the latest layer, linked to those of the layers before it."""

    edges: Edges
    before: _Tiling | None

    @property
    def path(self) -> tuple[Edges, ...]:
        """The edges of every layer, in order."""
        found: list[Edges] = []
        tiling: _Tiling | None = self
        while tiling is not None:
            found.append(tiling.edges)
            tiling = tiling.before
        return tuple(reversed(found))


@frozen
class _Begun:
    """Partial plans side by side, the cheapest first."""

    base: float
    """The time at which their progress begins."""
    progress: EngineProgress
    scoreboard: Sequence[Scoreboard]
    tilings: Sequence[_Tiling | None]
    order: Sequence[int]
    """Ranks of the tilings, the tie-break between partial plans of equal cost."""
    written: str = ""
    """The buffer that the last layer writes."""


@frozen
class _Step:
    """Partial plans with one more layer: for each one kept, the plan that it extends, and its tiles."""

    base: float
    progress: EngineProgress
    scoreboard: Sequence[Scoreboard]
    tiled: Sequence[tuple[int, Edges]]
    order: Sequence[int]


def plan(context: Context, turns: Sequence[Sequence[PlannedLayer]]) -> TilePlan:
    """The plan of a program; turns: its layers, one sequence for each phase of NVDLA between those of the host."""
    layers = [layer for turn in turns for layer in turn]
    found: tuple[tuple[float, float, tuple[Edges, ...]], int] | None = None
    shared = _Shared(context)
    for quarters in PROPORTIONS:
        banks = max(context.machine.cbuf_banks * quarters // 4, 1)
        cost = _Search(replace(context, data_banks=banks), shared).run(turns)
        if found is None or cost < found[0]:
            found = cost, banks
        if shared.any_share_suffices():
            break
    assert found is not None
    return TilePlan(
        {each.name: edges for each, edges in zip(layers, found[0][2], strict=True)}, found[1], found[0][0]
    )


class _Admissions:
    """A cache of admissions: the sets of operations in flight repeat, so each case is computed once."""

    def __init__(self) -> None:
        self._places: dict[Touched, Touched] = {}
        self._flights: dict[tuple[object, ...], Scoreboard] = {}
        self._known: dict[tuple[int, int], tuple[tuple[int, int, int], Scoreboard]] = {}

    def admit(
        self, scoreboard: Scoreboard, operation: Operation, place: Touched
    ) -> tuple[tuple[int, int, int], Scoreboard]:
        """How many operations may still run when it is programmed, fetches and writes; the next scoreboard.

        scoreboard and place are objects that live as long as this one.
        """
        key = id(scoreboard), id(place)
        if key not in self._known:
            admission, after = scoreboard.admit(operation, place)
            program, fetch, write = (scoreboard.count - each for each in admission.counts)
            self._known[key] = (program, fetch, write), self.canonical_scoreboard(after)
        return self._known[key]

    def canonical_place(self, place: Touched) -> Touched:
        """The canonical object of all equal ones."""
        return self._places.setdefault(place, place)

    def canonical_scoreboard(self, scoreboard: Scoreboard) -> Scoreboard:
        """The canonical object of all scoreboards that differ only in the number of earlier operations."""
        key = (
            *((id(each.touched), each.tables, *each.groups.items()) for each in scoreboard.issued),
            *sorted(scoreboard.groups.items()),
        )
        return self._flights.setdefault(key, scoreboard)


@dataclass
class _Shared:
    """What is known of layers for any division of the banks."""

    context: Context
    likes: dict[str, tuple[object, int, int]] = field(default_factory=dict[str, tuple[object, int, int]])
    """The likeness of every layer, and the addresses of its maps."""
    tilings: dict[tuple[Edges, object], list[Edges]] = field(
        default_factory=dict[tuple[Edges, object], "list[Edges]"]
    )
    """The tilings to try, by the start of the last tile of the layer's input and by likeness or name."""
    admissions: _Admissions = field(default_factory=_Admissions)
    selected: dict[tuple[object, Edges], list[tuple[Operation, Touched]]] = field(
        default_factory=dict[tuple[object, Edges], "list[tuple[Operation, Touched]]"]
    )
    """Operations and the memory they touch, by likeness or name; with a likeness, for maps at address 0."""

    def operations(self, layer: PlannedLayer, edges: Edges) -> list[tuple[Operation, Touched]]:
        """The operations of a layer in these tiles, each with the memory it touches; taken from an equal layer if
        known.
        """
        like, source, result = self.likeness(layer)
        key = like or layer.name, edges
        if key not in self.selected:
            atom = self.context.machine.atom_bytes
            found = [(each, touched_memory(each, atom)) for each in select(self.context, layer, edges)]
            self.selected[key] = [(each, place.shift(-source, -result)) for each, place in found]
        return [
            (each, self.admissions.canonical_place(place.shift(source, result)))
            for each, place in self.selected[key]
        ]

    def any_share_suffices(self) -> bool:
        """Whether the operations so far take the same time with any share of the banks that is tried.

        Then the least of these shares holds the inputs of two convolutions, and all weights of one.
        """
        machine, least = self.context.machine, self.context.machine.cbuf_banks // 4
        convolutions = [
            each for found in self.selected.values() for each, _ in found if isinstance(each, Convolution)
        ]
        return all(
            2 * each.banks.least[0] <= least
            and each.banks.least[1] <= least
            and each.kernels.bytes <= least * machine.bank_bytes
            for each in convolutions
        )

    def likeness(self, layer: PlannedLayer) -> tuple[object, int, int]:
        """The layer's likeness and the addresses of its maps, computed once."""
        if layer.name not in self.likes:
            self.likes[layer.name] = likeness(self.context, layer)
        return self.likes[layer.name]

    def tilings_of(self, before: Edges, layer: PlannedLayer) -> list[Edges]:
        """The tilings to try, taken from an equal layer if known."""
        key = before, self.likeness(layer)[0] or layer.name
        if key not in self.tilings:
            self.tilings[key] = list(_edges(self.context, before, layer))
        return self.tilings[key]


@dataclass
class _Search:
    """The search for one division of the banks; caches the work of layers and the steps taken."""

    context: Context
    shared: _Shared
    known: dict[tuple[str, Edges], list[tuple[Work, Touched]]] = field(
        default_factory=dict[tuple[str, Edges], "list[tuple[Work, Touched]]"]
    )
    alike: dict[tuple[object, Edges], list[Work]] = field(default_factory=dict[tuple[object, Edges], "list[Work]"])
    """The work of layers, by likeness or name."""
    steps: dict[tuple[object, ...], _Step] = field(default_factory=dict[tuple[object, ...], _Step])

    def run(self, turns: Sequence[Sequence[PlannedLayer]]) -> tuple[float, float, tuple[Edges, ...]]:
        """The cheapest program: its end, the times at which array and CDMA are free (summed), its tiles."""
        shared = self.shared.admissions.canonical_scoreboard
        none = shared(Scoreboard(self.context.machine.atom_bytes))
        begun = _Begun(0.0, EngineProgress.start(), [none], [None], [0])
        for turn in turns:
            for layer in turn:
                begun = self._extend_plans(begun, layer)
            drained = [shared(each.drain()) for each in begun.scoreboard]
            begun = replace(begun, scoreboard=drained, written="")
        progress, tiling = begun.progress, begun.tilings[0]
        ends = begun.base + float(progress.end[0]), 2 * begun.base + float(progress.free_times[0])
        return *ends, tiling.path if tiling else ()

    def _extend_plans(self, begun: _Begun, layer: PlannedLayer) -> _Begun:
        """The cheapest partial plans with one more layer."""
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
        """One more layer; before: in each plan, where the last tile of the layer's input begins, if known."""
        groups: dict[Edges, list[int]] = {}
        for number, edge in enumerate(before):
            for edges in self.shared.tilings_of(edge, layer):
                groups.setdefault(edges, []).append(number)
        parts = [self._append_layer(begun, layer, edges, numbers) for edges, numbers in groups.items()]
        progress = EngineProgress.join([part for part, _ in parts])
        scoreboard = [each for _, part in parts for each in part]
        steps = [(number, edges) for edges, numbers in groups.items() for number in numbers]
        ranked = sorted(range(len(steps)), key=lambda at: (begun.order[steps[at][0]], steps[at][1]))
        order = np.empty(len(steps), np.int64)
        order[ranked] = np.arange(len(steps))
        kept: list[int] = []
        ranks: dict[Edges, int] = {}
        for at in np.lexsort((order, progress.free_times, progress.end)).tolist():
            edges = steps[at][1]
            ranks[edges] = ranks.get(edges, 0) + 1
            if ranks[edges] <= KEPT:
                kept.append(at)
        base, rebased = progress.take(kept).rebase()
        ordered = np.argsort(np.argsort(order[kept])).tolist()
        return _Step(base, rebased, [scoreboard[at] for at in kept], [steps[at] for at in kept], ordered)

    def _append_layer(
        self, begun: _Begun, layer: PlannedLayer, edges: Edges, numbers: Sequence[int]
    ) -> tuple[EngineProgress, list[Scoreboard]]:
        """Some of the partial plans, with one more layer in these tiles."""
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
            progress = progress.advance(work, running, machine)
        return progress, scoreboard

    def _operations(self, layer: PlannedLayer, edges: Edges) -> list[tuple[Work, Touched]]:
        """The work of a layer in these tiles, taken from an equal layer if known, and the memory it touches."""
        machine, found = self.context.machine, self.shared.operations(layer, edges)
        key = self.shared.likeness(layer)[0] or layer.name, edges
        if key not in self.alike:
            anew = (divided_anew(machine, each, self.context.preferred_banks) for each, _ in found)
            self.alike[key] = [Work.of(each, machine) for each in anew]
        return list(zip(self.alike[key], (place for _, place in found), strict=True))


def _edges(context: Context, before: Edges, layer: PlannedLayer) -> Iterator[Edges]:
    """The tilings to try; before: where the last tile of the layer's input begins, if known."""
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
    """The most rows of the result, up to `most`, that do not need the last tile of the layer before.

    before: where that tile begins.
    """
    if not before:
        return most
    return next((rows for rows in range(most, 0, -1) if needed_lines(context, layer, rows) <= before[0]), 0)
