"""PReLU with a slope per channel, by ReLU and convolutions only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Graph, Node
from npuc.ops.attributes import ACTIVATION, GROUP
from npuc.passes.rewriting.patterns import along_axis
from npuc.passes.rewriting.rules import Rewriter, rewrite


def expand_prelu(graph: Graph) -> Graph:
    """PRelu with different slopes a becomes relu(x) - a * relu(-x), summed by a 1x1 convolution.

    Exact, and still rounded once when quantised: a convolution with ReLU computes x and -x as 2 C channels, and
    one from 2 C to C channels weights them with 1 and -a. A Conv that only the PRelu reads computes both signs
    itself. For machines without a word for slopes; x: (1, C, ...) with two spatial axes or none, or a batch.
    """
    return rewrite(graph, _expand)


def _expand(rewriter: Rewriter, node: Node) -> bool:
    shape = rewriter.shape(node.inputs[0])
    slope = rewriter.constants.get(node.inputs[1]) if node.op == "PRelu" else None
    slopes = along_axis(slope, shape, 1) if slope is not None and len(shape) in (2, 4) else None
    if slopes is None or (slopes == slopes[0]).all():
        return False
    stem, unit = node.output, np.eye(len(slopes), dtype=np.float32)[..., None, None]
    before, signs = _signs(rewriter, node, unit)
    weights = np.concatenate([unit, -slopes[:, None, None, None] * unit], axis=1)
    total = rewriter.fresh(f"{stem}/map") if len(shape) == 2 else node.output
    sources = node.sources
    taps = rewriter.constant(weights.astype(np.float32), f"{stem}/slopes")
    after = [Node("Conv", (signs, taps), (total,), {}, node.name, sources)]
    if len(shape) == 2:
        after.append(Node("Reshape", (total,), node.outputs, {"shape": shape}, f"{node.name}/row", sources))
    rewriter.replace(node, *before, *after)
    return True


def _signs(rewriter: Rewriter, node: Node, unit: np.ndarray) -> tuple[list[Node], str]:
    """The nodes that compute relu(x) and relu(-x) as 2 C channels, and their tensor."""
    x, stem = node.inputs[0], node.output
    producer, signs = rewriter.private(x), rewriter.fresh(f"{stem}/signs")
    nodes: list[Node] = []
    if producer is not None and _gives_both(rewriter, producer):
        w, *bias = (rewriter.constants[name] for name in producer.inputs[1:] if name)
        conv = replace(producer, sources=rewriter.sources(producer, node))
    else:
        w, bias = unit, []
        if len(rewriter.shape(x)) == 2:
            vector = rewriter.fresh(f"{stem}/vector")
            shape = (*rewriter.shape(x), 1, 1)
            nodes.append(Node("Reshape", (x,), (vector,), {"shape": shape}, f"{node.name}/vector", node.sources))
            x = vector
        conv = Node("Conv", (x, ""), ("",), {}, f"{node.name}/signs", node.sources)
    both = [
        rewriter.constant(np.concatenate([each, -each]), f"{signs}/{key}")
        for key, each in zip(("w", "b"), (w, *bias), strict=False)
    ]
    attrs = {**conv.attrs, "activation": "Relu"}
    nodes.append(replace(conv, inputs=(conv.inputs[0], *both), outputs=(signs,), attrs=attrs))
    return nodes, signs


def _gives_both(rewriter: Rewriter, producer: Node) -> bool:
    """Whether a node is a dense convolution with constant weights and without activation."""
    constant = all(name in rewriter.constants for name in producer.inputs[1:] if name)
    plain = GROUP(producer) == 1 and not ACTIVATION(producer)
    return producer.op == "Conv" and plain and constant
