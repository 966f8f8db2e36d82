"""Operators of two tensors with numpy's broadcasting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops.activation import activate
from npuc.ops.rules import NUMBERS, broadcast, expect_types, same_type
from npuc.ops.table import Op, register


def _types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    expect_types(node, types, NUMBERS)
    x, y = types
    return (TensorType(broadcast(node, x.shape, y.shape), same_type(node, types)),)


def _pow_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """The exponent may be an integer, the base may not."""
    x, y = types
    expect_types(node, types, NUMBERS if x.dtype == "float32" else ("float32",))
    return (TensorType(broadcast(node, x.shape, y.shape), x.dtype),)


def _divide(x: Array, y: Array) -> Array:
    """The quotient; of integers it is cut towards zero, as in C."""
    if np.issubdtype(x.dtype, np.floating):
        return x / y
    return np.trunc(x / y)


def _binary(name: str, summary: str, function: Callable[[Array, Array], Array]) -> Op:
    def compute(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
        x, y = inputs
        return (activate(node, np.asarray(function(x, y), x.dtype)),)

    return Op(name, summary, _pow_types if name == "Pow" else _types, compute)


register(
    _binary("Add", "The sum.", np.add),
    _binary("Sub", "The difference.", np.subtract),
    _binary("Mul", "The product.", np.multiply),
    _binary("Div", "The quotient.", _divide),
    _binary("Max", "The larger element.", np.maximum),
    _binary("Min", "The smaller element.", np.minimum),
    _binary("Pow", "The first to the power of the second.", np.power),
)
