"""Lower bounds of tensors' elements, derived from constants and operators.

A bound holds for elements that are numbers. Divisors and roots are judged by it: what is at least 1e-6 is no zero.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import floor, inf, isnan, prod, sqrt

import numpy as np

from npuc.ir import Array, Node
from npuc.ops.attributes import KERNEL_SHAPE, MAX, MIN
from npuc.ops.movement import ONNX_MOVEMENT

ALIKE = (
    *ONNX_MOVEMENT, "Squeeze", "Unsqueeze", "Flatten", "Expand", "Gather", "Sqrt", "ReduceSum",
    "ReduceMean", "ReduceMax", "ReduceMin", "AveragePool", "GlobalAveragePool", "MaxPool", "GlobalMaxPool",
)  # fmt: skip
"""Operators whose result is positive, or not negative, if their first operand is."""
NOT_NEGATIVE = ("Exp", "Sigmoid", "Softmax", "Softplus", "ReduceL1", "ReduceL2", "ReduceSumSquare")
"""Operators whose result is never negative."""
KNOWN = (*ALIKE, *NOT_NEGATIVE, "Abs", "Add", "Cast", "Clip", "Div", "Max", "Min", "Mul", "Pow", "Relu")
FLOAT32, INT32 = np.finfo(np.float32), 1 << 31


class LowerBounds:
    """The lower bounds of a network's tensors.

    producers: the node that computes each tensor, of ONNX or npuc; both mappings may grow later.
    """

    def __init__(self, producers: Mapping[str, Node], constants: Mapping[str, Array]) -> None:
        self.producers, self.constants = producers, constants
        self._known: dict[str, float] = {}

    def of(self, tensor: str) -> float:
        """The lower bound of a tensor's elements, a float32; -inf if none is known."""
        waiting = [tensor]
        while waiting:
            missing = [name for name in self._operands(waiting[-1]) if name not in self._known]
            if missing:
                waiting += missing
            else:
                name = waiting.pop()
                self._known[name] = self._bound(name)
        return self._known[tensor]

    def holds(self, tensor: str, condition: Callable[[Array], Array]) -> bool:
        """Whether a tensor is a constant all of whose elements meet a condition."""
        return tensor in self.constants and bool(condition(self.constants[tensor]).all())

    def _operands(self, tensor: str) -> list[str]:
        node = None if tensor in self.constants else self.producers.get(tensor)
        return [name for name in node.inputs if name] if node is not None and node.op in KNOWN else []

    def _bound(self, tensor: str) -> float:
        value, operands = self.constants.get(tensor), self._operands(tensor)
        found = -inf
        if value is not None and value.dtype.kind in "fiu":
            found = float(value.min()) if value.size else inf
        elif operands:
            found = self._result(self.producers[tensor], [self._known[name] for name in operands])
        with np.errstate(over="ignore"):
            return -inf if isnan(found) else float(np.float32(found))

    def _result(self, node: Node, given: Sequence[float]) -> float:
        """The bound of a node's results from those of its operands."""
        match node.op:
            case "Abs" | "Relu":
                return max(given[0], 0.0)
            case "Add":
                return sum(given)
            case "AveragePool":  # zeros of the padding may count
                return min(given[0], given[0] / prod(KERNEL_SHAPE(node)))
            case "Cast":  # to integers and from them: casts between floats are none here
                return floor(given[0]) if 0 <= given[0] < INT32 else -inf
            case "Clip":
                return min(max(given[0], MIN(node)), MAX(node))
            case "Concat" | "Min":
                return min(given)
            case "Div":
                return given[0] / FLOAT32.max if min(given) >= 0 else -inf
            case "Max":
                return max(given)
            case "Mul" if node.inputs[0] == node.inputs[1]:
                return max(given[0], 0.0) ** 2
            case "Mul":
                return prod(given) if min(given) >= 0 else -inf
            case "Pow" if given[0] <= 0:
                even = self.holds(node.inputs[1], lambda value: value % 2 == 0)
                return 0.0 if even or given[0] == 0 else -inf
            case "Pow":
                return float(FLOAT32.tiny)
            case "ReduceSum":
                return given[0] if given[0] >= 0 else -inf
            case "Sqrt":
                return sqrt(max(given[0], 0.0))
            case op:
                return given[0] if op in ALIKE else 0.0
