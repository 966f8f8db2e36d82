"""Values of tensors by which nodes go to the host: lower bounds of elements, masks before a Softmax, NaN.

Lower bounds follow from constants and operators, for elements that are numbers. Divisors and roots are judged by
them: what is at least 1e-6 is no zero.

Masks exclude terms of a Softmax by values far below the others, such as -1e4. The Softmax ignores such values, but
a machine's number format does not: 8 bits that reach -1e4 have steps of 80, and in fp16 a row that is masked
entirely loses the differences between its terms. The host computes them in float32, together with the Softmax.

BM1684 computes a ReLU, an exponential and a comparison of NaN as a number, while onnxruntime keeps NaN. Where a
quotient of zeros or a logarithm can be NaN, the host computes what would hide it. In int8, NaN is 0 wherever it
becomes an integer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from math import floor, inf, isnan, prod, sqrt

import numpy as np

from npuc.conditions.constraints import refuse
from npuc.errors import Problem
from npuc.ir import Array, Node
from npuc.ops.attributes import KERNEL_SHAPE, MAX, MIN, VALUE
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
                self._known[name] = self._lower_bound(name)
        return self._known[tensor]

    def holds(self, tensor: str, condition: Callable[[Array], Array]) -> bool:
        """Whether a tensor is a constant all of whose elements meet a condition."""
        return tensor in self.constants and bool(condition(self.constants[tensor]).all())

    def _operands(self, tensor: str) -> list[str]:
        node = None if tensor in self.constants else self.producers.get(tensor)
        return [name for name in node.inputs if name] if node is not None and node.op in KNOWN else []

    def _lower_bound(self, tensor: str) -> float:
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


HEADS = ("Softmax", "LogSoftmax", "ArgMax", "TopK", "ReduceLogSumExp")
"""Operators that ignore what is far below the largest."""
ADDING = ("Add", "Sub", "Where", "Concat", "Pad")
"""Operators that bring in a mask."""
PASSING = (
    *ADDING, *ONNX_MOVEMENT, "Squeeze", "Unsqueeze", "Flatten", "Expand", "Gather", "Cast",
    "Mul", "Div", "Max", "Min", "Clip",
)  # fmt: skip
"""Operators whose result is masked if an operand is."""
LAYERS = (
    "Conv", "ConvTranspose", "Gemm", "MatMul", "Einsum", "LSTM", "GRU", "RNN", "QLinearConv", "QLinearMatMul",
    "ConvInteger", "MatMulInteger", "QGemm",
)  # fmt: skip
"""Operators that compute logits. What the inputs give without them may be a mask."""
LARGEST = 16.0
"""The largest constant that is no mask: e to the power of -16 is next to nothing beside 1 in float32."""
LARGEST_BIAS = 1000.0
"""The same of a layer's own bias, which a mask was folded into: that of a trained layer is smaller."""


def masking(nodes: Sequence[Node], constants: Mapping[str, Array]) -> tuple[Node, ...]:
    """The nodes that add a mask before a Softmax, those that compute it, and those on the way to the Softmax.

    nodes: in topological order; an operator that npuc does not know has its ONNX name.
    """
    logits, masked = _masked_tensors(nodes, constants)
    wanted, sources = set[str](), set[str]()
    found: list[Node] = []
    largest = {name: node.inputs[:1] for node in nodes if node.op == "ReduceMax" for name in node.outputs}
    for node in reversed(nodes):
        of_several = node.op == "Sub" and any(largest.get(name) == node.inputs[:1] for name in node.inputs[1:])
        if node.op in HEADS or of_several:
            wanted.update(node.inputs[:1])
        results = set(filter(None, node.outputs))
        if results & sources:
            sources.update(node.inputs)
            found.append(node)
        elif results & wanted & masked:
            wanted.update(node.inputs)
            sources.update(name for name in node.inputs if node.op in ADDING and name not in logits)
            found.append(node)
    return tuple(reversed(found))


def _masked_tensors(nodes: Sequence[Node], constants: Mapping[str, Array]) -> tuple[set[str], set[str]]:
    """The tensors that layers contribute to, and those to which a mask was added."""
    logits, masked, samples = set[str](), set[str](), _samples(nodes)
    for node in nodes:
        if _adds(node, constants, logits, samples) or (node.op in PASSING and not masked.isdisjoint(node.inputs)):
            masked.update(node.outputs)
        if node.op in LAYERS or not logits.isdisjoint(node.inputs):
            logits.update(node.outputs)
    return logits, masked


def _samples(nodes: Sequence[Node]) -> set[str]:
    """The tensors that layers read, other than through a Softmax: no masks, even if added to logits."""
    found = set[str]()
    for node in reversed(nodes):
        if node.op in LAYERS or (node.op not in HEADS and not found.isdisjoint(node.outputs)):
            found.update(node.inputs)
    return found


def _adds(node: Node, constants: Mapping[str, Array], logits: Set[str], samples: Set[str]) -> bool:
    """Whether a node adds a mask: a large constant, or to logits what the network's inputs give without layers."""
    if node.op == "Pad":
        return VALUE(node) <= -LARGEST
    if node.op in ("Conv", "Gemm"):
        return _reaches(node.inputs[2:], constants, LARGEST_BIAS)
    if node.op not in ADDING:
        return False
    given = any(name not in logits and name not in samples and name not in constants for name in node.inputs)
    added = node.op in ("Add", "Sub") and given and not logits.isdisjoint(node.inputs)
    return added or _reaches(node.inputs, constants, LARGEST)


def _reaches(names: Iterable[str], constants: Mapping[str, Array], limit: float) -> bool:
    """Whether a float constant has a value of this magnitude."""
    values = (constants[name] for name in names if name in constants)
    return any(value.dtype.kind == "f" and bool((np.abs(value) >= limit).any()) for value in values)


def mask_problems(nodes: Sequence[Node], constants: Mapping[str, Array], precision: str) -> list[Problem]:
    """A problem for each of these nodes, unless the precision is fp32, which has the range."""
    return [
        refuse(
            node,
            f"it belongs to a mask before a Softmax, for which {precision} lacks range",
            tensor=next(filter(None, node.outputs)),
            limit=f"what is added to logits comes from layers, or is a constant below {LARGEST:g}",
            remedy="a target with fp32, or the host (leave out --strict)",
        )
        for node in (masking(nodes, constants) if precision != "fp32" else ())
    ]


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


def nan_problems(nodes: Sequence[Node], constants: Mapping[str, Array], precision: str) -> list[Problem]:
    """A problem for each of these nodes in fp32."""
    return [
        refuse(
            node,
            "its operand may be NaN, of which the machine makes a number",
            tensor=next(filter(None, node.outputs)),
            limit="no quotient of zeros, and no logarithm of what may be negative, before it",
            remedy="a divisor that is positive, such as max(x, 1e-6), or the host (leave out --strict)",
        )
        for node in (hiding(nodes, constants) if precision == "fp32" else ())
    ]
