"""Runs of jobs cut into segments that fit the ITCM and the weight DTCM."""

from __future__ import annotations

from collections.abc import Sequence

from npuc.errors import DoesNotFit
from npuc.targets.easynpu.layers.jobs import Job, Stage
from npuc.targets.easynpu.layers.streaming import WeightStreamBuilder
from npuc.targets.easynpu.machine.parameters import Machine


def cut(jobs: Sequence[Job], machine: Machine, *, extended: bool) -> list[list[Job]]:
    """The jobs in segments whose words fit the ITCM and whose weight blocks fit the weight DTCM.

    extended: count extension words. Raises DoesNotFit (E302) for a single job that exceeds either memory.
    """
    runs: list[list[Job]] = [[]]
    stream, words = WeightStreamBuilder(), 0
    for job in jobs:
        longer = stream.copy()
        placed = longer.with_addresses(job)
        more = instruction_words(placed, extended=extended)
        if words + more > machine.itcm_words or longer.words > machine.weight_words:
            if runs[-1]:
                runs.append([])
            longer, words = WeightStreamBuilder(), 0
            placed = longer.with_addresses(job)
            more = instruction_words(placed, extended=extended)
            _expect(machine, "weight", longer.words, job)
            _expect(machine, "itcm", more, job)
        runs[-1].append(placed)
        stream, words = longer, words + more
    return runs


def instruction_words(job: Job, *, extended: bool) -> int:
    """Instruction words of a job: its stages, control words and, if extended, address words."""
    controls = sum(is_controlled(job, stage) for stage in job.stages)
    operands = len(job.reads) + len(job.writes)
    return len(job.stages) + controls + (operands if extended else 0)


def is_controlled(job: Job, stage: Stage) -> bool:
    """Whether a control word precedes a stage."""
    return stage.keeps or stage.weights_at is not None or (job.takes and stage is job.stages[0])


def weight_words(job: Job) -> int:
    """Words that must be loaded into the weight DTCM for a job."""
    return sum(len(stage.loaded) for stage in job.stages)


def _expect(machine: Machine, memory: str, words: int, job: Job) -> None:
    capacity = machine.capacity_words(memory)
    if words > capacity:
        node = job.stages[0].node
        what = "its weights and bias-scale blocks take" if memory == "weight" else "its instructions take"
        raise DoesNotFit(
            "E302",
            f"{what} {words} words",
            node=node.name,
            op=node.op.removeprefix("Int"),
            limit=f"{memory}_words = {capacity}",
            remedy=f"a machine with {memory}_words = {words} (--machine FILE)",
        )
