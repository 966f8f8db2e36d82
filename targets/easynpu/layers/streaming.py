"""The weight stream of a segment: the blocks of its words in order, and which of them are already loaded.

The taps of an average are the same for all channels. Words of an average with equal blocks stream them from one
address, which `ctl set_weights` sets.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from npuc.targets.easynpu.layers.jobs import Job, Stage


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
