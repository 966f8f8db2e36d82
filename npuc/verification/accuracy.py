"""How well a network performs its task: in fp32, as QDQ, as integers, on the machine.

All four computations see the same samples, so the difference from fp32 is a paired one: only samples on which they
disagree contribute. Each computation leaves a digest per sample, from which the metric makes the report: outputs
are not kept, and blocks of samples may be computed anywhere.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from npuc.custom_ops import custom_ops, libraries
from npuc.driver import batch_of, run_batches
from npuc.errors import NpucError
from npuc.frontend.reading import parsed
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.program import Program, load, load_evidence
from npuc.reference import session, values_of
from npuc.regions.composite import target_of
from npuc.regions.feeding import samples_of
from npuc.samples.loading import Samples
from npuc.system import budget
from npuc.system.cluster import on_cluster
from npuc.target import FLOATING, quickest
from npuc.text.progress import SILENT, Progress
from npuc.verification.checking import check_model
from npuc.verification.equivalence import Original
from npuc.verification.judging.choosing import Asked, chosen
from npuc.verification.judging.metric import FP32, Metric, Outputs

COMPUTATIONS = (FP32, "qdq", "integer", "simulator")
BLOCKS = 4
"""Blocks per worker of a cluster: several, so that no worker waits long for the last one."""
Digests = dict[str, list[Any]]


@frozen
class Subject:
    """The files of the computations to run; absolute paths let a process in another folder find them."""

    model: Path
    directory: Path
    qdq: Path | None = None
    allow_modified: bool = False


@frozen
class Task:
    """A block of samples with everything that a process needs to run it."""

    subject: Subject
    data: tuple[Path, ...]
    metric: Metric
    truths: Array | None
    """The labels of the samples of the block."""
    first: int
    stop: int
    limits: budget.Limits
    libraries: tuple[str, ...]


def accuracy(
    subject: Subject,
    program: Program,
    files: Sequence[Path],
    asked: Asked,
    *,
    scheduler: str | None = None,
    bar: Progress = SILENT,
) -> dict[str, Any]:
    """The report of `npuc accuracy`.

    Missing computations are None: `qdq` where no such model is given; `integer` for floating-point programs and
    for programs with host regions, which have no integer network of the whole.
    scheduler: of a Dask cluster, whose workers see the same files; the report is the same.
    Raises DataError (E401, E402) for data and outputs that cannot be judged, ArtefactError (E507) if the cluster
    fails, and NotTaken for options that the metric does not accept.
    """
    check_model(subject.model, program, subject.allow_modified)
    samples = samples_of(program, files)
    metric, why, truths = chosen(program, samples, asked)
    if scheduler is None:
        bar.begin("running the models and simulating", len(samples))
        found = _digests(subject, program, metric, samples, truths, bar.advance)
    else:

        def tasks(side_by_side: int) -> list[Task]:
            made = _tasks(subject, program, files, metric, truths, len(samples), side_by_side)
            bar.begin("running blocks of samples", len(made))
            return made

        found = _merged(on_cluster(computed, tasks, scheduler, bar.advance))
    bar.begin("judging")
    report = metric.report(found, truths)
    rows = {name: report.pop(name, None) for name in COMPUTATIONS}
    known = {"classes": None, "truth": FP32 if truths is None else "labels", "decoding": None}
    what = {"status": "ok", "metric": metric.name, "chosen": why, "samples": len(samples)}
    return {**what, **known, **report, **rows}


def _tasks(
    subject: Subject,
    program: Program,
    files: Sequence[Path],
    metric: Metric,
    truths: Array | None,
    count: int,
    side_by_side: int,
) -> list[Task]:
    """Blocks of whole batches, so that samples are grouped for simulation as they are without a cluster."""
    batch = batch_of(program)
    size = batch * -(-count // (batch * BLOCKS * max(side_by_side, 1)))
    absolute = tuple(each.absolute() for each in files)
    return [
        Task(
            subject,
            absolute,
            metric,
            None if truths is None else truths[at : at + size],
            at,
            min(at + size, count),
            budget.limits(),
            libraries(),
        )
        for at in range(0, count, size)
    ]


def computed(task: Task) -> Digests:
    """The digests of one block."""
    subject = task.subject
    allowed = budget.limited(task.limits.memory, task.limits.seconds)
    with allowed, custom_ops(task.libraries):
        program = load(subject.directory, allow_modified=subject.allow_modified)
        samples = samples_of(program, task.data).part(task.first, task.stop)
        return _digests(subject, program, task.metric, samples, task.truths, first=task.first)


def _merged(parts: Iterator[Digests]) -> Digests:
    """The digests of consecutive blocks, concatenated."""
    found: Digests = {}
    for part in parts:
        for name, digests in part.items():
            found.setdefault(name, []).extend(digests)
    return found


def _digests(
    subject: Subject,
    program: Program,
    metric: Metric,
    samples: Samples,
    truths: Array | None,
    advance: Callable[[int], None] = lambda _: None,
    first: int = 0,
) -> Digests:
    """The digest of each sample for every computation. truths: the labels of these samples.

    first: the number of the first sample. Raises DataError, which names the computation and the sample.
    """
    runs = _computations(subject, program, metric.judged)
    found: Digests = {name: [] for name in runs}
    for batch in samples.batches(batch_of(program)):
        outputs = {name: run(batch) for name, run in runs.items()}
        for at in range(len(batch)):
            position = len(found[FP32])
            truth = None if truths is None else truths[position]
            for name, digests in found.items():
                try:
                    digests.append(metric.digest(outputs[name][at], outputs[FP32][at], truth))
                except NpucError as error:
                    raise error.within(f"{name}, sample {first + position}") from None
        advance(len(batch))
    return found


Run = Callable[[Samples], Sequence[Outputs]]


def _computations(subject: Subject, program: Program, judged: Sequence[str]) -> dict[str, Run]:
    """The available computations by name, each giving these outputs for a batch."""
    evidence = load_evidence(subject.directory, program, allow_modified=subject.allow_modified)
    models: dict[str, Any] = {}
    if subject.qdq is not None:
        models["qdq"] = parsed(subject.qdq)
    if program.precision not in FLOATING and "reference.onnx" in evidence:
        models["integer"] = evidence["reference.onnx"]
    original = Original(subject.model, program.bound)
    found: dict[str, Run] = {FP32: lambda batch: [original.run(feed) for feed in batch.feeds()]}
    found |= {name: _by_onnxruntime(model, judged) for name, model in models.items()}
    target = target_of(program)
    runner = target.runner(program, quickest(target))

    def simulated(batch: Samples) -> list[Outputs]:
        outputs = run_batches(runner, batch, batch=len(batch))
        return [{name: outputs[name][at] for name in judged} for at in range(len(batch))]

    return {**found, "simulator": simulated}


def _by_onnxruntime(model: Any, judged: Sequence[str]) -> Run:
    run = session(model, confined=True)

    def outputs(batch: Samples) -> list[Outputs]:
        return [values_of(run, judged, feed) for feed in batch.feeds()]

    return outputs
