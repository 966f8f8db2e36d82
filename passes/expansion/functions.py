"""Powers with small exponents and PReLU with slopes per channel, by functions that machines have."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Graph, Node
from npuc.ops.attributes import ACTIVATION, GROUP
from npuc.passes.rewriting.patterns import along_axis, only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite


def expand_powers(graph: Graph) -> Graph:
    """Pow by 1, 2, 3 or 4 becomes at most two products, by 0.5 a Sqrt. Other exponents stay."""
    return rewrite(graph, _expand_power)


def _expand_power(rewriter: Rewriter, node: Node) -> bool:
    exponent = rewriter.constants.get(node.inputs[1]) if node.op == "Pow" and not ACTIVATION(node) else None
    x = node.inputs[0]
    if exponent is None or exponent.size != 1 or not only_float(rewriter, x, node.output):
        return False
    if rewriter.shape(x) != rewriter.shape(node.output) or x in rewriter.constants:
        return False
    number = float(exponent.reshape(-1)[0])
    if number == 1:
        identity = replace(node, op="Identity", inputs=(x,))
        rewriter.replace(node, identity)
        rewriter.bypass(identity)
        return True
    if number == 0.5:
        rewriter.replace(node, replace(node, op="Sqrt", inputs=(x,)))
        return True
    if number not in (2, 3, 4):
        return False
    if number == 2:
        rewriter.replace(node, replace(node, op="Mul", inputs=(x, x)))
        return True
    square = rewriter.part(node, "Mul", (x, x), f"{node.output}/square")
    y = square.output
    rewriter.replace(node, square, replace(node, op="Mul", inputs=(y, x if number == 3 else y)))
    return True


def expand_prelu(graph: Graph) -> Graph:
    """PRelu with different slopes a becomes relu(x) - a * relu(-x), summed by a 1x1 convolution.

    Exact, and still rounded once when quantised: a convolution with ReLU computes x and -x as 2 C channels, and
    one from 2 C to C channels weights them with 1 and -a. A Conv that only the PRelu reads computes both signs
    itself. For machines without a word for slopes; x: (1, C, ...) with two spatial axes or none, or a batch.
    """
    return rewrite(graph, prelu_to_convs)


def prelu_to_convs(rewriter: Rewriter, node: Node) -> bool:
    """The same for one node."""
    shape = rewriter.shape(node.inputs[0])
    slope = rewriter.constants.get(node.inputs[1]) if node.op == "PRelu" else None
    slopes = along_axis(slope, shape, 1) if slope is not None and len(shape) in (2, 4) else None
    if slopes is None or (slopes == slopes[0]).all() or not np.isfinite(slopes).all():
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
