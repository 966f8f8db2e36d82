"""The weight stream of a segment: the blocks of its words in order, and which of them lie there already.

The taps of an average are the same for all channels. Its words that have the same block stream it from one place,
which `ctl set_weights` names.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from npuc.targets.easynpu.layers.jobs import Job, Stage


@dataclass
class WeightStream:
    """What the jobs of a segment stream, job by job."""

    words: int = 0
    """Of all blocks that have to be loaded."""
    _next: int = 0
    """Where the machine continues if no word says otherwise."""
    _shared: list[tuple[bytes, int]] = field(default_factory=list[tuple[bytes, int]])
    """Blocks that may be streamed again, and where they lie."""

    def with_addresses(self, job: Job) -> Job:
        """The job behind those before; its stages know where their blocks lie, and which must be loaded."""
        return replace(job, stages=tuple(map(self._with_address, job.stages)))

    def copy(self) -> WeightStream:
        """The stream so far, to which other jobs may be added."""
        return WeightStream(self.words, self._next, list(self._shared))

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
        """Where the block of a word that may share one lies, perhaps as the beginning of a longer one."""
        if not stage.shares:
            return None
        block = stage.block.tobytes()
        for known, at in self._shared:
            if known.startswith(block):
                return at
        self._shared.append((block, self.words))
        return None
