"""How well a network performs its task: in fp32, as integers, on the machine.

All three see the same samples, so the difference from fp32 is a paired one: only samples on which they disagree
contribute. Each computation leaves a digest per sample, from which the metric makes the report: outputs
are not kept, and blocks of samples may be computed anywhere. The simulator interprets the words of the first
samples only; if these agree with the integer network bit for bit, that network stands for the words on all others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from npuc.errors import NpucError
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.program import Program, load, load_evidence
from npuc.reference import custom_ops, libraries
from npuc.regions.composite import Composite, parts, target_of
from npuc.regions.running import CompositeRunner, samples_of
from npuc.running import batch_of
from npuc.samples.loading import Samples
from npuc.samples.structured import row
from npuc.system import budget
from npuc.system.cluster import on_cluster
from npuc.target import Runner, quickest
from npuc.text.terminal import SILENT, Progress
from npuc.verification.batches import has_integer_network, integer_runner
from npuc.verification.bits import BitDifferences
from npuc.verification.checking import check_model
from npuc.verification.equivalence import Original
from npuc.verification.judging.choosing import Asked, NotTaken, choose_metric
from npuc.verification.judging.metric import FP32, Metric, Outputs

COMPUTATIONS = (FP32, "integer", "simulator")
BLOCKS = 4
"""Blocks per worker of a cluster: several, so that no worker waits long for the last one."""
SIMULATED = 8
"""The number of samples whose words are simulated, unless --simulate says another."""
ALL = "all"
Digests = dict[str, list[Any]]


@frozen
class BlockResult:
    """What was found for consecutive samples."""

    digests: Digests
    simulated: int
    """The number of samples whose words were simulated."""
    bit_exact: bool | None
    """Whether these agree with the integer network in every bit; None if nothing was compared."""


@frozen
class JudgedFiles:
    """The files of the computations to run; absolute paths let a process in another folder find them."""

    model: Path
    directory: Path
    allow_modified: bool = False


@frozen
class SampleBlock:
    """A block of samples with everything that a process needs to run it."""

    subject: JudgedFiles
    data: tuple[Path, ...]
    metric: Metric
    truths: Array | None
    """The labels of the samples of the block."""
    first: int
    stop: int
    simulate: int | None
    """The number of samples, counted from the first of all, whose words are simulated; None: every one."""
    limits: budget.ProcessLimits
    libraries: tuple[str, ...]


def accuracy(
    subject: JudgedFiles,
    program: Program,
    files: Sequence[Path],
    asked: Asked,
    *,
    simulate: int | str | None = None,
    scheduler: str | None = None,
    bar: Progress = SILENT,
) -> dict[str, Any]:
    """The report of `npuc accuracy`.

    Missing computations are None: `integer` for floating-point programs, whose
    words are simulated on every sample; `simulator` if its words differ from the integer network that computes the
    other samples (the status is then "mismatch"). simulate: the number of samples whose words are simulated, or
    "all"; None: SIMULATED.
    scheduler: of a Dask cluster, whose workers see the same files; the report is the same.
    Raises DataError (E401, E402) for data and outputs that cannot be judged, ArtefactError (E507) if the cluster
    fails, and NotTaken for options that the metric does not accept.
    """
    check_model(subject.model, program, subject.allow_modified)
    samples = samples_of(program, files)
    metric, why, truths = choose_metric(program, samples, asked)
    count = _sample_limit(program, simulate)
    if scheduler is None:
        bar.begin("running the models and simulating", len(samples))
        found = _block(subject, program, metric, samples, truths, count, bar.advance)
    else:

        def tasks(side_by_side: int) -> list[SampleBlock]:
            made = _tasks(subject, program, files, metric, truths, len(samples), count, side_by_side)
            bar.begin("running blocks of samples", len(made))
            return made

        found = _merge(on_cluster(compute_block, tasks, scheduler, bar.advance))
    bar.begin("judging")
    report = metric.report(found.digests, truths)
    rows = {name: report.pop(name, None) for name in COMPUTATIONS}
    partly, differs = found.simulated < len(samples), found.bit_exact is False
    if partly and differs:
        rows["simulator"] = None
    simulated = {
        "samples": found.simulated,
        "bit_exact": found.bit_exact,
        "others": "integer network" if partly else None,
    }
    known = {"classes": None, "truth": FP32 if truths is None else "labels", "decoding": None}
    what = {"metric": metric.name, "chosen": why, "samples": len(samples), "ranges": asdict(program.ranges)}
    return {"status": "mismatch" if differs else "ok", **what, "simulated": simulated, **known, **report, **rows}


def _sample_limit(program: Program, asked: int | str | None) -> int | None:
    """The number of samples whose words are simulated; None: all. Raises NotTaken for some of a float program."""
    if asked == ALL:
        return None
    if not has_integer_network(program):
        if asked is not None:
            reason = f"--simulate {asked}: nothing else computes the bits of a program in {program.precision}"
            raise NotTaken(f"{reason}; its words are simulated on every sample")
        return None
    if asked is None:
        return SIMULATED
    if not isinstance(asked, int) or isinstance(asked, bool) or asked < 1:
        raise NotTaken(f"--simulate is {asked!r}, and may be a number of samples from 1, or {ALL}")
    return asked


def _tasks(
    subject: JudgedFiles,
    program: Program,
    files: Sequence[Path],
    metric: Metric,
    truths: Array | None,
    count: int,
    simulate: int | None,
    side_by_side: int,
) -> list[SampleBlock]:
    """Blocks of whole batches, so that samples are grouped for simulation as they are without a cluster."""
    batch = batch_of(program)
    size = batch * -(-count // (batch * BLOCKS * max(side_by_side, 1)))
    absolute = tuple(each.absolute() for each in files)
    return [
        SampleBlock(
            subject,
            absolute,
            metric,
            None if truths is None else truths[at : at + size],
            at,
            min(at + size, count),
            simulate,
            budget.limits(),
            libraries(),
        )
        for at in range(0, count, size)
    ]


def compute_block(task: SampleBlock) -> BlockResult:
    """One block."""
    subject = task.subject
    allowed = budget.set_limits(task.limits.memory, task.limits.seconds)
    with allowed, custom_ops(task.libraries):
        program = load(subject.directory, allow_modified=subject.allow_modified)
        samples = samples_of(program, task.data).part(task.first, task.stop)
        simulate = None if task.simulate is None else max(task.simulate - task.first, 0)
        return _block(subject, program, task.metric, samples, task.truths, simulate, first=task.first)


def _merge(parts: Iterator[BlockResult]) -> BlockResult:
    """Consecutive blocks as one."""
    digests: Digests = {}
    simulated, exact = 0, list[bool]()
    for part in parts:
        for name, found in part.digests.items():
            digests.setdefault(name, []).extend(found)
        simulated += part.simulated
        exact += [] if part.bit_exact is None else [part.bit_exact]
    return BlockResult(digests, simulated, all(exact) if exact else None)


def _block(
    subject: JudgedFiles,
    program: Program,
    metric: Metric,
    samples: Samples,
    truths: Array | None,
    simulate: int | None,
    advance: Callable[[int], None] = lambda _: None,
    first: int = 0,
) -> BlockResult:
    """The digest of each sample for every computation. truths: the labels of these samples.

    simulate: the number of samples whose words are simulated; None: all. first: the number of the first sample.
    Raises DataError, which names the computation and the sample.
    """
    evidence = load_evidence(subject.directory, program, allow_modified=subject.allow_modified)
    program = replace(program, evidence=evidence)
    runs = _computations(subject, program)
    words = Words(program, simulate, len(samples))
    found: Digests = {name: [] for name in (*runs, "simulator")}
    for batch in samples.batches(batch_of(program)):
        outputs = {name: run(batch) for name, run in runs.items()}
        outputs["simulator"] = words(batch, outputs.get("integer", ()))
        for at in range(len(batch)):
            position = len(found[FP32])
            truth = None if truths is None else truths[position]
            for name, digests in found.items():
                try:
                    digests.append(metric.digest(outputs[name][at], outputs[FP32][at], truth))
                except NpucError as error:
                    raise error.within(f"{name}, sample {first + position}") from None
        advance(len(batch))
    return BlockResult(found, words.simulated, words.bit_exact)


Run = Callable[[Samples], Sequence[Outputs]]


class Words:
    """The first samples by the words, compared with the integer network; what stands for the words on the others.

    program: with its evidence. simulate: of so many samples the words are simulated; None: of all.
    """

    def __init__(self, program: Program, simulate: int | None, samples: int) -> None:
        self.left = samples if simulate is None else min(simulate, samples)
        self.simulated = 0
        self._target = target_of(program)
        self._program, self._parts = program, parts(program)
        self._bits: list[BitDifferences] = []

    @cached_property
    def _run(self) -> Runner:
        return self._target.runner(self._program, quickest(self._target))

    def __call__(self, batch: Samples, others: Sequence[Outputs]) -> list[Outputs]:
        """The outputs of a batch; others: the integer network's."""
        count = min(self.left, len(batch))
        found = rows_of(self._simulate(batch.part(0, count).inputs)) if count else []
        self.left, self.simulated = self.left - count, self.simulated + count
        return [*found, *others[count:]]

    @property
    def bit_exact(self) -> bool | None:
        """Whether all words agree with the integer network in every bit; None if none were compared."""
        return all(each.exact for each in self._bits) if self._bits else None

    def _simulate(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        if not has_integer_network(self._program):
            return self._run(feeds)
        if not self._bits:
            inner = self._target.inner if isinstance(self._target, Composite) else self._target
            self._bits = [BitDifferences(part, inner) for part in self._parts]

        def compare(
            number: int, fed: Mapping[str, Array], seen: Mapping[str, Array], given: Mapping[str, Array]
        ) -> None:
            for at, feed in enumerate(rows_of(fed)):
                shown, outputs = (
                    {name: row(each, at) for name, each in values.items()} for values in (seen, given)
                )
                self._bits[number].add(feed, shown, outputs)

        if isinstance(self._run, CompositeRunner):
            return self._run.run_parts(feeds, compare)
        seen: dict[str, Array] = {}
        outputs = self._run(feeds, seen.__setitem__)
        compare(0, feeds, seen, outputs)
        return outputs


def rows_of(values: Mapping[str, Array]) -> list[dict[str, Array]]:
    """The values of every sample."""
    count = len(next(iter(values.values())))
    return [{name: row(each, at) for name, each in values.items()} for at in range(count)]


def _computations(subject: JudgedFiles, program: Program) -> dict[str, Run]:
    """The computations but the simulator's by name, each giving a batch's outputs. program: with its evidence."""
    original = Original(subject.model, program.bound, program.images)
    found: dict[str, Run] = {FP32: lambda batch: [original.run(feed) for feed in batch.feeds()]}
    if has_integer_network(program):
        run = integer_runner(program)
        found["integer"] = lambda batch: rows_of(run(batch.inputs))
    return found
