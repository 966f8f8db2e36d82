"""From the integer graph to an EasyNPU program: regions -> jobs -> places -> words, images and steps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from npuc.allocation import Buffer
from npuc.errors import DoesNotFit, UnsupportedOperator
from npuc.host import HostStep
from npuc.host_nodes import constant_steps, host_step
from npuc.ir import Graph, Node
from npuc.quantize.improvement.mixed import REASON
from npuc.quantize.network.construction import Quantised
from npuc.targets.easynpu.layers.jobs import Job, Stage
from npuc.targets.easynpu.layers.movement import with_reshape_words
from npuc.targets.easynpu.layers.operators import PIXEL, pixel
from npuc.targets.easynpu.layers.support import HOST
from npuc.targets.easynpu.layers.windows import Window, whole
from npuc.targets.easynpu.machine import isa
from npuc.targets.easynpu.machine.memory import LANES, Place
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.plan.grids import shares_of, tiles_of
from npuc.targets.easynpu.plan.ordering import best_order
from npuc.targets.easynpu.plan.placement import (
    Crossing,
    PlacedJob,
    Placement,
    Run,
    Usage,
    expect_room,
    explicit,
    fits_implicitly,
    implicit,
    implicit_refusal,
    placeable,
)
from npuc.targets.easynpu.plan.regions import Region, outputs_of, regions_of, run_of
from npuc.targets.easynpu.plan.strips import OBJECTIVES, Plan, plans, untiled
from npuc.targets.easynpu.program.artefact import ImageLoad, Segment, Step, TensorMove
from npuc.targets.easynpu.program.emission import EmittedJob, cut, emit_job, expect_fields, pieces


@dataclass(frozen=True)
class Lowered:
    """The program's parts: steps, words, the weight image, and the jobs behind them for the report."""

    steps: tuple[Step, ...]
    words: tuple[isa.Instruction, ...]
    weights: bytes
    jobs: tuple[EmittedJob, ...]
    usage: Mapping[str, Usage]
    plans: tuple[Mapping[str, Plan], ...] = ()
    """Per run of array nodes, the best plan for every objective; empty with documented addressing."""


def lower(quantised: Quantised, machine: Machine, *, documented: bool, objective: str = "time") -> Lowered:
    """The program of an integer graph.

    documented: only the document's words and implicit addresses; raises UnsupportedOperator (E204) for a graph
    that needs more. objective: what tiled plans minimise. Raises DoesNotFit where a memory, a pad or a field is
    too small.
    """
    graph = with_reshape_words(quantised.graph, lambda graph, node: _holds(graph, node, machine, documented))
    regions = regions_of(graph, machine)
    steps: list[Step] = []
    words: list[isa.Instruction] = []
    weights = _WeightImage()
    jobs: list[EmittedJob] = []
    usage: list[Mapping[str, Usage]] = []
    read: set[str] = set()
    considered: list[Mapping[str, Plan]] = []
    for region in regions:
        steps += constant_steps(graph, region.host, read)
        steps += [_host_step(graph, node, regions, region) for node in region.host]
        if not region.array:
            continue
        best, found = computed(graph, region.array, machine, documented, objective)
        considered.append(best)
        for placement in found:
            emitted = [emit_job(each, machine) for each in placement.jobs]
            stream = b"".join(job.weights.tobytes() for job in emitted)
            steps.append(_segment(graph, placement, emitted, len(words), weights.load(stream)))
            words += [word for job in emitted for word in job.words]
            jobs += emitted
            usage.append(placement.usage)
    peaks = _usage(usage, steps)
    return Lowered(tuple(steps), tuple(words), bytes(weights.image), tuple(jobs), peaks, tuple(considered))


def _holds(graph: Graph, node: Node, machine: Machine, documented: bool) -> bool:
    """Whether there is room for a node's map and its result, which are not computed in tiles."""
    maps = [Buffer(name, whole(graph, name).words, 0, 0) for name in (node.inputs[0], node.output)]
    if documented:
        return sum(each.size for each in maps) <= machine.fmap_words
    return placeable(maps, set(), machine)


def expect_no_host(lowered: Lowered) -> None:
    """Raises UnsupportedOperator (E203) for a step of the host that is no conversion of inputs or outputs."""
    for step in lowered.steps:
        if isinstance(step, HostStep) and not step.conversion:
            raise UnsupportedOperator(
                "E203",
                f"it would run on the host: {step.reason}",
                node=step.node,
                op=step.op,
                tensor=step.outputs[0],
                remedy="drop --strict, use a larger machine, or cut the network before it",
            )


class _WeightImage:
    """The weight file: every distinct stream once; a stream that the DTCM still holds is not loaded again."""

    def __init__(self) -> None:
        self.image = bytearray()
        self.starts: dict[bytes, int] = {}
        self.resident = b""

    def load(self, stream: bytes) -> tuple[ImageLoad, ...]:
        """What a segment with this weight stream must load."""
        if not stream or stream == self.resident:
            return ()
        self.resident = stream
        if stream not in self.starts:
            self.starts[stream] = len(self.image) // LANES
            self.image += stream
        return (ImageLoad("weight", 0, "weight.bin", self.starts[stream], len(stream) // LANES),)


def computed(
    graph: Graph, nodes: Sequence[Node], machine: Machine, documented: bool, objective: str
) -> tuple[Mapping[str, Plan], Iterable[Placement]]:
    """The placed runs that compute these nodes, one per segment: all at once, or in tiles where maps do not fit.

    Before them the best plan for every objective, of which the runs follow one; none with documented addressing.
    Raises DoesNotFit where not even one tile of one layer fits, or where tiles would be needed and documented
    addressing cannot express them.
    """
    nodes = best_order(graph, nodes, machine)
    outputs = {name: whole(graph, name) for name in outputs_of(graph, nodes)}
    run = run_of(graph, nodes, machine, outputs, documented=documented)
    shares = shares_of(run.jobs)
    try:
        expect_fields(run.jobs)
        found = placed(run, machine, documented)
        return {} if documented else dict.fromkeys(OBJECTIVES, untiled(graph, nodes, machine, shares)), found
    except DoesNotFit as error:
        if documented or error.problems[0].code not in ("E302", "E301"):
            raise
    best = plans(graph, nodes, machine, shares)
    return best, _tiles(graph, best[objective], machine)


def _tiles(graph: Graph, plan: Plan, machine: Machine) -> Iterator[Placement]:
    """The placed runs of a plan, tile by tile."""
    for strip in plan.strips:
        for tile in tiles_of(graph, strip.nodes, strip.grid):
            run = run_of(graph, strip.nodes, machine, tile, documented=False)
            yield from _streamed(run, machine) if strip.streams else placed(run, machine, False)


def placed(run: Run, machine: Machine, documented: bool) -> list[Placement]:
    """The run, cut into segments where words or weights exceed the machine, each with its places.

    Implicit addressing where it can hold the run in one segment, or where only it is allowed; else explicit.
    """
    if not run.jobs:  # a map under another name
        return [explicit(run, machine)]
    refusal = implicit_refusal(run)
    if refusal is None:
        segments = cut(run.jobs, machine, extended=False)
        if documented or (len(segments) == 1 and fits_implicitly(run, machine)):
            return [implicit(part, machine) for part in _chained(run, segments)]
    elif documented:
        raise UnsupportedOperator(
            "E204",
            refusal,
            node=run.jobs[0].stages[0].node.name,
            limit="one chain, at most one tensor kept for an addition (easynpu, Storage)",
            remedy="compile with --isa extended",
        )
    return _explicit_segments(run, machine)


def _chained(run: Run, pieces: Sequence[list[Job]]) -> list[Run]:
    """Segments of one implicit run: each gives its last result to the host, which loads it for the next."""
    found: list[Run] = []
    inputs = run.inputs
    for position, piece in enumerate(pieces):
        result = piece[-1].result
        later = {job.operand.buffer for each in pieces[position + 1 :] for job in each if job.operand is not None}
        kept = later & ({job.result.buffer for job in piece} | {view.buffer for view in inputs.values()})
        if kept - {result.buffer}:
            raise UnsupportedOperator(
                "E204",
                f"'{min(kept)}' is kept for an addition in a later segment",
                tensor=min(kept),
                limit="a kept tensor is used in its own segment with --isa documented",
                remedy="compile with --isa extended, or use a machine with more weight_words",
            )
        last = position == len(pieces) - 1
        outputs = run.outputs if last else {result.buffer: result}
        stored = run.stored if last else {result.buffer: run.windows[result.buffer]}
        found.append(replace(run, jobs=tuple(piece), inputs=inputs, outputs=outputs, stored=stored))
        inputs = {result.buffer: result}
    return found


def _explicit_segments(run: Run, machine: Machine) -> list[Placement]:
    """The run placed as a whole, then cut; maps stay in the DTCMs from segment to segment."""
    placement = explicit(run, machine)
    placed = [piece for each in placement.jobs for piece in pieces(each, machine)]
    segments = cut([each.job for each in placed], machine, extended=True)
    found: list[Placement] = []
    start = 0
    for position, jobs in enumerate(segments):
        last = position == len(segments) - 1
        here = tuple(placed[start : start + len(jobs)])
        inputs, outputs = placement.inputs if position == 0 else (), placement.outputs if last else ()
        found.append(Placement(here, inputs, outputs, placement.usage))
        start += len(jobs)
    return found


def _streamed(run: Run, machine: Machine) -> Iterator[Placement]:
    """The run of a layer of one pixel: each part reads a pixel that is loaded with the weights of the part."""
    tensor = run.jobs[0].stages[0].node.inputs[0]
    buffer = run.inputs[tensor].buffer
    placement = explicit(run, machine, streamed=buffer)
    loaded = [piece for each in placement.jobs for piece in pieces(each, machine)]
    segments = cut([each.job for each in loaded], machine, extended=True)
    given = tuple(each for each in placement.inputs if each.tensor != tensor)
    for position, jobs in enumerate(segments):
        here = [loaded.pop(0) for _ in jobs]
        parts: list[Crossing] = []
        fed = tuple(_fed(each, tensor, buffer, parts) for each in here)
        words = sum(each.window.words for each in parts)
        expect_room(machine, "fmap", words, here[0].job, f"the pixels of its parts take {words} words")
        inputs = (*(given if position == 0 else ()), *parts)
        outputs = placement.outputs if position == len(segments) - 1 else ()
        yield Placement(fed, inputs, outputs, {**placement.usage, "fmap": Usage(words, words)})


def _fed(placed: PlacedJob, tensor: str, buffer: str, parts: list[Crossing]) -> PlacedJob:
    """The job with the pixels that its words read one behind the other in the Fmap DTCM, added to the parts."""
    stages: list[Stage] = []
    sources = list[Place]()
    given = iter(placed.sources)
    for stage in placed.job.stages:
        place, view, word = next(given) if stage.source is not None else None, stage.source, stage.word
        if view is not None and view.buffer == buffer and isinstance(word, isa.Layer):
            first = LANES * view.group
            window = Window((first, first + word.Ci), (view.row, view.row + 1), (view.column, view.column + 1))
            at = sum(each.window.words for each in parts)
            place = Place("fmap", at, window.words, window.words, 1)
            parts.append(Crossing(tensor, window, place))
            stage = replace(stage, word=replace(word, Hi=1, Wi=1))
        if place is not None:
            sources.append(place)
        stages.append(stage)
    return replace(placed, job=replace(placed.job, stages=tuple(stages)), sources=tuple(sources))


def _segment(
    graph: Graph, placement: Placement, jobs: Sequence[EmittedJob], words: int, weights: Sequence[ImageLoad]
) -> Segment:
    """The host's part of a run: which words and maps it loads and stores."""
    count = sum(len(job.words) for job in jobs)
    images = [ImageLoad("itcm", 0, "itcm.bin", words, count), *weights]

    def moves(crossings: Sequence[Crossing]) -> tuple[TensorMove, ...]:
        return tuple(
            TensorMove(each.tensor, graph.shape(each.tensor), each.place, *each.window.shape, each.window.start)
            for each in crossings
        )

    return Segment(tuple(images), moves(placement.inputs), count, moves(placement.outputs))


def _host_step(graph: Graph, node: Node, regions: Sequence[Region], region: Region) -> HostStep:
    """A node of the integer graph as a step of the host."""
    if node.op == PIXEL:
        return HostStep.constant(node.output, pixel(node))
    arrays = [position for position, each in enumerate(regions) if each.array]
    here = regions.index(region)
    at_border = not arrays or here <= arrays[0] or here > arrays[-1]
    return host_step(graph, node, HOST.get(node.op, REASON), at_border=at_border)


def _usage(runs: Sequence[Mapping[str, Usage]], steps: Sequence[Step]) -> dict[str, Usage]:
    """Peak and lower bound of every memory over all runs, in words."""
    found = {
        memory: Usage(
            max((usage[memory].peak for usage in runs), default=0),
            max((usage[memory].lower_bound for usage in runs), default=0),
        )
        for memory in ("fmap", "skip")
    }
    for memory in ("weight", "itcm"):
        loads = [
            image.words
            for step in steps
            if isinstance(step, Segment)
            for image in step.images
            if image.memory == memory
        ]
        found[memory] = Usage(max(loads, default=0), max(loads, default=0))
    return found
