"""Value ranges of tensors, as far as the nodes that compute them imply them, and those that int8 cannot reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, isfinite

import numpy as np

from npuc.errors import Problem, UnsupportedOperator
from npuc.ir import Graph, Node
from npuc.ops.attributes import ACTIVATION, MAX, MIN
from npuc.ops.movement import ONNX_MOVEMENT
from npuc.ops.windows import SELECTION
from npuc.quantize.calibration.histograms import NOTHING, Histogram
from npuc.quantize.scales.assignment import EXPONENTS
from npuc.quantize.scales.constraints import data_inputs
from npuc.quantize.scales.model_scales import steps_of

Span = tuple[float, float]
ANYTHING: Span = -inf, inf
NOTHING_KNOWN: Mapping[str, Span] = {}
ROUNDED_OFF = 1e-3
"""What weights in float32 may sum up to above 1."""


def spans(graph: Graph, known: Mapping[str, Span] = NOTHING_KNOWN) -> dict[str, Span]:
    """The least and the largest value that each tensor can have, where anything is known.

    Movement and selection combine the ranges of all their inputs; a maximum ignores its padding. known: those of
    some tensors; averages keep them.
    """
    found = {**known}
    for node in graph.nodes:
        if known and node.outputs[0] in known:
            continue
        if known and node.op in ("AveragePool", "GlobalAveragePool", "Conv"):
            span = _of_average(graph, node, found.get(node.inputs[0], ANYTHING))
        elif node.op in (*ONNX_MOVEMENT, *SELECTION):
            each = [found.get(name, ANYTHING) for name in node.inputs]
            span = min(low for low, _ in each), max(high for _, high in each)
        else:
            low, high = limits_of(graph, node)
            limits = known and node.op in ("Relu", "Clip")
            least, most = found.get(node.inputs[0], ANYTHING) if limits else ANYTHING
            span = min(max(low, least), high), max(min(high, most), low)
        if span != ANYTHING:
            found |= dict.fromkeys(node.outputs, span)
    return found


def _of_average(graph: Graph, node: Node, span: Span) -> Span:
    """The range of averages, interpolations, or single elements times constants, of a map with this range."""
    low, high = min(span[0], 0.0), max(span[1], 0.0)
    w, *bias = (graph.constant(name) for name in node.inputs[1:]) if node.op == "Conv" else (None,)
    if node.op in ("AveragePool", "GlobalAveragePool"):
        return low, high
    if w is None or ACTIVATION(node) or not isfinite(low - high):
        return ANYTHING
    rows = w.reshape(len(w), -1).astype(np.float64)
    if not ((np.abs(rows).sum(1) <= 1 + ROUNDED_OFF) | (np.count_nonzero(rows, axis=1) == 1)).all():
        return ANYTHING
    more, less, by = rows.clip(min=0).sum(1), rows.clip(max=0).sum(1), 0.0 if not bias else bias[0]
    return float((more * low + less * high + by).min()), float((more * high + less * low + by).max())


def limits_of(graph: Graph, node: Node) -> Span:
    """The limits of a node's result: of its activation, or of the integers that it rounds to or reads."""
    kind = ACTIVATION(node) or node.op
    if kind == "Relu":
        return 0.0, inf
    if kind == "Clip":
        return MIN(node), MAX(node)
    steps = steps_of(graph, node) if kind in ("FakeQuantize", "DequantizeLinear") else None
    return ANYTHING if steps is None else steps.limits


LARGEST = 127 * 2.0 ** float(EXPONENTS[-1])
"""What int8 reaches with the largest scale; an infinity in disguise, such as -3.4e38, is far beyond."""


def expect_within_reach(nodes: Sequence[Node], histograms: Mapping[str, Histogram]) -> None:
    """Raises UnsupportedOperator (E205) for every node that reads or writes a tensor with larger values, or with
    none above NOTHING."""
    beyond = {name: each.largest for name, each in histograms.items() if _unreachable(each)}
    found: list[Problem] = []
    for node in nodes if beyond else ():
        name = next((name for name in (*node.outputs, *data_inputs(node)) if name in beyond), None)
        if name is not None:
            found.append(_problem(node, name, beyond[name]))
    if found:
        raise UnsupportedOperator.of(found)


def _unreachable(values: Histogram) -> bool:
    return values.largest > LARGEST or 0 < values.largest <= NOTHING


def _problem(node: Node, tensor: str, largest: float) -> Problem:
    small = largest <= NOTHING
    reason = (
        "values are too small for a scale" if small else f"values reach {largest:.3g}: larger ones would saturate"
    )
    limit = f"more than {NOTHING:.3g}" if small else f"{LARGEST:.3g}"
    remedy = f"the host (leave out --strict), or {'larger' if small else 'smaller'} weights"
    return Problem("E205", reason, node.source, node.op, tensor, limit, remedy)
