"""In how many tiles of rows each layer is computed, and how the CBUF is divided: as the program is fastest.

Layer by layer the cheapest beginnings of the program are kept, each with where its engines stand, so that a tile
which lets the next layer's input be fetched in time is worth what it costs. A layer's first tile ends where the
layer before allows it to be fetched while the last tile of that one is computed. Banks are divided alike
throughout, in each of a few proportions in turn. Everything is compared by the model of pingpong and nothing else.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from npuc.targets.nvdla.operations.pingpong import Progress, Work
from npuc.targets.nvdla.operations.scoreboard import Flights, Touched, touched
from npuc.targets.nvdla.operations.tiling import equal_edges
from npuc.targets.nvdla.selection import Context, Layer, largest_tile, needed_lines, passes, select

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


@dataclass(frozen=True)
class _Begun:
    """A beginning of the program."""

    progress: Progress
    flights: Flights
    edges: tuple[Edges, ...] = ()
    written: str = ""
    """The buffer that the last layer writes."""

    @property
    def cost(self) -> tuple[float, float, tuple[Edges, ...]]:
        """What is compared: the end, then when the MAC array and memory are free."""
        return self.progress.end, self.progress.computed + self.progress.fetched, self.edges


def plan(context: Context, turns: Sequence[Sequence[Layer]]) -> Plan:
    """The plan of a program; turns: its layers, one sequence for each turn of NVDLA between those of the host."""
    layers = [layer for turn in turns for layer in turn]
    found: tuple[_Begun, int] | None = None
    for quarters in PROPORTIONS:
        banks = max(context.machine.cbuf_banks * quarters // 4, 1)
        begun = _Search(replace(context, data_banks=banks)).run(turns)
        if found is None or begun.cost < found[0].cost:
            found = begun, banks
    assert found is not None
    return Plan({each.name: edges for each, edges in zip(layers, found[0].edges, strict=True)}, found[1])


def _cheapest(begun: Sequence[_Begun]) -> list[_Begun]:
    """The cheapest beginnings, some with every tiling of the last layer."""
    ranks: dict[Edges, int] = {}
    found: list[_Begun] = []
    for each in sorted(begun, key=lambda each: each.cost):
        ranks[each.edges[-1]] = rank = ranks.get(each.edges[-1], 0) + 1
        if rank <= KEPT:
            found.append(each)
    return found


@dataclass
class _Search:
    """Operations that were selected once are known afterwards."""

    context: Context
    known: dict[tuple[str, Edges], list[tuple[Work, Touched]]] = field(
        default_factory=dict[tuple[str, Edges], "list[tuple[Work, Touched]]"]
    )

    def run(self, turns: Sequence[Sequence[Layer]]) -> _Begun:
        """The cheapest program."""
        kept = [_Begun(Progress(), Flights(self.context.machine.atom_bytes))]
        for turn in turns:
            for layer in turn:
                following = [
                    self._after(begun, layer, edges) for begun in kept for edges in self._edges(begun, layer)
                ]
                kept = _cheapest(following)
            kept = [replace(each, flights=each.flights.landed(), written="") for each in kept]
        return kept[0]

    def _after(self, begun: _Begun, layer: Layer, edges: Edges) -> _Begun:
        """A beginning with one more layer."""
        machine, progress, flights = self.context.machine, begun.progress, begun.flights
        if (layer.name, edges) not in self.known:
            operations = select(self.context, layer, edges)
            self.known[layer.name, edges] = [
                (Work.of(each, machine), touched(each, machine.atom_bytes)) for each in operations
            ]
        for work, place in self.known[layer.name, edges]:
            admission, flights = flights.admit(work.operation, place)
            progress = progress.after(work, admission, machine)
        buffer = self.context.placed[layer.name].view.buffer.name
        return _Begun(progress, flights, (*begun.edges, edges), buffer)

    def _edges(self, begun: _Begun, layer: Layer) -> Iterator[Edges]:
        """The tilings that are tried."""
        if layer.node.op != "NvConv":
            yield ()
            return
        height = self.context.placed[layer.name].view.height
        most = largest_tile(self.context, layer)
        least, passed = -(-height // most), len(passes(self.context, layer.node))
        more = (each for each in MORE if least < each <= height and each * passed <= OPERATIONS)
        for count in sorted({least, *more}):
            edges = equal_edges(height, count, layer.form)
            yield edges
            early = self._early_rows(begun, layer, edges[1]) if layer.form.kind != "winograd" else 0
            if count > 1 and 0 < early < edges[1]:
                yield (0, early, *(edges[2:] if edges[2] - early <= most else edges[1:]))

    def _early_rows(self, begun: _Begun, layer: Layer, most: int) -> int:
        """Rows of the result, so many at most, whose input the last tile of the layer before does not write."""
        read = self.context.placed[layer.node.inputs[0]].view.buffer.name
        before = begun.edges[-1] if begun.edges and read == begun.written else ()
        if not before:
            return most
        return next(
            (rows for rows in range(most, 0, -1) if needed_lines(self.context, layer, rows) <= before[-2]), 0
        )
