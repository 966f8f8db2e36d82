"""From integer nodes to jobs: which words compute each node, alone or fused behind another.

Concatenations whose operands are not written in place: copies, or words that select channels.

Reshape words fused behind the chain whose result they rearrange, so that no map is stored in between.

Source: easynpu, Fused layers: a reshape is done when the ofmap of a layer is exported, last in its chain. Where an
addition reads the map as well, it is also stored in its original order: "two addresses are kept".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from npuc.ir import Array, Node
from npuc.targets.easynpu.layers.channelwise import combination, max_pool, pointwise, weighted_sum
from npuc.targets.easynpu.layers.convolutions import convolutions, used_runs
from npuc.targets.easynpu.layers.jobs import (
    FIELD_CHANNELS,
    Job,
    Scope,
    Stage,
    bands,
    chunk_view,
    no_words,
    pointwise_word,
)
from npuc.targets.easynpu.layers.nodes import (
    POINTWISE,
    WORD_OP,
    concat_offsets,
    fused_behind,
    interleaved,
    word_of,
)
from npuc.targets.easynpu.layers.views import MapView, surrounds
from npuc.targets.easynpu.machine.isa import Reshape
from npuc.targets.easynpu.machine.memory import LANES, feature_words, pack_layer
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


def copies(scope: Scope, node: Node) -> Iterator[Job]:
    """Copies of the operands that are not written in place, as 1x1 max pools."""
    phases = interleaved(scope.graph, node) or node
    for name, window in scope.views.copies.get(node.output, ()):
        source = scope.aligned(name, phases)
        for part in bands(source.channels, FIELD_CHANNELS):
            x, y = chunk_view(source, part), chunk_view(window, part)
            word = pointwise_word("maxpool", x.channels, x.height, x.width)
            yield Job((Stage(word, no_words(), node, None, x),), y)


def _within(scope: Scope, node: Node) -> bool:
    return scope.views.tensors[node.inputs[0]].buffer == scope.views.tensors[node.output].buffer


def borders(scope: Scope, node: Node) -> Iterator[Job]:
    """The padding around a map that lies inside it: the pixel of its value, copied by 1x1 max pools.

    Two sides of a pixel each are one word's result, whose rows or columns lie that far apart.
    """
    inner, outer = (scope.views.tensors[name] for name in (node.inputs[0], node.output))
    pixel, row, column = scope.views.tensors[node.inputs[-1]], inner.row - outer.row, inner.column - outer.column
    below, right = outer.height - inner.height - row, outer.width - inner.width - column
    sides = [
        outer.window((0, 0, 0), (outer.channels, row, outer.width)),
        outer.window((0, outer.height - below, 0), (outer.channels, below, outer.width)),
    ]
    if row == below == 1:
        sides = [outer.interleaved(0, 0, (outer.height - 1, 1), (2, outer.width))]
    if column == right == 1:
        sides.append(outer.interleaved(row, 0, (1, outer.width - 1), (inner.height, 2)))
    else:
        sides.append(outer.window((0, row, 0), (outer.channels, inner.height, column)))
        sides.append(outer.window((0, row, outer.width - right), (outer.channels, inner.height, right)))
    for side in sides:
        for part in scope.chunks(node, outer.channels, FIELD_CHANNELS) if side.height and side.width else ():
            channels = part.stop - part.start
            x = pixel.pixel_for(channels, side.height, side.width)
            word = pointwise_word("maxpool", channels, side.height, side.width)
            yield Job(
                (Stage(word, no_words(), node, None, x),), chunk_view(side, part), None, scope.start(node, part)
            )


def selecting(scope: Scope, node: Node) -> Iterator[Job]:
    """A concatenation as dense 1x1 words that keep psums: every output channel is one input channel times 1.

    A job computes the 16 channels of a DTCM word from the words that contain them.
    """
    result = scope.views.tensors[node.output]
    pixels = result.height * result.width
    for chunk in bands(result.channels, LANES):
        parts: list[tuple[MapView, Array]] = []
        offset = 0
        for name in node.inputs:
            extent = scope.graph.shape(name)[1]
            taken = np.arange(chunk.start, chunk.stop)[:, None] == np.arange(offset, offset + extent)
            offset += extent
            if taken.any():
                w, source = taken.astype(np.int8)[..., None, None], scope.aligned(name, node)
                parts += [(chunk_view(source, run), w[:, run]) for run in used_runs(w, pixels)]
        stages = [_selected(node, x, w) for x, w in parts]
        stages[-1] = replace(stages[-1], keeps=False, tensor=node.output)
        yield Job(tuple(stages), chunk_view(result, chunk), None, scope.start(node, chunk))


def _selected(node: Node, x: MapView, w: Array) -> Stage:
    """A 1x1 word that selects channels of a map; w: (Co, Ci, 1, 1), zeros and ones."""
    none = np.zeros(len(w), np.int32)
    word = pointwise_word("conv", len(w), x.height, x.width)
    return Stage(replace(word, Ci=x.channels), pack_layer(w, none, none, dense=True), node, None, x, keeps=True)


def select(scope: Scope) -> list[Job]:
    """The jobs of a run of array nodes, in order.

    Raises DoesNotFit (E302) for a layer whose weights exceed the weight DTCM even for 16 outputs,
    UnsupportedOperator (E204) for a split that documented words cannot express.
    """
    before = fused_behind(scope.graph, scope.nodes, scope.machine)
    inner = set(before.values())
    found: list[Job] = []
    for node in scope.nodes:
        if node not in inner:
            chain = [node]
            while chain[0] in before:
                chain.insert(0, before[chain[0]])
            found += _jobs(scope, chain[0], chain[1:])
    return with_fused_reshapes(scope, found)


def _jobs(scope: Scope, head: Node, followers: Sequence[Node]) -> Iterator[Job]:
    """The jobs of one node, with the nodes that are fused behind it."""
    match head.op:
        case "IntConv" if surrounds(head) and _within(scope, head):
            yield from borders(scope, head)
        case "IntConv":
            yield from convolutions(scope, head, followers)
        case "IntAdd" | "IntMul":
            yield from combination(scope, head, followers)
        case "IntSum":
            yield from weighted_sum(scope, head, followers)
        case "MaxPool":
            yield from max_pool(scope, head)
        case op if op in POINTWISE:
            yield from pointwise(scope, head, followers)
        case op if op == WORD_OP:
            source, result = scope.views.tensors[head.inputs[0]], scope.views.tensors[head.output]
            yield Job((Stage(word_of(head), no_words(), head, head.output, source),), result)
        case "Concat" if head.output in scope.views.copies and concat_offsets(scope.graph, head) is None:
            yield from selecting(scope, head)
        case "Concat" | "DepthToSpace":
            yield from copies(scope, head)
        case _:
            return
