"""NaN before operators of a machine that make a number of it, while onnxruntime keeps it.

BM1684 computes a ReLU, an exponential and a comparison of NaN as a number. Where a quotient of zeros or a
logarithm can be NaN, the host computes what would hide it. In int8, NaN is 0 wherever it becomes an integer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from npuc.conditions.constraints import refused
from npuc.conditions.lower_bounds import ALIKE, LowerBounds
from npuc.errors import Problem
from npuc.ir import Array, Node

HIDING = (
    "Relu", "Clip", "Elu", "Exp", "Sigmoid", "Tanh", "HardSigmoid", "Softmax", "Max", "Min", "MaxPool",
    "GlobalMaxPool", "ReduceMax", "ReduceMin", "FakeQuantize", "QuantizeLinear",
)  # fmt: skip
"""Operators of which the machine computes a number for NaN."""
MAKING = ("Acos", "Acosh", "Asin", "Atanh")
"""Operators whose result may be NaN for any operand; a Sqrt of negative numbers is refused when it runs."""
TESTING = ("IsNaN", "IsInf", "Shape", "Size", "ArgMax", "ArgMin", "Equal", "Greater", "Less", "NonZero", "Where")
"""Operators whose result is no NaN of their operand; a Where is taken to choose numbers."""


def hiding(nodes: Sequence[Node], constants: Mapping[str, Array]) -> tuple[Node, ...]:
    """The nodes that would make a number of NaN.

    nodes: in topological order; an operator that npuc does not know has its ONNX name.
    """
    bounds = LowerBounds({name: node for node in nodes for name in node.outputs}, constants)
    undefined, guarded, found = set[str](), set[str](), list[Node]()
    for node in nodes:
        reached = not undefined.isdisjoint(node.inputs) and node.op not in TESTING
        if reached and node.op in HIDING:
            found.append(node)
        if reached or _makes(node, bounds, guarded):
            undefined.update(filter(None, node.outputs))
        if _guards(node, bounds, guarded):
            guarded.update(node.outputs)
    return tuple(found)


def _makes(node: Node, bounds: LowerBounds, guarded: Set[str]) -> bool:
    """Whether the result may be NaN for operands that are numbers."""
    if node.op in ("Div", "Mod"):
        divisor = node.inputs[1]
        nonzero = divisor in guarded or bounds.holds(divisor, lambda value: value != 0)
        return not (nonzero or bounds.of(divisor) > 0)
    return node.op in MAKING or (node.op == "Log" and bounds.of(node.inputs[0]) < 0)


def _guards(node: Node, bounds: LowerBounds, guarded: Set[str]) -> bool:
    """Whether a positive constant was added to a result, which is taken to make a divisor of it."""
    constant = any(bounds.holds(each, lambda value: value > 0) for each in node.inputs)
    kept = node.op in ALIKE or (node.op in ("Mul", "Pow") and constant)
    return (node.op == "Add" and constant) or (kept and not guarded.isdisjoint(node.inputs))


def problems(nodes: Sequence[Node], constants: Mapping[str, Array], precision: str) -> list[Problem]:
    """A problem for each of these nodes in fp32."""
    return [
        refused(
            node,
            "its operand may be NaN, of which the machine makes a number",
            tensor=next(filter(None, node.outputs)),
            limit="no quotient of zeros, and no logarithm of what may be negative, before it",
            remedy="a divisor that is positive, such as max(x, 1e-6), or the host (leave out --strict)",
        )
        for node in (hiding(nodes, constants) if precision == "fp32" else ())
    ]
