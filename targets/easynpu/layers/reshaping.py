"""Reshape words fused behind the chain whose result they rearrange, so that no map is stored in between.

Source: easynpu, Fused layers: a reshape is done when the ofmap of a layer is exported, last in its chain. Where an
addition reads the map as well, it is also stored in its original order: "two addresses are kept".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from npuc.targets.easynpu.layers.jobs import Job, Scope
from npuc.targets.easynpu.machine.isa import Reshape
from npuc.targets.easynpu.machine.memory import feature_words
from npuc.targets.easynpu.machine.rearrangement import most_written, written_words


def with_fused_reshapes(scope: Scope, jobs: Sequence[Job]) -> list[Job]:
    """The jobs, with reshape words joined to the jobs that produce their maps where that takes fewer cycles."""
    writers = Counter(job.result.buffer for job in jobs)
    places: dict[str, int] = {}
    found: list[Job] = []
    for job in jobs:
        source = job.sources[0].buffer
        at = places.get(source) if writers[source] == 1 else None
        if at is not None and _continues(scope, job, found[at], jobs):
            found[at] = _joined(scope, found[at], job)
        else:
            at = len(found)
            found.append(job)
        places[job.result.buffer] = at
    return found


def _joined(scope: Scope, before: Job, job: Job) -> Job:
    (stage,) = job.stages
    readers = scope.graph.readers[stage.node.inputs[0]]
    stages = (*before.stages, replace(stage, source=None))
    return replace(before, stages=stages, result=job.result, kept=before.result if len(readers) > 1 else None)


def _continues(scope: Scope, job: Job, before: Job, jobs: Sequence[Job]) -> bool:
    """Whether a job is a reshape word that can and should follow the job that produces its map."""
    word = job.stages[0].word
    if not isinstance(word, Reshape) or isinstance(before.stages[-1].word, Reshape):
        return False
    whole = job.sources[0] == before.result and scope.views.is_whole(before.result)
    return whole and _pays(word) and _stays(scope, job, before, jobs)


def _pays(word: Reshape) -> bool:
    """Whether writing results several times is cheaper than reading the map again and scattering it."""
    words = feature_words(word.Ci, word.Hi, word.Wi)
    return (most_written(word) - 1) * words < words + written_words(word)


def _stays(scope: Scope, job: Job, before: Job, jobs: Sequence[Job]) -> bool:
    """Whether the joined job needs no more DTCM words than both jobs did.

    A map that is also stored is alive beside both; then all maps of the run must fit together.
    """

    def words(*buffers: str) -> int:
        return sum(feature_words(*scope.views.buffers[buffer]) for buffer in dict.fromkeys(buffers))

    name, between, result = job.stages[0].node.inputs[0], before.result.buffer, job.result.buffer
    ifmaps = [view.buffer for view in before.sources]
    if len(scope.graph.readers[name]) == 1 and name not in scope.graph.outputs:
        return words(*ifmaps, result) <= max(words(*ifmaps, between), words(between, result))
    inside = set(scope.nodes)
    outside = [reader for reader in scope.graph.readers[name] if reader not in inside]
    everything = (view.buffer for each in jobs for view in (*each.reads, each.result))
    return not outside and name not in scope.graph.outputs and words(*everything) <= scope.machine.fmap_words
