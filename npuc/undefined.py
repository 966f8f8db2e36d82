"""NaN before operators of a machine that make a number of it, while onnxruntime keeps it.

BM1684 computes a ReLU, an exponential and a comparison of NaN as a number. Where a quotient of zeros or a
logarithm can be NaN, the host computes what would hide it. In int8, NaN is 0 wherever it becomes an integer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from npuc.constraints import refused
from npuc.errors import Problem
from npuc.ir import Array, Node
from npuc.ops.attributes import MIN
from npuc.ops.movement import ONNX_MOVEMENT

HIDING = (
    "Relu", "Clip", "Elu", "Exp", "Sigmoid", "Tanh", "HardSigmoid", "Softmax", "Max", "Min", "MaxPool",
    "GlobalMaxPool", "ReduceMax", "ReduceMin", "FakeQuantize", "QuantizeLinear",
)  # fmt: skip
"""Operators of which the machine computes a number for NaN."""
MAKING = ("Acos", "Acosh", "Asin", "Atanh")
"""Operators whose result may be NaN for any operand; a Sqrt of negative numbers is refused when it runs."""
TESTING = ("IsNaN", "IsInf", "Shape", "Size", "ArgMax", "ArgMin", "Equal", "Greater", "Less", "NonZero", "Where")
"""Operators whose result is no NaN of their operand; a Where is taken to choose numbers."""
ALIKE = (
    *ONNX_MOVEMENT, "Squeeze", "Unsqueeze", "Flatten", "Expand", "Gather", "Cast", "Sqrt", "ReduceSum",
    "ReduceMean", "ReduceMax", "ReduceMin", "AveragePool", "GlobalAveragePool", "MaxPool", "GlobalMaxPool",
)  # fmt: skip
"""Operators whose result is positive, or not negative, if their first operand is."""
SQUARES = ("Abs", "Relu", "Exp", "Sigmoid", "Softmax", "Softplus", "ReduceL1", "ReduceL2", "ReduceSumSquare")
"""Operators whose result is not negative."""
UNKNOWN, NOT_NEGATIVE, POSITIVE = range(3)


def hiding(nodes: Sequence[Node], constants: Mapping[str, Array]) -> tuple[Node, ...]:
    """The nodes that would make a number of NaN.

    nodes: in topological order; an operator that npuc does not know has its ONNX name.
    """
    signs, undefined, found = _Signs(constants), set[str](), list[Node]()
    for node in nodes:
        reached = not undefined.isdisjoint(node.inputs) and node.op not in TESTING
        if reached and node.op in HIDING:
            found.append(node)
        if reached or _makes(node, signs):
            undefined.update(filter(None, node.outputs))
        signs.add(node)
    return tuple(found)


def _makes(node: Node, signs: _Signs) -> bool:
    """Whether the result may be NaN for operands that are numbers."""
    if node.op in ("Div", "Mod"):
        return not signs.is_divisor(node.inputs[1])
    return node.op in MAKING or (node.op == "Log" and signs.of(node.inputs[0]) == UNKNOWN)


class _Signs:
    """What is known of the signs of tensors."""

    def __init__(self, constants: Mapping[str, Array]) -> None:
        self.constants, self.known, self.guarded = constants, dict[str, int](), set[str]()

    def of(self, name: str) -> int:
        """The sign of a tensor's elements."""
        value = self.constants.get(name)
        if value is None:
            return self.known.get(name, UNKNOWN)
        if value.dtype.kind not in "fiu":
            return UNKNOWN
        return POSITIVE if (value > 0).all() else NOT_NEGATIVE if (value >= 0).all() else UNKNOWN

    def is_divisor(self, name: str) -> bool:
        """Whether no element of a tensor is 0; a constant was added to some for that purpose."""
        value = self.constants.get(name)
        nonzero = value is not None and bool((value != 0).all())
        return nonzero or self.of(name) == POSITIVE or name in self.guarded

    def add(self, node: Node) -> None:
        """Includes the results of a node."""
        constant = any(each in self.constants and self.of(each) == POSITIVE for each in node.inputs)
        kept = node.op in ALIKE or (node.op in ("Mul", "Pow") and constant)
        if (node.op == "Add" and constant) or (kept and not self.guarded.isdisjoint(node.inputs)):
            self.guarded.update(node.outputs)
        self.known.update(dict.fromkeys(node.outputs, self._result(node)))

    def _result(self, node: Node) -> int:
        given = [self.of(name) for name in node.inputs if name]
        match node.op:
            case "Max":
                return max(given)
            case "Clip":
                return max(given[0], POSITIVE if MIN(node) > 0 else NOT_NEGATIVE if MIN(node) >= 0 else UNKNOWN)
            case "Add" if min(given) > UNKNOWN:
                return max(given)
            case "Mul" if node.inputs[0] == node.inputs[1]:
                return NOT_NEGATIVE
            case "Concat" | "Min" | "Mul" | "Div":
                return min(given)
            case "Pow":
                return max(given[0], NOT_NEGATIVE if self._is_even(node.inputs[1]) else UNKNOWN)
            case op if op in SQUARES:
                return NOT_NEGATIVE
            case op:
                return given[0] if op in ALIKE else UNKNOWN

    def _is_even(self, name: str) -> bool:
        value = self.constants.get(name)
        return value is not None and bool((value % 2 == 0).all())


def problems(nodes: Sequence[Node], constants: Mapping[str, Array], precision: str) -> list[Problem]:
    """A problem for each of these nodes in fp32."""
    return [
        refused(
            node,
            "its operand may be NaN, of which the machine makes a number",
            tensor=next(filter(None, node.outputs)),
            limit="no quotient of zeros, and no logarithm of what may be negative, before it",
            remedy="a divisor that is positive, such as max(x, 1e-6), or the host (--fallback host)",
        )
        for node in (hiding(nodes, constants) if precision == "fp32" else ())
    ]
