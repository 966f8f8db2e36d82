"""Concatenations whose operands are not written in place: copies, or words that select channels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from npuc.ir import Array, Node
from npuc.targets.easynpu.layers.addressing import interleaved
from npuc.targets.easynpu.layers.blocks import used_runs
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
from npuc.targets.easynpu.layers.views import View
from npuc.targets.easynpu.machine.memory import LANES, pack_layer


def copies(scope: Scope, node: Node) -> Iterator[Job]:
    """Copies of the operands that are not written in place, as 1x1 max pools."""
    phases = interleaved(scope.graph, node) or node
    for name, window in scope.views.copies.get(node.output, ()):
        source = scope.aligned(name, phases)
        for part in bands(source.channels, FIELD_CHANNELS):
            x, y = chunk_view(source, part), chunk_view(window, part)
            word = pointwise_word("maxpool", x.channels, x.height, x.width)
            yield Job((Stage(word, no_words(), node, None, x),), y)


def selecting(scope: Scope, node: Node) -> Iterator[Job]:
    """A concatenation as dense 1x1 words that keep psums: every output channel is one input channel times 1.

    A job computes the 16 channels of a DTCM word from the words that contain them.
    """
    result = scope.views.tensors[node.output]
    pixels = result.height * result.width
    for chunk in bands(result.channels, LANES):
        parts: list[tuple[View, Array]] = []
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


def _selected(node: Node, x: View, w: Array) -> Stage:
    """A 1x1 word that selects channels of a map; w: (Co, Ci, 1, 1), zeros and ones."""
    none = np.zeros(len(w), np.int32)
    word = pointwise_word("conv", len(w), x.height, x.width)
    return Stage(replace(word, Ci=x.channels), pack_layer(w, none, none, dense=True), node, None, x, keeps=True)
