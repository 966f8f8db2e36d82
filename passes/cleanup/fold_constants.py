"""Evaluates computations that depend on constants alone."""

from __future__ import annotations

import numpy as np

from npuc.interpreter import evaluate
from npuc.ir import Array, Graph, Node
from npuc.ops import rebuild

LARGEST_GROWTH = 1 << 20
"""In elements: a node whose result is larger than this, and than all its inputs, is not evaluated."""


def fold_constants(graph: Graph) -> Graph:
    """Replaces nodes by their results if all inputs are constants.

    Weights that a quantised model stores as integers stay behind their DequantizeLinear, which carries their
    scale; in a model that quantises no activation, DequantizeLinear is only a storage format and is folded.
    """
    quantised = _quantises_activations(graph)
    known: dict[str, Array] = dict(graph.constants)
    kept: list[Node] = []
    for node in graph.nodes:
        inputs = [known[name] for name in node.inputs if name in known]
        stays = quantised and node.op == "DequantizeLinear"
        if stays or len(inputs) < len([*filter(None, node.inputs)]) or _grows(graph, node):
            kept.append(node)
            continue
        empty = np.empty(0, np.float32)
        found = evaluate(node, [known[name] if name else empty for name in node.inputs])
        known.update((name, value) for name, value in zip(node.outputs, found, strict=True) if name)
    return graph if len(kept) == len(graph.nodes) else rebuild(graph, kept, known)


def _quantises_activations(graph: Graph) -> bool:
    quantisers = (node for node in graph.nodes if node.op in ("QuantizeLinear", "DequantizeLinear"))
    return any(graph.constant(node.inputs[0]) is None for node in quantisers)


def _grows(graph: Graph, node: Node) -> bool:
    size = sum(graph.tensors[name].size for name in node.outputs if name)
    return size > max(LARGEST_GROWTH, sum(graph.tensors[name].size for name in node.inputs if name))
