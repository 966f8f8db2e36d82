"""Activations: functions of one element."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops.rules import broadcast, expect_float, like_float_input, like_input, like_numeric_input
from npuc.ops.table import Op, bad_node, register


def activate(node: Node, y: Array) -> Array:
    """The result after the activation that the fusion pass has put into the node ("", Relu or Clip)."""
    kind = node.text("activation")
    if kind == "Relu":
        return np.maximum(y, 0)
    if kind == "Clip":
        low, high = node.number("min", -math.inf), node.number("max", math.inf)
        return np.minimum(np.maximum(y, low), high)
    return y


def erf(x: Array) -> Array:
    """The error function of each element, correctly rounded in double precision."""
    values = (math.erf(value) for value in x.ravel().tolist())
    return np.fromiter(values, np.float64, x.size).reshape(x.shape)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), by tanh so that it does not overflow."""
    return 0.5 * (1 + np.tanh(0.5 * x))


def softplus(x: Array) -> Array:
    """log(1 + exp(x)) without overflow."""
    return np.logaddexp(x, 0)


def _gelu(node: Node, x: Array) -> Array:
    if node.text("approximate", "none") == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def _clip(node: Node, x: Array) -> Array:
    return np.minimum(np.maximum(x, node.number("min", -math.inf)), node.number("max", math.inf))


def _elu(node: Node, x: Array) -> Array:
    return np.where(x > 0, x, node.number("alpha", 1.0) * np.expm1(np.minimum(x, 0)))


def _hard_sigmoid(node: Node, x: Array) -> Array:
    return np.clip(node.number("alpha", 0.2) * x + node.number("beta", 0.5), 0, 1)


def _unary(name: str, summary: str, function: Callable[[Node, Array], Array]) -> Op:
    """A row for a function of float32 elements."""

    def compute(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.asarray(function(node, inputs[0]), np.float32),)

    return Op(name, summary, like_float_input, compute)


def _numeric_unary(name: str, summary: str, function: Callable[[Array], Array]) -> Op:
    """A row for a function of floats and integers that keeps their type."""

    def compute(_node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.asarray(function(inputs[0]), inputs[0].dtype),)

    return Op(name, summary, like_numeric_input, compute)


def _prelu_types(node: Node, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    expect_float(node, types)
    x, slope = types
    if broadcast(node, x.shape, slope.shape) != x.shape:
        reason = f"the slope's shape {list(slope.shape)} does not broadcast to {list(x.shape)}"
        raise bad_node(node, reason, tensor=node.inputs[1])
    return (replace(x),)


def _prelu(_node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, slope = inputs
    return (np.where(x < 0, x * slope, x),)


register(
    Op("Identity", "The input itself.", like_input, lambda _, inputs: (inputs[0],)),
    _numeric_unary("Relu", "The larger of x and 0.", lambda x: np.maximum(x, x.dtype.type(0))),
    _numeric_unary("Abs", "The absolute value.", np.abs),
    _numeric_unary("Neg", "The negative value.", np.negative),
    _unary("Sigmoid", "1 / (1 + exp(-x)).", lambda _, x: sigmoid(x)),
    _unary("Tanh", "The hyperbolic tangent.", lambda _, x: np.tanh(x)),
    _unary("HardSwish", "x * clip(x / 6 + 0.5, 0, 1).", lambda _, x: x * np.clip(x / 6 + 0.5, 0, 1)),
    _unary("HardSigmoid", "alpha * x + beta, limited to 0..1.", _hard_sigmoid),
    _unary("Swish", "x * sigmoid(alpha * x).", lambda node, x: x * sigmoid(node.number("alpha", 1.0) * x)),
    _unary("Mish", "x * tanh(softplus(x)).", lambda _, x: x * np.tanh(softplus(x))),
    _unary("Softplus", "log(1 + exp(x)).", lambda _, x: softplus(x)),
    _unary("Softsign", "x / (1 + |x|).", lambda _, x: x / (1 + np.abs(x))),
    _unary("Elu", "x if positive, otherwise alpha * (exp(x) - 1).", _elu),
    _unary("Gelu", "x times the normal distribution function of x, exactly or by tanh.", _gelu),
    _unary("Clip", "x limited to min..max, both constant.", _clip),
    _unary(
        "LeakyRelu",
        "x if positive, otherwise alpha * x.",
        lambda node, x: np.where(x < 0, node.number("alpha", 0.01) * x, x),
    ),
    _unary("Exp", "The exponential function.", lambda _, x: np.exp(x)),
    _unary("Log", "The natural logarithm.", lambda _, x: np.log(x)),
    _unary("Erf", "The error function.", lambda _, x: erf(x)),
    _unary("Sqrt", "The square root.", lambda _, x: np.sqrt(x)),
    _unary("Reciprocal", "1 / x.", lambda _, x: np.reciprocal(x)),
    _unary("Floor", "The largest integer that is not larger.", lambda _, x: np.floor(x)),
    _unary("Ceil", "The smallest integer that is not smaller.", lambda _, x: np.ceil(x)),
    _unary("Round", "The nearest integer, ties to the even one.", lambda _, x: np.rint(x)),
    Op("PRelu", "x if positive, otherwise slope * x, the slope broadcast to x.", _prelu_types, _prelu),
)
