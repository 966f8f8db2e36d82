"""Outlier channel splitting: a channel with twice the range of the others need not make all of them coarse.

For a ReLU's channel v that exceeds a limit T, min(v, T) and min(max(v - T, 0), T) are two channels whose sum is v
up to 2 T, and which are read with the same weights. Both stay within the limit, so the tensor's steps are half as
large, also for the split channel over its whole range. Every split costs one more channel to write and to read.
After Zhao et al., "Improving Neural Network Quantization without Retraining using Outlier Channel Splitting",
2019, where channels are halved instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import ACTIVATION, GROUP, SELECTS
from npuc.quantize.arithmetic.steadiness import upward
from npuc.quantize.network.renaming import renamed
from npuc.text.escaping import Names

MOST = 0.125
"""Share of a tensor's channels that may be split."""
BITS = 12
"""Significant bits of a limit."""
ROOM = 0.8
"""A channel that reaches this share of the limit on the samples may exceed it on others, so it is split too."""


def split(graph: Graph, feeds: Iterable[Mapping[str, Array]], fixed: Collection[str] = ()) -> Graph:
    """The graph with outlier channels of ReLUs between dense convolutions split; unchanged if there are none.

    feeds: samples that determine the range of every channel. fixed: tensors that stay as they are.
    """
    writers = [node for node in graph.nodes if _splits(graph, node) and node.output not in fixed]
    reached = _reach(graph, [node.output for node in writers], feeds)
    constants, nodes = dict(graph.constants), {node: node for node in graph.nodes}
    names: dict[str, str] = {}
    fresh = graph.names()  # a tensor with more channels differs from the ONNX model's tensor
    for writer in writers:
        largest = float(reached[writer.output].max())
        limit = upward(largest, BITS) / 2 if largest > 0 else 0.0
        outliers = np.flatnonzero(reached[writer.output] > ROOM * limit)
        if 0 < len(outliers) <= MOST * len(reached[writer.output]):
            names[writer.output] = fresh.new(f"{writer.output}/split")
            nodes[writer] = _written(fresh, constants, nodes[writer], outliers, limit)
            for reader in graph.readers[writer.output]:
                nodes[reader] = _read(fresh, constants, nodes[reader], outliers)
    if not names:
        return graph
    return renamed(graph, nodes.values(), names, constants)


def _splits(graph: Graph, node: Node) -> bool:
    """Whether it is a dense convolution with a ReLU that only dense convolutions read."""
    readers = graph.readers[node.output]
    return (
        _dense(node)
        and ACTIVATION(node) == "Relu"
        and node.output not in graph.outputs
        and bool(readers)
        and all(_dense(reader) and reader.inputs[0] == node.output for reader in readers)
    )


def _dense(node: Node) -> bool:
    return node.op == "Conv" and GROUP(node) == 1 and not SELECTS(node)


def _reach(graph: Graph, names: list[str], feeds: Iterable[Mapping[str, Array]]) -> dict[str, Array]:
    """The largest value of every channel of each tensor over the samples: tensor -> (C,)."""
    from npuc.reference import graph_session

    if not names:
        return {}
    found = {name: np.zeros(graph.shape(name)[1]) for name in names}
    run = graph_session(graph, names)
    for feed in feeds:
        for name, value in zip(names, run.run(names, dict(feed)), strict=True):
            found[name] = np.maximum(found[name], value.max(axis=(0, 2, 3)))
    return found


def _written(fresh: Names, constants: dict[str, Array], node: Node, outliers: Array, limit: float) -> Node:
    """The convolution, extended to write the part above the limit as well."""
    x, weights, *rest = node.inputs
    w = constants[weights]
    bias = constants[rest[0]] if rest and rest[0] else np.zeros(len(w), np.float32)
    named = tuple(fresh.new(f"{node.output}/split_{key}") for key in "wb")
    constants[named[0]] = np.concatenate([w, w[outliers]])
    constants[named[1]] = np.concatenate([bias, bias[outliers] - np.float32(limit)])
    limits = {"activation": "Clip", "min": 0.0, "max": limit}
    return replace(node, inputs=(x, *named), attrs={**node.attrs, **limits})


def _read(fresh: Names, constants: dict[str, Array], node: Node, outliers: Array) -> Node:
    """The convolution, extended to read both channels with the same weights."""
    x, weights, *rest = node.inputs
    name = fresh.new(f"{node.output}/split_v")
    constants[name] = np.concatenate([constants[weights], constants[weights][:, outliers]], axis=1)
    return replace(node, inputs=(x, name, *rest))
