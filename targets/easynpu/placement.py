"""Where every feature map of a run of jobs lies: by the document's implicit addresses, or explicitly.

Implicit (easynpu, Storage and Reshape): the first input lies at the low end of the Fmap DTCM, every result goes
to the other end than its input, and the one live skip tensor lies in the skip DTCM at its own ofmap addresses.
Explicit: any map in either DTCM, by lifetime; extension words carry the addresses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from npuc.allocation import Buffer, allocate, lower_bound, peak
from npuc.errors import DoesNotFit
from npuc.targets.easynpu.machine import Machine
from npuc.targets.easynpu.memory import Place, feature_words, high_end, low_end
from npuc.targets.easynpu.selection import Job

Shape = tuple[int, int, int]


@dataclass(frozen=True)
class PlacedJob:
    """A job with the places of its operands; `explicit` jobs carry extension words."""

    job: Job
    src: Place
    dst: Place
    opb: Place | None
    stored: Place | None
    explicit: bool


@dataclass(frozen=True)
class Usage:
    """Peak and lower bound of one memory, in words."""

    peak: int
    lower_bound: int


@dataclass(frozen=True)
class Placement:
    """The placed jobs of one run, where each tensor is when it is loaded or stored, and what that takes."""

    jobs: tuple[PlacedJob, ...]
    inputs: tuple[tuple[str, Place], ...]
    outputs: tuple[tuple[str, Place], ...]
    usage: Mapping[str, Usage]


@dataclass(frozen=True)
class Run:
    """Jobs that run without the host in between, and the tensors that come from it and go to it."""

    jobs: tuple[Job, ...]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    shapes: Mapping[str, Shape]

    def words(self, tensor: str) -> int:
        """DTCM words of a tensor."""
        return feature_words(*self.shapes[tensor])


def implicit_refusal(run: Run) -> str | None:
    """Why the document's implicit addresses cannot express the run, or None if they can."""
    previous, kept = run.inputs[0], run.inputs[0]
    if len(run.inputs) != 1:
        return f"it reads {len(run.inputs)} tensors from the host, and only one lies where a run starts"
    for position, job in enumerate(run.jobs):
        if job.source != previous:
            return (
                f"'{job.source}' is read again by '{job.result}' after '{previous}' was written; "
                "implicit addresses reach only the previous result"
            )
        if job.operand is not None and job.operand != kept:
            return f"'{job.operand}' and '{kept}' would both have to be kept, and the skip DTCM keeps one tensor"
        previous = job.result
        later = {each.operand for each in run.jobs[position + 1 :]} - {None}
        if job.result in later:
            if kept in later:
                return f"'{job.result}' and '{kept}' would both have to be kept, and the skip DTCM keeps one tensor"
            kept = job.result
    if run.outputs != (previous,):
        return f"the host reads {', '.join(run.outputs)}, and only the last result '{previous}' remains"
    return None


def implicit(run: Run, machine: Machine) -> Placement:
    """Two-ended addressing; the run must have no implicit_refusal.

    Raises DoesNotFit (E302) where input and output of a job exceed the Fmap DTCM together, or a kept tensor the
    skip DTCM.
    """
    wanted = {job.operand for job in run.jobs}
    low, jobs, fmap, skip = True, list[PlacedJob](), run.words(run.inputs[0]), 0
    for job in run.jobs:
        words = run.words(job.source), run.words(job.result)
        _expect_room(machine, "fmap", sum(words), job, f"input and output take {words[0]} + {words[1]} words")
        fmap = max(fmap, sum(words))
        stored = _kept_place(run, job.result) if job.result in wanted else None
        if stored is not None:
            _expect_room(machine, "skip", words[1], job, f"the kept tensor takes {words[1]} words")
            skip = max(skip, words[1])
        opb = None if job.operand is None else _kept_place(run, job.operand)
        src, dst = _end(run, machine, job.source, low), _end(run, machine, job.result, not low)
        jobs.append(PlacedJob(job, src, dst, opb, stored, explicit=False))
        low = not low
    first = run.inputs[0]
    inputs = [(first, _end(run, machine, first, True))]
    if first in wanted:
        inputs.append((first, _kept_place(run, first)))
        skip = max(skip, run.words(first))
    outputs = ((run.outputs[0], _end(run, machine, run.outputs[0], low)),)
    usage = {"fmap": Usage(fmap, fmap), "skip": Usage(skip, skip)}
    return Placement(tuple(jobs), tuple(inputs), outputs, usage)


def _end(run: Run, machine: Machine, tensor: str, low: bool) -> Place:
    channels, _, width = run.shapes[tensor]
    if low:
        return low_end("fmap", 0, channels, width)
    return high_end("fmap", machine.fmap_words, channels, width)


def _kept_place(run: Run, tensor: str) -> Place:
    channels, _, width = run.shapes[tensor]
    return low_end("skip", 0, channels, width)


def _expect_room(machine: Machine, memory: str, words: int, job: Job, reason: str) -> None:
    capacity = machine.capacity_words(memory)
    if words > capacity:
        node = job.stages[0].node
        raise DoesNotFit(
            "E302",
            reason,
            node=node.name,
            op=node.op.removeprefix("Int"),
            tensor=job.result,
            limit=f"{memory}_words = {capacity}",
            remedy=f"a machine with {memory}_words = {words} (--machine FILE)",
        )


def explicit(run: Run, machine: Machine) -> Placement:
    """Every map at an address of its own, in the skip DTCM where an addition reads it and there is room.

    Raises DoesNotFit (E302) where the maps alive together exceed both memories.
    """
    buffers = _lifetimes(run)
    operands = {job.operand for job in run.jobs}
    skip = _that_fit([b for b in buffers if b.name in operands], machine.skip_words)
    fmap = [b for b in buffers if b not in skip]
    addresses = allocate(fmap)
    if peak(fmap, addresses) > machine.fmap_words:
        skip = _that_fit([*skip, *sorted(fmap, key=lambda b: b.size)], machine.skip_words)
        fmap = [b for b in buffers if b not in skip]
        addresses = allocate(fmap)
    if peak(fmap, addresses) > machine.fmap_words:
        step = max(range(len(run.jobs)), key=lambda at: sum(b.size for b in fmap if b.first <= at <= b.last))
        needed = peak(fmap, addresses)
        _expect_room(machine, "fmap", needed, run.jobs[step], f"the maps alive together take {needed} words")
    places = {b.name: ("fmap", addresses[b.name]) for b in fmap}
    in_skip = allocate(skip)
    places.update({b.name: ("skip", in_skip[b.name]) for b in skip})
    usage = {
        "fmap": Usage(peak(fmap, addresses), lower_bound(fmap)),
        "skip": Usage(peak(skip, in_skip), lower_bound(skip)),
    }

    def place(tensor: str) -> Place:
        channels, _, width = run.shapes[tensor]
        return low_end(*places[tensor], channels, width)

    jobs = tuple(
        PlacedJob(job, place(job.source), place(job.result), place(job.operand) if job.operand else None, None, True)
        for job in run.jobs
    )
    inputs, outputs = (tuple((name, place(name)) for name in names) for names in (run.inputs, run.outputs))
    return Placement(jobs, inputs, outputs, usage)


def _lifetimes(run: Run) -> list[Buffer]:
    """A buffer per tensor, alive from the job that writes it to the last that reads it, in job numbers."""
    first = dict.fromkeys(run.inputs, 0)
    last = dict(first)
    for step, job in enumerate(run.jobs):
        for tensor in filter(None, (job.source, job.operand, job.result)):
            first.setdefault(tensor, step)
            last[tensor] = step
    last.update(dict.fromkeys(run.outputs, len(run.jobs)))
    return [Buffer(name, run.words(name), first[name], last[name]) for name in first]


def _that_fit(buffers: Sequence[Buffer], capacity: int) -> list[Buffer]:
    """The buffers, in order, that can be placed together within the capacity."""
    chosen: list[Buffer] = []
    for buffer in buffers:
        together = [*chosen, buffer]
        if peak(together, allocate(together)) <= capacity:
            chosen = together
    return chosen
