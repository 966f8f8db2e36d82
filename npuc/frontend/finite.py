"""Whether a tensor's elements are finite numbers, neither infinite nor NaN.

Inputs that layers read are taken to be. Others need not: one may be a mask with -inf, or be tested for NaN. Sums
and products of constants below MODERATE are taken to stay within the range of float32; masks may have larger ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from npuc.conditions.values import LAYERS
from npuc.frontend.builder import NodeBuilder
from npuc.ir import Array, Node
from npuc.ops.attributes import AXIS, EPSILON
from npuc.ops.movement import ONNX_MOVEMENT

MODERATE = 1e18
FINITE = (
    *ONNX_MOVEMENT, "Expand", "Gather", "Cast", "Conv", "ConvTranspose", "Gemm", "MatMul", "Add", "Sub", "Mul",
    "Max", "Min", "Clip", "Abs", "Neg", "Ceil", "Floor", "Round", "Relu", "LeakyRelu", "PRelu", "Sigmoid",
    "HardSigmoid", "HardSwish", "Swish", "Tanh", "Erf", "Gelu", "Elu", "Mish", "Softplus", "Softsign",
    "AveragePool", "GlobalAveragePool", "MaxPool", "GlobalMaxPool", "InstanceNormalization", "ReduceMax",
    "ReduceMean", "ReduceMin", "ReduceSum", "Resize", "Softmax", "Where",
)  # fmt: skip
"""Operators whose result is finite if their inputs are. Of those that the host runs, Where is known."""
CONDITIONS: Mapping[str, Callable[[Node, NodeBuilder], bool]] = {
    "BatchNormalization": lambda node, to: to.bounds.of(node.inputs[4]) > -EPSILON(node),
    "Div": lambda node, to: _is_divisor(to, node.inputs[1]),
    "Pow": lambda node, to: to.bounds.holds(node.inputs[1], lambda value: (value >= 0) & (value % 1 == 0)),
    "Reciprocal": lambda node, to: _is_divisor(to, node.inputs[0]),
    "Sqrt": lambda node, to: to.bounds.of(node.inputs[0]) >= 0,
}
"""The same, under a condition."""

Needed = tuple[str, bool]
"""A tensor, and whether a layer reads what is made of it."""


def is_finite(to: NodeBuilder, tensor: str) -> bool:
    """Whether all elements of a tensor are finite numbers."""
    known, waiting = to.finite, [(tensor, False)]
    while waiting:
        found = waiting[-1]
        needed = _requirements(to, *found)
        missing = [each for each in needed or () if each not in known]
        if missing:
            waiting += missing
        else:
            known[found] = needed is not None and all(known[each] for each in needed)
            waiting.pop()
    return known[tensor, False]


def _requirements(to: NodeBuilder, name: str, in_layer: bool) -> tuple[Needed, ...] | None:
    """What must be finite for a tensor to be so; None if nothing suffices."""
    node = to.producers.get(name)
    if name in to.types and (np.dtype(to.types[name].dtype).kind != "f" or to.bounds.holds(name, _is_moderate)):
        return ()
    if node is None:
        return () if in_layer and name in to.inputs else None
    if node.op not in FINITE and not (node.op in CONDITIONS and CONDITIONS[node.op](node, to)):
        return None
    read = (_strip_mask(to, node),) if node.op == "Softmax" else node.inputs
    return tuple((each, in_layer or node.op in LAYERS) for each in read if each)


def _strip_mask(to: NodeBuilder, softmax: Node) -> str:
    """The argument of a Softmax, without a mask that leaves a number in every row."""
    x = softmax.inputs[0]
    node, axis = to.producers.get(x), AXIS(softmax) - len(to.shape(x))
    if node is not None and node.op == "Add":
        for logits, mask in (node.inputs, node.inputs[::-1]):
            if is_chosen(to, mask) or _removes_a_part(to, mask, axis):
                return logits
    return x


def is_chosen(to: NodeBuilder, name: str) -> bool:
    """Whether a mask is, maybe moved, a choice of finite constants, such as 0 and the least float32."""
    node = to.producers.get(name)
    while node is not None and node.op != "Concat" and node.op in (*ONNX_MOVEMENT, "Expand"):
        node = to.producers.get(node.inputs[0])
    if node is None or node.op != "Where":
        return False
    return all(to.bounds.holds(each, np.isfinite) for each in node.inputs[1:])


def _removes_a_part(to: NodeBuilder, name: str, axis: int) -> bool:
    """Whether a mask is a constant of numbers and -inf, with a number everywhere along the axis, below 0."""
    mask = to.constants.get(name)
    if mask is None or mask.ndim < -axis:
        return False
    return bool((mask < np.inf).all() and (mask > -np.inf).any(axis).all())


def _is_moderate(value: Array) -> Array:
    return np.abs(value) < MODERATE


def _is_divisor(to: NodeBuilder, name: str) -> bool:
    """Whether a tensor is far from 0: positive, or a constant."""
    return to.bounds.of(name) > 1 / MODERATE or to.bounds.holds(name, lambda value: np.abs(value) > 1 / MODERATE)
