"""Scales and zero points: the unsigned tensors, and the operators' constraints on scales.

A sum and an average accept any scales, so only operators that move or select elements constrain them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from npuc.conditions.lower_bounds import NOT_NEGATIVE
from npuc.ir import Graph, Node
from npuc.ops.attributes import ACTIVATION
from npuc.ops.movement import KEPT_INTEGERS
from npuc.ops.pooling import AVERAGES, SELECTION
from npuc.quantize.arithmetic.tables import is_relu
from npuc.quantize.calibration.histograms import Histogram
from npuc.quantize.scales.assignment import ScaleConstraints, components
from npuc.quantize.scales.constraints import constraints_of, data_inputs, equal_scales, floors
from npuc.quantize.scales.model_scales import Steps
from npuc.targets.bm1684.quantisation.operators import UNSIGNED

SAME = (*KEPT_INTEGERS, *SELECTION)
NEVER_NEGATIVE = (*NOT_NEGATIVE, "HardSigmoid", "Sqrt", "Abs")


def natural(given: Mapping[str, Steps]) -> dict[str, Steps]:
    """Given scales with a zero point of 0 or -128; others are replaced by signed ones with the same range."""
    return {
        name: steps if steps.zero in (0, UNSIGNED) else Steps(steps.reach / 127) for name, steps in given.items()
    }


def shared(graph: Graph, nodes: Sequence[Node], given: Mapping[str, Steps]) -> dict[str, Steps]:
    """Given scales, extended to the tensors that must share them."""
    equal = equal_scales(graph, nodes)
    class_of = components((*given, *(name for pair in equal for name in pair)), equal)
    found: dict[str, Steps] = {}
    for name, steps in given.items():
        found.setdefault(class_of[name], steps)
    return {**{name: found[leader] for name, leader in class_of.items() if leader in found}, **given}


def constraints(
    graph: Graph, nodes: Sequence[Node], free: Mapping[str, Histogram], given: Collection[str]
) -> ScaleConstraints:
    """The operators' constraints on the scales of their tensors."""
    others = without_arithmetic(nodes)
    limited = constraints_of(graph, nodes, given)
    found = constraints_of(graph, others, given)
    return replace(found, ceilings=limited.ceilings, floors=floors(graph, nodes, free))


def without_arithmetic(nodes: Sequence[Node]) -> list[Node]:
    """The nodes that may demand a shared scale: not sums, products and averages, which accept any."""
    return [node for node in nodes if node.op not in ("Add", "Mul", *AVERAGES)]


def without_negatives(
    graph: Graph, nodes: Sequence[Node], chosen: Mapping[str, Steps], demanded: ScaleConstraints
) -> dict[str, Steps]:
    """The chosen scales within their ceilings; halved, and unsigned, for tensors without negative elements."""
    class_of = components(chosen, (pair for pair in demanded.equal if all(name in chosen for name in pair)))
    negative = _signed(graph, nodes, class_of)
    scales: dict[str, float] = {}
    for name, steps in chosen.items():
        scale = min(steps.scale, demanded.ceilings.get(name, steps.scale))
        scales[class_of[name]] = min(scale, scales.get(class_of[name], scale))
    return {
        name: Steps(scales[leader]) if leader in negative else Steps(scales[leader] * 127 / 255, UNSIGNED)
        for name, leader in class_of.items()
    }


def _signed(graph: Graph, nodes: Sequence[Node], class_of: Mapping[str, str]) -> set[str]:
    """The scale classes of tensors that may have negative elements."""
    integer = set(nodes)
    found: set[str] = set()
    before = -1
    while len(found) > before:
        before = len(found)
        for name, leader in class_of.items():
            producer = graph.producers.get(name)
            if producer is None or producer not in integer or _may_be_negative(producer, class_of, found):
                found.add(leader)
    return found


def _may_be_negative(node: Node, class_of: Mapping[str, str], signed: Collection[str]) -> bool:
    """Whether a node's result may have negative elements, given the classes that may."""
    square = node.op == "Mul" and len({*node.inputs}) == 1
    if ACTIVATION(node) in ("Relu", "Clip") or node.op in NEVER_NEGATIVE or square:
        return False
    if node.op in SAME:
        return False  # as its operands, which are of the same class
    if node.op in (*AVERAGES, "Add", "Mul"):
        return any(class_of.get(x) is None or class_of[x] in signed for x in data_inputs(node))
    return not is_relu(node)
