"""Where every buffer of a run of jobs lies: by the document's implicit addresses, or explicitly.

Implicit (easynpu, Storage and Reshape): the first input lies at the low end of the Fmap DTCM, every result goes
to the other end than its input, and the one live skip tensor lies in the skip DTCM at its own ofmap addresses.
Explicit: any buffer in either DTCM, by lifetime; extension words carry the addresses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from npuc.allocation import Buffer, allocate, fits, lower_bound, peak
from npuc.errors import DoesNotFit
from npuc.targets.easynpu.layers.jobs import Job
from npuc.targets.easynpu.layers.views import View, Views
from npuc.targets.easynpu.layers.windows import Window
from npuc.targets.easynpu.machine.isa import Reshape
from npuc.targets.easynpu.machine.memory import Place, feature_words, high_end, low_end
from npuc.targets.easynpu.machine.parameters import Machine


@dataclass(frozen=True)
class PlacedJob:
    """A job with the places of its stages' sources, its result, its operand and the copy that is stored."""

    job: Job
    sources: tuple[Place, ...]
    dst: Place
    opb: Place | None
    stored: Place | None
    explicit: bool
    """The places stand in extension words."""


@dataclass(frozen=True)
class Usage:
    """Peak and lower bound of one memory, in words."""

    peak: int
    lower_bound: int


@dataclass(frozen=True)
class Crossing:
    """A tensor that crosses the border of a run, its view, and where it lies then."""

    tensor: str
    window: Window
    place: Place


@dataclass(frozen=True)
class Placement:
    """The placed jobs of one run, the tensors that are loaded and stored, and what that takes."""

    jobs: tuple[PlacedJob, ...]
    inputs: tuple[Crossing, ...]
    outputs: tuple[Crossing, ...]
    usage: Mapping[str, Usage]


@dataclass(frozen=True)
class Run:
    """Jobs that run without the host in between, and the tensors that come from it and go to it."""

    jobs: tuple[Job, ...]
    inputs: Mapping[str, View]
    outputs: Mapping[str, View]
    views: Views
    windows: Mapping[str, Window]
    """What is computed or loaded of every tensor."""
    stored: Mapping[str, Window]
    """What is stored of every output."""

    def words(self, buffer: str) -> int:
        """DTCM words of a buffer."""
        return feature_words(*self.views.buffers[buffer])


def implicit_refusal(run: Run) -> str | None:
    """Why the document's implicit addresses cannot express the run, or None if they can."""
    if len(run.inputs) != 1:
        return f"it reads {len(run.inputs)} tensors from the host, and only one lies where a run starts"
    return next(_parts_of_buffers(run), None) or _order_refusal(run)


def _parts_of_buffers(run: Run) -> Iterator[str]:
    """Jobs whose operands are not whole buffers, or that keep psums."""
    for job in run.jobs:
        name = job.stages[-1].node.name
        if any(stage.keeps for stage in job.stages):
            yield f"'{name}' takes several words that keep psums"
        for view in (*job.reads, *job.writes):
            if not run.views.is_whole(view):
                yield f"'{name}' reads or writes a part of '{view.buffer}', or repeats it"


def _order_refusal(run: Run) -> str | None:
    """Reads that the previous result and one kept tensor cannot serve."""
    previous = kept = next(iter(run.inputs.values())).buffer
    for position, job in enumerate(run.jobs):
        source, operand, result = job.sources[0].buffer, job.operand, job.result.buffer
        if source != previous:
            return (
                f"'{source}' is read by '{result}' after '{previous}' was written; "
                "implicit addresses reach only the previous result"
            )
        if operand is not None and operand.buffer != kept:
            return f"'{operand.buffer}' and '{kept}' would both be kept, and the skip DTCM keeps one tensor"
        previous = result
        later = {each.operand.buffer for each in run.jobs[position + 1 :] if each.operand is not None}
        if result in later and isinstance(job.stages[-1].word, Reshape):
            return f"'{result}' would be kept, and a reshape word has no stored form"
        stored = later.intersection(view.buffer for view in job.writes)
        if stored:
            if kept in later - stored:
                return f"'{min(stored)}' and '{kept}' would both be kept, and the skip DTCM keeps one tensor"
            kept = min(stored)
        elif job.kept is not None:
            return f"'{job.kept.buffer}' is read after '{result}' was written, and not as a second operand"
    if [view.buffer for view in run.outputs.values()] != [previous]:
        return f"the host reads {', '.join(run.outputs)}, and only the last result '{previous}' remains"
    return None


def fits_implicitly(run: Run, machine: Machine) -> bool:
    """Whether two-ended addressing has room: input and output of every job together, and the kept tensors."""
    pairs = (run.words(job.sources[0].buffer) + run.words(job.result.buffer) for job in run.jobs)
    kept = (run.words(job.operand.buffer) for job in run.jobs if job.operand is not None)
    return max(pairs) <= machine.fmap_words and max(kept, default=0) <= machine.skip_words


def implicit(run: Run, machine: Machine) -> Placement:
    """Two-ended addressing; the run must have no implicit_refusal.

    Raises DoesNotFit (E302) where input and output of a job exceed the Fmap DTCM together, or a kept tensor the
    skip DTCM.
    """
    wanted = {job.operand.buffer for job in run.jobs if job.operand is not None}
    low, jobs, fmap, skip = True, list[PlacedJob](), 0, 0
    for job in run.jobs:
        source, result = job.sources[0].buffer, job.result.buffer
        words = run.words(source), run.words(result)
        expect_room(machine, "fmap", sum(words), job, f"input and output take {words[0]} + {words[1]} words")
        fmap = max(fmap, sum(words))
        kept = next((view.buffer for view in job.writes if view.buffer in wanted), None)
        stored = None if kept is None else _kept_place(run, kept)
        if kept is not None:
            expect_room(machine, "skip", run.words(kept), job, f"the kept tensor takes {run.words(kept)} words")
            skip = max(skip, run.words(kept))
        opb = None if job.operand is None else _kept_place(run, job.operand.buffer)
        places = (_end(run, machine, source, low),)
        jobs.append(PlacedJob(job, places, _end(run, machine, result, not low), opb, stored, explicit=False))
        low = not low
    ((first, view),) = run.inputs.items()
    inputs = [Crossing(first, run.windows[first], _end(run, machine, view.buffer, True))]
    if view.buffer in wanted:
        inputs.append(Crossing(first, run.windows[first], _kept_place(run, view.buffer)))
        skip = max(skip, run.words(view.buffer))
    outputs = tuple(
        Crossing(name, run.stored[name], _end(run, machine, each.buffer, low))
        for name, each in run.outputs.items()
    )
    usage = {"fmap": Usage(fmap, fmap), "skip": Usage(skip, skip)}
    return Placement(tuple(jobs), tuple(inputs), outputs, usage)


def _end(run: Run, machine: Machine, buffer: str, low: bool) -> Place:
    channels, _, width = run.views.buffers[buffer]
    if low:
        return low_end("fmap", 0, channels, width)
    return high_end("fmap", machine.fmap_words, channels, width)


def _kept_place(run: Run, buffer: str) -> Place:
    channels, _, width = run.views.buffers[buffer]
    return low_end("skip", 0, channels, width)


def expect_room(machine: Machine, memory: str, words: int, job: Job, reason: str) -> None:
    """Raises DoesNotFit (E302) if these words exceed the memory, naming the job's node."""
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
    """Every buffer at an address of its own, in the skip DTCM where an addition reads it and there is room.

    A copy of a result goes there too, and the result itself does not: a DTCM takes one word a cycle.
    Raises DoesNotFit (E302) where the buffers alive together exceed both memories, or a result and its copy one.
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
    """The buffers for the skip and for the Fmap DTCM: operands in the skip DTCM, and what else must go there."""
    skip = _that_fit([b for b in buffers if b.name in operands], machine.skip_words)
    fmap = [b for b in buffers if b not in skip]
    if not fits(fmap, machine.fmap_words):
        skip = _that_fit([*skip, *sorted(fmap, key=lambda b: b.size)], machine.skip_words)
        fmap = [b for b in buffers if b not in skip]
    return skip, fmap


def placeable(buffers: Sequence[Buffer], operands: set[str], machine: Machine) -> bool:
    """Whether `explicit` would find a place for these buffers."""
    _, fmap = assign(buffers, operands, machine)
    return fits(fmap, machine.fmap_words)


def _explicit_places(
    run: Run, in_fmap: Mapping[str, int], in_skip: Mapping[str, int], usage: Mapping[str, Usage]
) -> Placement:
    """Every view at its place within its buffer's."""

    def place(view: View) -> Place:
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
    """A buffer's life: from the job that first writes it to the last that reads it, in job numbers."""
    first = {view.buffer: 0 for view in run.inputs.values()}
    last = dict(first)
    for step, job in enumerate(run.jobs):
        for view in (*job.reads, *job.writes):
            first.setdefault(view.buffer, step)
            last[view.buffer] = step
    last.update({view.buffer: len(run.jobs) for view in run.outputs.values()})
    return [Buffer(name, run.words(name), first[name], last[name]) for name in first]


def _that_fit(buffers: Sequence[Buffer], capacity: int) -> list[Buffer]:
    """The buffers, in order, that can be placed together within the capacity."""
    chosen: list[Buffer] = []
    for buffer in buffers:
        together = [*chosen, buffer]
        if fits(together, capacity):
            chosen = together
    return chosen
