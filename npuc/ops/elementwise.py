"""Functions of one element, among them the activations, and of two tensors with numpy's broadcasting."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from npuc.ir import Array, Node, TensorType
from npuc.ops.attributes import (
    ACTIVATION,
    APPROXIMATE,
    ELU_ALPHA,
    FUSED,
    FUSED_INPUT,
    HARD_ALPHA,
    HARD_BETA,
    LEAKY_ALPHA,
    MAX,
    MIN,
    SWISH_ALPHA,
    Attribute,
)
from npuc.ops.declaration import ANY, FLOAT, NUMBERS, Exporter, Op, Parameter, broadcast

if TYPE_CHECKING:
    from npuc.onnx_files.export import OnnxEmitter


def activate(node: Node, y: Array) -> Array:
    """The result after the activation that the fusion pass has merged into the node ("", Relu or Clip)."""
    match ACTIVATION(node):
        case "Relu":
            return np.maximum(y, 0)
        case "Clip":
            return clip(node, y)
        case _:
            return y


def clip(node: Node, x: Array) -> Array:
    """The elements limited to a node's min and max."""
    return np.minimum(np.maximum(x, MIN(node)), MAX(node))


def erf(x: Array) -> Array:
    """The error function of each element, correctly rounded in double precision."""
    values = (math.erf(value) for value in x.ravel().tolist())
    return np.fromiter(values, np.float64, x.size).reshape(x.shape)


def sigmoid(x: Array) -> Array:
    """1 / (1 + exp(-x)), computed by tanh to avoid overflow."""
    return 0.5 * (1 + np.tanh(0.5 * x))


def softplus(x: Array) -> Array:
    """log(1 + exp(x)) without overflow."""
    return np.logaddexp(x, 0)


def _gelu(node: Node, x: Array) -> Array:
    if APPROXIMATE(node) == "tanh":
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def _elu(node: Node, x: Array) -> Array:
    return np.where(x > 0, x, ELU_ALPHA(node) * np.expm1(np.minimum(x, 0)))


def _hard_sigmoid(node: Node, x: Array) -> Array:
    return np.clip(HARD_ALPHA(node) * x + HARD_BETA(node), 0, 1)


def _clip_onnx(node: Node, emit: OnnxEmitter) -> None:
    emit.clip(node, node.inputs[0])


def _swish_onnx(node: Node, emit: OnnxEmitter) -> None:
    x, alpha = node.inputs[0], SWISH_ALPHA(node)
    inner = x if alpha == 1 else emit.step("Mul", x, emit.constant(np.float32(alpha), "alpha"))
    emit.node("Mul", [x, emit.step("Sigmoid", inner)], node.outputs)


def _mish_onnx(node: Node, emit: OnnxEmitter) -> None:
    gate = emit.step("Tanh", emit.step("Softplus", node.inputs[0]))
    emit.node("Mul", [node.inputs[0], gate], node.outputs)


def _gelu_onnx(node: Node, emit: OnnxEmitter) -> None:
    """0.5 x (1 + erf(x / sqrt 2)), or 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))."""
    x = node.inputs[0]

    def step(op: str, *inputs: str | float) -> str:
        return emit.step(
            op, *(each if isinstance(each, str) else emit.constant(np.float32(each)) for each in inputs)
        )

    if APPROXIMATE(node) == "tanh":
        cubic = step("Mul", step("Mul", step("Mul", x, x), x), 0.044715)
        gate = step("Tanh", step("Mul", step("Add", x, cubic), math.sqrt(2 / math.pi)))
    else:
        gate = step("Erf", step("Mul", x, math.sqrt(0.5)))
    emit.node("Mul", [step("Mul", x, 0.5), step("Add", gate, 1.0)], node.outputs)


def _unary(
    name: str,
    summary: str,
    function: Callable[[Node, Array], Array],
    *attributes: Attribute[Any],
    dtypes: tuple[str, ...] = FLOAT,
    to_onnx: Exporter | None = None,
) -> Op:
    """A unary elementwise operator that keeps the element type."""

    def compute(node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (np.asarray(function(node, inputs[0]), inputs[0].dtype if dtypes is not FLOAT else np.float32),)

    x, y = Parameter("x", dtypes, "*X"), Parameter("y", dtypes, "*X", "x")
    return Op(name, summary, (x,), (y,), compute, attributes, to_onnx=to_onnx)


def _slope_broadcasts(_node: Node, types: Sequence[TensorType]) -> bool:
    """The slope broadcasts to x."""
    x, slope = (each.shape for each in types)
    return len(slope) <= len(x) and all(n in (1, m) for n, m in zip(reversed(slope), reversed(x), strict=False))


def _prelu(_node: Node, inputs: Sequence[Array]) -> tuple[Array, ...]:
    x, slope = inputs
    return (np.where(x < 0, x * slope, x),)


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
    _unary("Identity", "The input itself.", lambda _, x: x, dtypes=ANY),
    _unary("Relu", "The larger of x and 0.", lambda _, x: np.maximum(x, x.dtype.type(0)), dtypes=NUMBERS),
    _unary("Abs", "The absolute value.", lambda _, x: np.abs(x), dtypes=NUMBERS),
    _unary("Neg", "The negative value.", lambda _, x: np.negative(x), dtypes=NUMBERS),
    _unary("Sigmoid", "1 / (1 + exp(-x)).", lambda _, x: sigmoid(x)),
    _unary("Tanh", "The hyperbolic tangent.", lambda _, x: np.tanh(x)),
    _unary("HardSwish", "x * clip(x / 6 + 0.5, 0, 1).", lambda _, x: x * np.clip(x / 6 + 0.5, 0, 1)),
    _unary("HardSigmoid", "alpha * x + beta, limited to 0..1.", _hard_sigmoid, HARD_ALPHA, HARD_BETA),
    _unary(
        "Swish",
        "x * sigmoid(alpha * x).",
        lambda node, x: x * sigmoid(SWISH_ALPHA(node) * x),
        SWISH_ALPHA,
        to_onnx=_swish_onnx,
    ),
    _unary("Mish", "x * tanh(softplus(x)).", lambda _, x: x * np.tanh(softplus(x)), to_onnx=_mish_onnx),
    _unary("Softplus", "log(1 + exp(x)).", lambda _, x: softplus(x)),
    _unary("Softsign", "x / (1 + |x|).", lambda _, x: x / (1 + np.abs(x))),
    _unary("Elu", "x if positive, otherwise alpha * (exp(x) - 1).", _elu, ELU_ALPHA),
    _unary(
        "Gelu",
        "x times the normal distribution function of x, exactly or by tanh.",
        _gelu,
        APPROXIMATE,
        to_onnx=_gelu_onnx,
    ),
    _unary("Clip", "x limited to min..max, both constant.", clip, MIN, MAX, to_onnx=_clip_onnx),
    _unary(
        "LeakyRelu",
        "x if positive, otherwise alpha * x.",
        lambda node, x: np.where(x < 0, LEAKY_ALPHA(node) * x, x),
        LEAKY_ALPHA,
    ),
    _unary("Exp", "The exponential function.", lambda _, x: np.exp(x)),
    _unary("Log", "The natural logarithm.", lambda _, x: np.log(x)),
    _unary("Erf", "The error function.", lambda _, x: erf(x)),
    _unary("Sqrt", "The square root.", lambda _, x: np.sqrt(x)),
    _unary("Reciprocal", "1 / x.", lambda _, x: np.reciprocal(x)),
    _unary("Floor", "The largest integer that is not larger.", lambda _, x: np.floor(x)),
    _unary("Ceil", "The smallest integer that is not smaller.", lambda _, x: np.ceil(x)),
    _unary("Round", "The nearest integer, ties to the even one.", lambda _, x: np.rint(x)),
    Op(
        "PRelu",
        "x if positive, otherwise slope * x, the slope broadcast to x.",
        (Parameter("x", shape="*X"), Parameter("slope")),
        (Parameter("y", shape="*X"),),
        _prelu,
        requires=(_slope_broadcasts,),
    ),
    _binary("Add", "The sum.", np.add),
    _binary("Sub", "The difference.", np.subtract),
    _binary("Mul", "The product.", np.multiply),
    _binary("Div", "The quotient.", _divide),
    _binary("Max", "The larger element.", np.maximum),
    _binary("Min", "The smaller element.", np.minimum),
    _binary("Pow", "The first to the power of the second.", np.power),
)
