"""From the integer graph to an EasyNPU program: regions -> jobs -> places -> words, images and steps.

Maps that are still in the DTCMs: rows that a segment need not load again, and rows that need not be stored.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain, pairwise

import numpy as np

from npuc.conditions.host import constant_steps, host_step
from npuc.errors import DoesNotFit, UnsupportedOperator
from npuc.frozen import frozen
from npuc.host.allocation import Buffer
from npuc.host.step import HostStep
from npuc.ir import Array, Graph, Node
from npuc.quantize.improvement.mixed import REASON
from npuc.quantize.network.construction import Quantised
from npuc.targets.easynpu.layers.nodes import PIXEL, pixel
from npuc.targets.easynpu.layers.rewrites import (
    with_latest_first,
    with_maps_apart,
    with_repeated,
    with_reshape_words,
)
from npuc.targets.easynpu.layers.support import HOST
from npuc.targets.easynpu.layers.windows import MapWindow, whole
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.memory import Map, MapPlace, groups
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.plan.apart import TensorWindow, places, with_sums_in_bands, with_taps_apart
from npuc.targets.easynpu.plan.documented import expect_words
from npuc.targets.easynpu.plan.grids import Strip, shares_of, tiles_of, weights
from npuc.targets.easynpu.plan.implicit import implicit
from npuc.targets.easynpu.plan.placement import (
    Crossing,
    PlacedJob,
    Placement,
    Run,
    Usage,
    cut,
    explicit,
    pieces,
    placeable,
)
from npuc.targets.easynpu.plan.regions import Region, outputs_of, regions_of, run_of
from npuc.targets.easynpu.plan.sections import in_sections, in_wide_sections
from npuc.targets.easynpu.plan.staying import beside, with_staying_maps
from npuc.targets.easynpu.plan.strips import OBJECTIVES, StripPlan, best_order, plans, untiled
from npuc.targets.easynpu.plan.turns import half, in_turns, in_upper_half
from npuc.targets.easynpu.program.artefact import ImageLoad, Segment, Step, TensorMove
from npuc.targets.easynpu.program.emission import EmittedJob, emit_job, expect_fields, without_data
from npuc.targets.easynpu.program.overlap import with_loads_ahead
from npuc.targets.easynpu.program.residence import EmittedRun, WeightImage, arranged, resident


class Resident:
    """The windows of maps known to be in the map memories between segments."""

    def __init__(self) -> None:
        self.known: list[TensorMove] = []

    def load(self, moves: Sequence[TensorMove]) -> tuple[TensorMove, ...]:
        """The rows that must still be loaded. They become resident, and what they overwrite no longer is."""
        needed = tuple(part for move in moves for part in move.parts(self._missing(move)))
        for move in needed:
            self._cover(move.map)
        self.known += needed
        return needed

    def run(self, placement: Placement, segment: Segment) -> None:
        """Records the maps that a segment's jobs overwrite, and those that the host has stored."""
        for placed in placement.jobs:
            job = placed.job
            for view, place in ((job.result, placed.dst), (job.kept or job.result, placed.stored)):
                if place is not None and not job.leaves:
                    self._cover(_map(place, view.channels, view.height, view.width))
        self.known += [move for move in segment.stores if move not in self.known]

    def _missing(self, move: TensorMove) -> Array:
        """For every row of a move, whether it is not where the move would put it."""
        missing = np.ones(move.height, np.bool_)
        for known in self.known:
            first = known.start[1] - move.start[1]
            if move.part(first, known.height) == known:
                missing[max(first, 0) : max(first + known.height, 0)] = False
        return missing

    def _cover(self, written: Map) -> None:
        first, last = written.span
        left: list[TensorMove] = []
        for move in self.known:
            start, end = move.map.span
            if move.place.memory != written.place.memory or start > last or end < first:
                left.append(move)
                continue
            row, _ = replace(move.map, height=1).span
            low = row + np.arange(move.height) * move.place.row
            high = low + replace(move.map, height=1).span[1] - row
            left += move.parts((low > last) | (high < first))
        self.known = left


def without_dead_stores(steps: Sequence[Step], outputs: Collection[str]) -> tuple[Step, ...]:
    """The steps without the stored rows that no later step reads. outputs: tensors that leave the program."""
    read = {name for step in steps if isinstance(step, HostStep) for name in step.inputs}.union(outputs)
    loads: dict[str, list[tuple[slice, ...]]] = {}
    for step in steps:
        for move in step.loads if isinstance(step, Segment) else ():
            loads.setdefault(move.tensor, []).append(move.window[1:])

    def kept(step: Step) -> Step:
        if isinstance(step, HostStep):
            return step
        stores = [
            part
            for move in step.stores
            for part in ([move] if move.tensor in read else move.parts(move.rows_in(loads.get(move.tensor, ()))))
        ]
        return replace(step, stores=tuple(stores))

    return tuple(map(kept, steps))


def _map(place: MapPlace, channels: int, height: int, width: int) -> Map:
    return Map(place, height, width, groups(channels))


@frozen
class Lowered:
    """The parts of a program: steps, words and the weight image, and, for the report, the jobs behind them."""

    quantised: Quantised
    """The network, its integer graph with every tensor that lowering makes: repeated operands, reshape words, maps
    that are stored apart."""
    init: tuple[ImageLoad, ...]
    """What is loaded before the first inference, and stays."""
    steps: tuple[Step, ...]
    words: tuple[isa.Instruction, ...]
    weights: bytes
    jobs: tuple[EmittedJob, ...]
    usage: Mapping[str, Usage]
    plans: tuple[Mapping[str, StripPlan], ...]
    """Per run of array nodes, the best plan for each objective."""
    windows: Mapping[str, TensorWindow]
    """Tensors that are windows of others (apart)."""

    def overlapped_cycles(self, machine: Machine) -> int:
        """Cycles in which both array and bus are busy."""
        jobs, found = iter(self.jobs), 0
        for segment in self.steps:
            cycles, words = 0, segment.count if isinstance(segment, Segment) else 0
            while words:
                job = next(jobs)
                cycles, words = cycles + job.tiling.cycles, words - len(job.words)
            found += segment.overlapped_cycles(cycles, machine) if isinstance(segment, Segment) else 0
        return found

    def cost(self, machine: Machine, objective: str) -> float:
        """What plans for this objective minimise: words of traffic, or cycles of computation and transfers."""
        transfers = [each for step in self.steps if isinstance(step, Segment) for each in step.transfers]
        counted = [each for each in transfers if isinstance(each, TensorMove) or each.memory == "weight"]
        words = sum(each.words for each in (transfers if objective == "time" else counted))
        hidden = self.overlapped_cycles(machine) if objective == "time" else 0
        return words * weights(machine)[objective] + sum(job.tiling.cycles for job in self.jobs) - hidden


Way = tuple[Mapping[str, StripPlan], Callable[[], Iterable[Placement]]]
"""A region's plans by objective, and what gives the placed runs, one per segment, of that for this objective."""


def lower(
    quantised: Quantised,
    machine: Machine,
    laid_out: frozenset[str] = frozenset(),
    *,
    documented: bool,
    objective: str = "time",
) -> Lowered:
    """The program of an integer graph. laid_out: maps that the host makes of its tensors for the machine.

    documented: use only the document's words and implicit addresses; raises UnsupportedOperator (E204) for a graph
    that needs more. objective: what tiled plans minimise. Raises DoesNotFit where a memory, a pad or a field is
    too small. On a machine with overlap, tiles lie in halves of the memories if the whole program then takes less.
    """
    graph = with_latest_first(with_repeated(quantised.graph)) if documented else quantised.graph
    graph = with_reshape_words(
        graph, lambda graph, node: node.output not in laid_out and _holds(graph, node, machine, documented)
    )
    if not documented:
        held = machine.fmap_words + machine.skip_words
        graph = with_maps_apart(graph, lambda name: whole(graph, name).words > held)
    graph, apart = (graph, frozenset[str]()) if documented else with_taps_apart(graph, machine)
    windows, moved = places(graph, apart), apart | laid_out
    banded, bands = (graph, {}) if documented else with_sums_in_bands(graph, machine)
    arrays = [each.array for each in regions_of(banded, machine, moved=moved) if each.array] if bands else []
    if arrays and all(_fits(banded, nodes, machine) for nodes in arrays):
        graph, windows = banded, {**windows, **bands}
    regions = regions_of(graph, machine, documented=documented, moved=moved)
    steps: list[HostStep | Region] = []
    read: set[str] = set()
    for region in regions:
        steps += constant_steps(graph, region.host, read)
        for node in region.host:
            step = _host_step(graph, node, regions, region) if node.output not in apart else None
            if step is not None:
                steps.append(replace(step, conversion=True) if node.output in laid_out else step)
        steps += [region] if region.array else []
    ways = [ways_of(graph, each.array, machine, documented, objective) for each in regions if each.array]
    programs: list[list[Way]] = []
    for number in range(max(map(len, ways), default=1)):
        chosen = [each[number % len(each)] for each in ways]
        if all([way[0] for way in chosen] != [way[0] for way in known] for known in programs):
            programs.append(chosen)
    build = partial(_program, replace(quantised, graph=graph), machine, steps, windows, documented=documented)
    found = build(programs[0])
    for chosen in programs[1:]:
        with suppress(DoesNotFit):  # of a tile beside maps that stay, or for which only maps' lifetimes had room
            found = min(found, build(chosen), key=lambda each: each.cost(machine, objective))
    return found


def _program(
    quantised: Quantised,
    machine: Machine,
    steps: Sequence[HostStep | Region],
    windows: Mapping[str, TensorWindow],
    ways: Sequence[Way],
    *,
    documented: bool,
) -> Lowered:
    """The program that computes the array nodes of each region among the steps in this way."""
    graph, streams, left = quantised.graph, WeightImage(), iter(ways)
    emitted: list[HostStep | EmittedRun] = []
    for step in steps:
        if isinstance(step, HostStep):
            emitted.append(step)
            continue
        for placement in next(left)[1]():
            full = [emit_job(_told(each, windows), machine) for each in placement.jobs]
            stream = streams.add(b"".join(job.weights.tobytes() for job in full))
            jobs = tuple(map(without_data, full))
            emitted.append(EmittedRun(replace(placement, jobs=tuple(each.placed for each in jobs)), jobs, stream))
    parts = [[each] for each in emitted if isinstance(each, EmittedRun)]
    if parts and not documented:
        parts = arranged([*chain.from_iterable(parts)], machine, streams.contents)
    runs = [*chain.from_iterable(parts)]
    init, loads = resident([(run.stream, run.weights_at) for run in runs], machine, streams.contents)
    maps, words, made = Resident(), 0, list[Segment]()
    for run, images in zip(runs, loads, strict=True):
        segment = _segment(graph, windows, run.placement, run.jobs, words, images)
        made.append(replace(segment, loads=maps.load(segment.loads)))
        maps.run(run.placement, segment)
        words += segment.count
    if len(made) == 1:
        itcm, *others = made[0].images
        init, made = (itcm, *init), [replace(made[0], images=tuple(others))]
    in_order, in_parts, done = iter(made), iter(parts), list[Step]()
    for step in emitted:
        done += [step] if isinstance(step, HostStep) else [next(in_order) for _ in next(in_parts)]
    ordered = without_dead_stores(done, graph.outputs)
    return Lowered(
        quantised,
        init,
        with_loads_ahead(ordered, runs, machine) if machine.overlap else ordered,
        tuple(word for run in runs for job in run.jobs for word in job.words),
        bytes(streams.image),
        tuple(job for run in runs for job in run.jobs),
        _usage(runs, [Segment(init, (), 0, ()), *made]),
        tuple(plans for plans, _ in ways),
        windows,
    )


def _told(placed: PlacedJob, windows: Mapping[str, TensorWindow]) -> PlacedJob:
    """The job with its result as the part of the tensor of which it is a window."""
    job = placed.job
    if (window := windows.get(job.stages[-1].node.output)) is None:
        return placed
    stages = tuple(replace(stage, tensor=stage.tensor and window.tensor) for stage in job.stages)
    return replace(placed, job=replace(job, stages=stages, start=window.shifted(job.start)))


def _holds(graph: Graph, node: Node, machine: Machine, documented: bool) -> bool:
    """Whether a node's map and its result, which are not tiled, fit together."""
    maps = [Buffer(name, whole(graph, name).words, 0, 0) for name in (node.inputs[0], node.output)]
    if documented:
        return sum(each.size for each in maps) <= machine.fmap_words
    return placeable(maps, set(), machine)


def _fits(graph: Graph, nodes: Sequence[Node], machine: Machine) -> bool:
    """Whether all maps of these nodes fit the DTCMs together."""
    outputs = {name: whole(graph, name) for name in outputs_of(graph, nodes)}
    try:
        explicit(run_of(graph, best_order(graph, nodes, machine), machine, outputs, documented=False), machine)
    except DoesNotFit:
        return False
    return True


def ways_of(graph: Graph, nodes: Sequence[Node], machine: Machine, documented: bool, objective: str) -> list[Way]:
    """The ways to compute nodes that are worth comparing: without and with maps that stay.

    With overlap, also both with tiles in turns where that is estimated to take less. Nodes run at once have one.

    All nodes run at once, or in tiles where the maps do not fit. Raises DoesNotFit where not even one tile of one
    layer fits, or where tiles are needed and documented addressing cannot express them.
    """
    nodes = best_order(graph, nodes, machine)
    if documented:
        expect_words(graph, nodes, machine)
    outputs = {name: whole(graph, name) for name in outputs_of(graph, nodes)}
    run = run_of(graph, nodes, machine, outputs, documented=documented)
    shares = shares_of(run.jobs)
    try:
        expect_fields(run.jobs)
        found = placed(run, machine, documented)
        return [(dict.fromkeys(OBJECTIVES, untiled(graph, nodes, machine, shares, found)), lambda: found)]
    except (DoesNotFit, UnsupportedOperator) as error:
        if error.problems[0].code not in ("E302", "E301", *(("E204",) if documented else ())):
            raise
    best = plans(graph, nodes, machine, shares, documented=documented)
    kinds, stays = [best], False
    if not documented:
        strips = {k: with_staying_maps(graph, p.strips, machine, shares, k) for k, p in best.items()}
        stays = any(each.staying for each in strips[objective])
        kinds.append({k: replace(p, strips=strips[k]) for k, p in best.items()} if stays else best)
    if not documented and machine.overlap and objective == "time":
        known = [each["time"] for each in kinds[: 1 + stays]]
        turned = [replace(plan, strips=in_turns(graph, plan.strips, machine, shares)) for plan in known]
        kinds += [{**each, "time": plan} for each, plan in zip(kinds, turned * 2, strict=False)]
    return [(each, partial(_tiles, graph, each[objective], machine, documented)) for each in kinds]


def _tiles(graph: Graph, plan: StripPlan, machine: Machine, documented: bool) -> Iterator[Placement]:
    """The placed runs of a plan, tile by tile.

    Documented words reach a map only at a fixed address. A range may begin with the tile at the top of its map if
    the range before it has ended there; that one's results are left where they are read next.
    """
    if not documented:
        upper = False
        for strip in plan.strips:
            for tile in tiles_of(graph, strip.nodes, strip.grid):
                yield from _of_tile(graph, strip, tile, machine, upper=upper)
                upper ^= strip.turns
        return
    runs = (
        run_of(graph, strip.nodes, machine, tile, documented=True)
        for strip, tiles in _in_turns(graph, plan)
        for tile in tiles
    )
    for run, following in pairwise(chain(runs, [None])):
        assert run is not None
        if following is None or not set(run.outputs).intersection(following.inputs):
            yield from implicit(run, machine)
        else:
            yield from implicit(run, machine, implicit(following, machine)[0].inputs)


def _of_tile(
    graph: Graph, strip: Strip, tile: Mapping[str, MapWindow], machine: Machine, *, upper: bool
) -> Sequence[Placement]:
    """The placed runs of a tile, beside the maps that stay. upper: in turns, it has the upper half."""
    run, rest = beside(graph, strip, tile, machine)
    if strip.turns:
        found = _explicit_segments(run, half(rest))
        return [in_upper_half(each, half(rest)) for each in found] if upper else found
    try:
        return _explicit_segments(run, rest) if strip.free else placed(run, machine, documented=False)
    except DoesNotFit:
        if strip.staying:
            raise
    return in_sections(graph, strip.nodes, rest, tile)


def _in_turns(graph: Graph, plan: StripPlan) -> Iterator[tuple[Strip, Sequence[Mapping[str, MapWindow]]]]:
    """The tiles of every strip, from the bottom up and from the top down in turns."""
    from_top = False
    for strip in plan.strips:
        tiles = tiles_of(graph, strip.nodes, strip.grid)
        yield strip, tiles if from_top else tiles[::-1]
        from_top = not from_top or len(tiles) == 1


def placed(run: Run, machine: Machine, documented: bool) -> list[Placement]:
    """The run, cut into segments where words or weights exceed the machine, each with its places.

    Addresses are implicit where this needs no more host transfers and no more words, or where only they are
    allowed; otherwise they are explicit.
    """
    if documented and run.jobs:
        return implicit(run, machine)
    try:
        found = implicit(run, machine) if run.jobs else []  # movement may need no word
        loads = [each.tensor for placement in found for each in placement.inputs]
        if run.jobs and len(loads) <= len(run.inputs) and sum(len(each.jobs) for each in found) <= len(run.jobs):
            return found
    except (UnsupportedOperator, DoesNotFit):
        pass
    try:
        return _explicit_segments(run, machine)
    except DoesNotFit as error:
        try:
            return in_wide_sections(run, machine)
        except DoesNotFit:
            raise error from None


def _explicit_segments(run: Run, machine: Machine) -> list[Placement]:
    """The run placed as a whole, then cut; maps stay in the DTCMs from segment to segment."""
    placement = explicit(run, machine)
    placed = [piece for each in placement.jobs for piece in _in_pieces(each, machine)]
    segments = cut([each.job for each in placed], machine, extended=True)
    found: list[Placement] = []
    start = 0
    for position, jobs in enumerate(segments):
        last = position == len(segments) - 1
        here = tuple(replace(each, job=job) for each, job in zip(placed[start:], jobs, strict=False))
        inputs, outputs = placement.inputs if position == 0 else (), placement.outputs if last else ()
        found.append(Placement(here, inputs, outputs, placement.usage))
        start += len(jobs)
    return found


def _in_pieces(placed: PlacedJob, machine: Machine) -> Iterator[PlacedJob]:
    """A placed job, or the parts that it is loaded in, with their places."""
    sources = iter(placed.sources)
    for job in pieces(placed.job, machine):
        places = tuple(next(sources) for _ in job.sources)
        ends = {} if not job.leaves else {"opb": None, "stored": None}
        yield replace(placed, job=job, sources=places, **ends)


def _segment(
    graph: Graph,
    windows: Mapping[str, TensorWindow],
    placement: Placement,
    jobs: Sequence[EmittedJob],
    words: int,
    weights: Sequence[ImageLoad],
) -> Segment:
    """The segment of a placed run: the words and maps that the host loads and stores.

    windows: tensors that are moved from and to others.
    """
    count = sum(len(job.words) for job in jobs)
    images = [ImageLoad("itcm", 0, "itcm.bin", words, count), *weights]

    def move(crossing: Crossing) -> TensorMove:
        window = windows.get(crossing.tensor, TensorWindow(crossing.tensor))
        start = window.shifted(crossing.window.start)
        return TensorMove(window.tensor, graph.shape(window.tensor), crossing.place, *crossing.window.shape, start)

    def moves(crossings: Sequence[Crossing]) -> tuple[TensorMove, ...]:
        return tuple(map(move, crossings))

    return Segment(tuple(images), moves(placement.inputs), count, moves(placement.outputs))


def _host_step(graph: Graph, node: Node, regions: Sequence[Region], region: Region) -> HostStep:
    """A host step for a node of the integer graph."""
    if node.op == PIXEL:
        return HostStep.constant(node.output, pixel(node))
    arrays = [position for position, each in enumerate(regions) if each.array]
    here = regions.index(region)
    at_border = not arrays or here <= arrays[0] or here > arrays[-1]
    return host_step(graph, node, HOST.get(node.op, REASON), at_border=at_border)


def _usage(runs: Sequence[EmittedRun], segments: Sequence[Segment]) -> dict[str, Usage]:
    """Peak and lower bound of every memory over all runs, in words. segments: with the initialisation."""
    found = {
        memory: Usage(
            max((run.placement.usage[memory].peak for run in runs), default=0),
            max((run.placement.usage[memory].lower_bound for run in runs), default=0),
        )
        for memory in ("fmap", "skip")
    }
    least = {
        "weight": max((run.stream[1] for run in runs), default=0),
        "itcm": max((segment.count for segment in segments), default=0),
    }
    for memory, lower_bound in least.items():
        ends = (
            each.address + each.words for segment in segments for each in segment.images if each.memory == memory
        )
        found[memory] = Usage(max(ends, default=0), lower_bound)
    return found
