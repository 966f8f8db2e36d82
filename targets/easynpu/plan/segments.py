"""Runs of jobs cut into segments that fit the ITCM and the weight DTCM, and the weight streams of segments.

The taps of an average are the same for all channels. Words of an average with equal blocks stream them from one
address, which `ctl set_weights` sets."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from npuc.errors import DoesNotFit
from npuc.targets.easynpu.layers.jobs import Job, Stage
from npuc.targets.easynpu.machine.parameters import Machine


@dataclass
class WeightStreamBuilder:
    """The weight stream of a segment, built job by job."""

    words: int = 0
    """Words of all blocks that must be loaded."""
    _next: int = 0
    """Address at which the machine continues if no word sets another."""
    _shared: list[tuple[bytes, int]] = field(default_factory=list[tuple[bytes, int]])
    """Blocks that may be streamed again, and their addresses."""

    def with_addresses(self, job: Job) -> Job:
        """The job appended to the stream; its stages have the addresses of their blocks and which are loaded."""
        return replace(job, stages=tuple(map(self._with_address, job.stages)))

    def copy(self) -> WeightStreamBuilder:
        """A copy of the stream, to which other jobs can be added."""
        return WeightStreamBuilder(self.words, self._next, list(self._shared))

    def _with_address(self, stage: Stage) -> Stage:
        if not len(stage.block):
            return stage
        at = self._found(stage)
        held = at is not None
        if at is None:
            at, self.words = self.words, self.words + len(stage.block)
        found = replace(stage, weights_at=None if at == self._next else at, held=held)
        self._next = at + len(stage.block)
        return found

    def _found(self, stage: Stage) -> int | None:
        """The address of a block that begins with a sharing stage's block; None if it must be loaded."""
        if not stage.shares:
            return None
        block = stage.block.tobytes()
        for known, at in self._shared:
            if known.startswith(block):
                return at
        self._shared.append((block, self.words))
        return None


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


class Streams:
    """The streams of which the weight DTCM still holds words. Each stream is loaded from word 0 on."""

    def __init__(self) -> None:
        self.held: dict[Hashable, tuple[int, int]] = {}
        """The words of a stream, and how many of its first words have been overwritten."""

    def load(self, stream: Hashable, words: int) -> int:
        """The number of first words of a stream that must be loaded before it runs."""
        _, needed = self.held.pop(stream, (words, words))
        lost = {key: (length, max(over, needed)) for key, (length, over) in self.held.items()}
        self.held = {key: (length, over) for key, (length, over) in lost.items() if over < length}
        self.held[stream] = words, 0
        return needed
