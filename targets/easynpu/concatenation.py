"""Concatenations whose operands are not written in place: copies of words, or words that select channels."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from npuc.ir import Node
from npuc.targets.easynpu.jobs import (
    FIELD_CHANNELS,
    Job,
    Scope,
    Stage,
    bands,
    chunk_view,
    no_words,
    pointwise_word,
)
from npuc.targets.easynpu.memory import pack_layer


def copies(scope: Scope, node: Node) -> Iterator[Job]:
    """Copies of the operands that are not written in place, as 1x1 max pools."""
    for name, window in scope.views.copies.get(node.output, ()):
        source = scope.aligned(name, node)
        for part in bands(source.channels, FIELD_CHANNELS):
            x, y = chunk_view(source, part), chunk_view(window, part)
            word = pointwise_word("maxpool", x.channels, x.height, x.width)
            yield Job((Stage(word, no_words(), node, None, x),), y)


def selecting(scope: Scope, node: Node) -> Iterator[Job]:
    """Every output channel is one input channel times 1: dense 1x1 words whose psums are kept."""
    result = scope.views.tensors[node.output]
    extents = [scope.graph.shape(name)[1] for name in node.inputs]
    offsets = np.cumsum([0, *extents])
    for chunk in bands(result.channels, FIELD_CHANNELS):
        channels = chunk.stop - chunk.start
        zeros = np.zeros(channels, np.int32)
        stages: list[Stage] = []
        for name, offset, extent in zip(node.inputs, offsets, extents, strict=False):
            source = scope.aligned(name, node)
            for band in bands(extent, FIELD_CHANNELS):
                wanted = np.arange(chunk.start, chunk.stop)[:, None] == offset + np.arange(band.start, band.stop)
                if not wanted.any():
                    continue
                x = chunk_view(source, band)
                word = replace(
                    pointwise_word("conv", channels, x.height, x.width), Ci=x.channels, Hi=x.height, Wi=x.width
                )
                block = pack_layer(wanted.astype(np.int8)[..., None, None], zeros, zeros, dense=True)
                stages.append(Stage(word, block, node, None, x, keeps=True))
        stages[-1] = replace(stages[-1], keeps=False, tensor=node.output)
        yield Job(tuple(stages), chunk_view(result, chunk), None, scope.start(node, chunk))
