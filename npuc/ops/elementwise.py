"""Operators of two tensors with numpy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops.activation import activate
from npuc.ops.attributes import FUSED, FUSED_INPUT
from npuc.ops.declaration import FLOAT, NUMBERS, Op, Parameter, broadcast


def _types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    a, b = types
    return (TensorType(broadcast(node, a.shape, b.shape), a.dtype),)


def _divide(a: Array, b: Array) -> Array:
    """The quotient; for integers it is truncated towards zero, as in C."""
    if np.issubdtype(a.dtype, np.floating):
        return a / b
    return np.trunc(a / b)


def _binary(name: str, summary: str, function: Callable[[Array, Array], Array]) -> Op:
    def compute(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
        a, b = inputs
        return (activate(node, np.asarray(function(a, b), a.dtype)),)

    power = name == "Pow"  # the exponent may be an integer; the base may not
    inputs = Parameter("a", FLOAT if power else NUMBERS), Parameter("b", NUMBERS, like="" if power else "a")
    attributes = (*FUSED, FUSED_INPUT) if name == "Add" else FUSED
    return Op(name, summary, inputs, (Parameter("y", like="a"),), compute, attributes, infer=_types)


OPERATORS = (
    _binary("Add", "The sum.", np.add),
    _binary("Sub", "The difference.", np.subtract),
    _binary("Mul", "The product.", np.multiply),
    _binary("Div", "The quotient.", _divide),
    _binary("Max", "The larger element.", np.maximum),
    _binary("Min", "The smaller element.", np.minimum),
    _binary("Pow", "The first to the power of the second.", np.power),
)
