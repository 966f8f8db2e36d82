"""Value ranges of tensors, as far as the nodes that compute them imply them."""

from __future__ import annotations

from math import inf

from npuc.ir import Graph, Node
from npuc.ops.attributes import ACTIVATION, MAX, MIN
from npuc.ops.movement import ONNX_MOVEMENT
from npuc.ops.windows import SELECTION
from npuc.quantize.scales.model_scales import steps_of

Span = tuple[float, float]
ANYTHING: Span = -inf, inf


def spans(graph: Graph) -> dict[str, Span]:
    """The least and the largest value that each tensor can have, where anything is known.

    Movement and selection combine the ranges of all their inputs; a maximum ignores its padding.
    """
    found: dict[str, Span] = {}
    for node in graph.nodes:
        if node.op in (*ONNX_MOVEMENT, *SELECTION):
            each = [found.get(name, ANYTHING) for name in node.inputs]
            span = min(low for low, _ in each), max(high for _, high in each)
        else:
            span = limits_of(graph, node)
        if span != ANYTHING:
            found |= dict.fromkeys(node.outputs, span)
    return found


def limits_of(graph: Graph, node: Node) -> Span:
    """The limits of a node's result: of its activation, or of the integers that it rounds to or reads."""
    kind = ACTIVATION(node) or node.op
    if kind == "Relu":
        return 0.0, inf
    if kind == "Clip":
        return MIN(node), MAX(node)
    steps = steps_of(graph, node) if kind in ("FakeQuantize", "DequantizeLinear") else None
    return ANYTHING if steps is None else steps.limits
