"""Placement of every buffer of a run of jobs, in either DTCM, by lifetime; extension words hold the addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from npuc.errors import DoesNotFit
from npuc.frozen import frozen
from npuc.host.allocation import Buffer, allocate, fits, lower_bound, peak
from npuc.targets.easynpu.layers.jobs import Job
from npuc.targets.easynpu.layers.views import MapView, Views
from npuc.targets.easynpu.layers.windows import MapWindow
from npuc.targets.easynpu.machine.memory import MapPlace, feature_words, low_end
from npuc.targets.easynpu.machine.parameters import Machine


@frozen
class PlacedJob:
    """A job with the places of its stages' sources, its result, its operand and the copy of its result."""

    job: Job
    sources: tuple[MapPlace, ...]
    dst: MapPlace
    opb: MapPlace | None
    stored: MapPlace | None
    explicit: bool
    """Extension words state the places."""


@frozen
class Usage:
    """Peak and lower bound of the use of one memory, in words."""

    peak: int
    lower_bound: int


@frozen
class Crossing:
    """A window of a tensor that enters or leaves a run, and its place."""

    tensor: str
    window: MapWindow
    place: MapPlace


@frozen
class Placement:
    """The placed jobs of one run, the tensors that are loaded and stored, and the memory use."""

    jobs: tuple[PlacedJob, ...]
    inputs: tuple[Crossing, ...]
    outputs: tuple[Crossing, ...]
    usage: Mapping[str, Usage]


@frozen
class Run:
    """Jobs that run without the host in between, and the tensors that the host loads and stores."""

    jobs: tuple[Job, ...]
    inputs: Mapping[str, MapView]
    outputs: Mapping[str, MapView]
    views: Views
    windows: Mapping[str, MapWindow]
    """The window of every tensor that is computed or loaded."""
    stored: Mapping[str, MapWindow]
    """The window of every output that is stored."""

    def words(self, buffer: str) -> int:
        """DTCM words of a buffer."""
        return feature_words(*self.views.buffers[buffer])


def expect_room(machine: Machine, memory: str, words: int, job: Job, reason: str) -> None:
    """Raises DoesNotFit (E302), with the job's node, if these words exceed the memory."""
    capacity = machine.capacity_words(memory)
    if words > capacity:
        node = job.stages[0].node
        raise DoesNotFit(
            "E302",
            reason,
            node=node.name,
            op=node.op.removeprefix("Int"),
            tensor=job.result.buffer,
            limit=f"{memory}_words = {capacity}",
            remedy=f"a machine with {memory}_words = {words} (--machine FILE)",
        )


def explicit(run: Run, machine: Machine) -> Placement:
    """The placement with an address for every buffer: operands of additions in the skip DTCM if there is room.

    The copy of a result goes there too and the result itself does not, as a DTCM takes one word a cycle. Raises
    DoesNotFit (E302) where the buffers alive together exceed both memories, or a result and its copy share one.
    """
    buffers = _lifetimes(run)
    copied = [(job, job.kept.buffer) for job in run.jobs if job.kept is not None]
    operands = {job.operand.buffer for job in run.jobs if job.operand is not None}
    operands -= {job.result.buffer for job, _ in copied}
    skip, fmap = assign(buffers, operands | {copy for _, copy in copied}, machine)
    in_fmap = {buffer.name for buffer in fmap}
    for job, copy in copied:
        if (copy in in_fmap) == (job.result.buffer in in_fmap):
            together = run.words(copy) + run.words(job.result.buffer)
            raise _not_apart(job, together)
    addresses, in_skip = allocate(fmap), allocate(skip)
    needed = peak(fmap, addresses)
    if needed > machine.fmap_words:
        step = max(range(len(run.jobs)), key=lambda at: sum(b.size for b in fmap if b.first <= at <= b.last))
        expect_room(machine, "fmap", needed, run.jobs[step], f"the maps alive together take {needed} words")
    usage = {
        "fmap": Usage(needed, lower_bound(fmap)),
        "skip": Usage(peak(skip, in_skip), lower_bound(skip)),
    }
    return _explicit_places(run, addresses, in_skip, usage)


def _not_apart(job: Job, words: int) -> DoesNotFit:
    node = job.stages[-1].node
    return DoesNotFit(
        "E302",
        "a result and the copy of it that is kept would lie in one DTCM, which takes a word a cycle",
        node=node.name,
        op=node.op.removeprefix("Int"),
        tensor=job.result.buffer,
        limit=f"{words} words in two DTCMs",
        remedy="a machine with larger DTCMs (--machine FILE)",
    )


def assign(buffers: Sequence[Buffer], operands: set[str], machine: Machine) -> tuple[list[Buffer], list[Buffer]]:
    """The buffers of the skip and the Fmap DTCM: operands in skip, and others if the Fmap DTCM overflows."""
    skip = _that_fit([b for b in buffers if b.name in operands], machine.skip_words)
    fmap = [b for b in buffers if b not in skip]
    if not fits(fmap, machine.fmap_words):
        skip = _that_fit([*skip, *sorted(fmap, key=lambda b: b.size)], machine.skip_words)
        fmap = [b for b in buffers if b not in skip]
    return skip, fmap


def placeable(buffers: Sequence[Buffer], operands: set[str], machine: Machine) -> bool:
    """Whether `explicit` would place these buffers."""
    _, fmap = assign(buffers, operands, machine)
    return fits(fmap, machine.fmap_words)


def _explicit_places(
    run: Run, in_fmap: Mapping[str, int], in_skip: Mapping[str, int], usage: Mapping[str, Usage]
) -> Placement:
    """The placement with every view at its address within its buffer."""

    def place(view: MapView) -> MapPlace:
        memory, base = ("fmap", in_fmap[view.buffer]) if view.buffer in in_fmap else ("skip", in_skip[view.buffer])
        channels, _, width = run.views.buffers[view.buffer]
        return view.within(low_end(memory, base, channels, width))

    jobs = tuple(
        PlacedJob(
            job,
            tuple(place(view) for view in job.sources),
            place(job.result),
            None if job.operand is None else place(job.operand),
            None if job.kept is None else place(job.kept),
            explicit=True,
        )
        for job in run.jobs
    )
    inputs = tuple(Crossing(name, run.windows[name], place(view)) for name, view in run.inputs.items())
    outputs = tuple(Crossing(name, run.stored[name], place(view)) for name, view in run.outputs.items())
    return Placement(jobs, inputs, outputs, usage)


def _lifetimes(run: Run) -> list[Buffer]:
    """The buffers with their lifetimes in job numbers: from the first job that writes to the last that reads."""
    first = {view.buffer: 0 for view in run.inputs.values()}
    last = dict(first)
    for step, job in enumerate(run.jobs):
        for view in (*job.reads, *job.writes):
            first.setdefault(view.buffer, step)
            last[view.buffer] = step
    last.update({view.buffer: len(run.jobs) for view in run.outputs.values()})
    return [Buffer(name, run.words(name), first[name], last[name]) for name in first]


def _that_fit(buffers: Sequence[Buffer], capacity: int) -> list[Buffer]:
    """The buffers that can be placed together within the capacity, chosen greedily in order."""
    chosen: list[Buffer] = []
    for buffer in buffers:
        together = [*chosen, buffer]
        if fits(together, capacity):
            chosen = together
    return chosen
