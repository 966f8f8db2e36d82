"""Composed functions of one operand: each is a recipe, which lists calls on whole tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import inf, pi, sqrt

import numpy as np

from npuc.ir import Node
from npuc.ops import has_input
from npuc.ops.attributes import (
    APPROXIMATE,
    DTYPE,
    ELU_ALPHA,
    HARD_ALPHA,
    HARD_BETA,
    LEAKY_ALPHA,
    MAX,
    MIN,
    SCALE,
    SWISH_ALPHA,
    ZERO_POINT,
)
from npuc.targets.bm1684.lowering.context import Lowering
from npuc.targets.bm1684.lowering.elementwise import ComposedFunction, Recipe, one_operand

LARGEST_EXPONENT = 40.0
"""For larger x, tanh(softplus(x)) is 1 in fp32; exp(x)^2 is still finite here."""

EXP, SIGMOID, TANH, BELOW = (-80.0, 87.0), (-40.0, 40.0), (-20.0, 20.0), (-80.0, None)
"""The ranges in which the interface's series are valid (on the vendor's model exp(-200) is inf)."""


def _clip(node: Node) -> Recipe:
    low, high = MIN(node), MAX(node)

    def recipe(f: ComposedFunction) -> None:
        _clip_between(f, low, high)

    return recipe


def _clip_between(f: ComposedFunction, low: float, high: float) -> None:
    """y = the operand clipped to limits."""
    done = None
    if low == 0:
        done = f.append("relu")
    elif low > -inf:
        done = f.append("max_C", low)
    if high < inf:
        done = f.append("min_C", high, of=done)
    if done is None:
        f.append("mul_C", 1.0)


def _hard_sigmoid(node: Node) -> Recipe:
    def recipe(f: ComposedFunction) -> None:
        _ramp(f, HARD_ALPHA(node), HARD_BETA(node))

    return recipe


def _ramp(f: ComposedFunction, alpha: float, beta: float) -> None:
    """y = alpha * x + beta, clipped to 0..1."""
    f.append("mul_C", alpha)
    f.append("add_C", beta, of=f.y)
    f.append("relu", of=f.y)
    f.append("min_C", 1.0, of=f.y)


def _hard_swish(f: ComposedFunction) -> None:
    _ramp(f, 1 / 6, 0.5)
    f.append_binary("mul", f.x, f.y)


def _swish(node: Node) -> Recipe:
    alpha = SWISH_ALPHA(node)

    def recipe(f: ComposedFunction) -> None:
        inner = f.x if alpha == 1 else f.append("mul_C", alpha, out=f.temporary())
        f.series("sigmoid", SIGMOID, of=inner)
        f.append_binary("mul", f.x, f.y)

    return recipe


def _leaky(node: Node) -> Recipe:
    """The larger of x and alpha * x if alpha is at most 1, else the smaller."""
    alpha = LEAKY_ALPHA(node)

    def recipe(f: ComposedFunction) -> None:
        f.append("mul_C", alpha)
        f.append_binary("max" if alpha <= 1 else "min", f.x, f.y)

    return recipe


def _elu(node: Node) -> Recipe:
    """relu(x) + alpha * (exp(min(x, 0)) - 1)."""

    def recipe(f: ComposedFunction) -> None:
        below = f.append("min_C", 0.0, out=f.temporary())
        f.series("exp", BELOW, of=below)
        f.append("add_C", -1.0, of=f.y)
        f.append("mul_C", ELU_ALPHA(node), of=f.y)
        f.append("relu", out=below)
        f.append_binary("add", f.y, below)

    return recipe


def _mish(f: ComposedFunction) -> None:
    """x * tanh(log(1 + e)) = x * e (e + 2) / (e (e + 2) + 2) with e = exp(x)."""
    below = f.append("min_C", LARGEST_EXPONENT, out=f.temporary())
    e = f.series("exp", BELOW, out=f.temporary(), of=below)
    f.append("add_C", 2.0, of=e)
    product = f.append_binary("mul", e, f.y, out=e)
    f.append("add_C", 2.0, of=product)
    f.append_binary("div", product, f.y)
    f.append_binary("mul", f.x, f.y)


ERF_P = 0.3275911
ERF = (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592)
"""erf(x) = 1 - (a1 t + .. + a5 t^5) exp(-x^2), t = 1 / (1 + p x), x >= 0: Abramowitz and Stegun 7.1.26, 1.5e-7."""


def _erf(f: ComposedFunction) -> None:
    _erf_of(f, 1.0)


def _erf_of(f: ComposedFunction, scale: float) -> None:
    """y = erf(scale * x): the series on |x|, then the sign, as x / |x|."""
    size = f.temporary()
    f.append("mul_C", -1.0, out=size)
    f.append_binary("max", f.x, size, out=size)
    f.append("mul_C", scale, out=size, of=size)
    t = f.append("mul_C", ERF_P, out=f.temporary(), of=size)
    f.append("add_C", 1.0, out=t, of=t)
    f.append("C_div", 1.0, out=t, of=t)
    total = f.append("mul_C", ERF[0], of=t)
    for term in ERF[1:]:
        f.append("add_C", term, out=total, of=total)
        f.append_binary("mul", total, t, out=total)
    square = f.append_binary("mul", size, size, out=f.temporary())
    f.append("mul_C", -1.0, out=square, of=square)
    bell = f.series("exp", BELOW, out=t, of=square)
    f.append_binary("mul", total, bell, out=total)
    f.append("C_sub", 1.0, out=total, of=total)
    f.append("max_C", 1e-30, out=size, of=size)
    sign = f.append("mul_C", scale, out=square)
    f.append_binary("div", sign, size, out=sign)
    f.append_binary("mul", total, sign, out=total)


def _gelu(node: Node) -> Recipe:
    tanh = APPROXIMATE(node) == "tanh"

    def recipe(f: ComposedFunction) -> None:
        if tanh:
            inner = f.append_binary("mul", f.x, f.x, out=f.temporary())
            f.append("mul_C", 0.044715, out=inner, of=inner)
            f.append("add_C", 1.0, out=inner, of=inner)
            f.append_binary("mul", f.x, inner, out=inner)
            f.append("mul_C", sqrt(2 / pi), out=inner, of=inner)
            f.series("tanh", TANH, of=inner)
        else:
            _erf_of(f, sqrt(0.5))
        f.append("add_C", 1.0, of=f.y)
        f.append_binary("mul", f.x, f.y)
        f.append("mul_C", 0.5, of=f.y)

    return recipe


def _abs(f: ComposedFunction) -> None:
    f.append("neg")
    f.append_binary("max", f.x, f.y)


def _softsign(f: ComposedFunction) -> None:
    _abs(f)
    f.append("add_C", 1.0, of=f.y)
    f.append_binary("div", f.x, f.y)


def _always(step: Callable[[ComposedFunction], object]) -> Callable[[Node], Recipe]:
    return lambda _node: step


ROUNDING = 1.5 * 2**23
"""Adding and subtracting this rounds a smaller fp32 number to the nearest integer, ties to even."""


def _fake_quantize(node: Node) -> Recipe:
    """The operand quantised and dequantised."""
    scale, zero, dtype = SCALE(node), ZERO_POINT(node), DTYPE(node)

    def recipe(f: ComposedFunction) -> None:
        _steps(f, scale, zero, dtype)
        f.append("mul_C", scale, of=f.y)

    return recipe


def _steps(f: ComposedFunction, scale: float, zero: int, dtype: str) -> None:
    """y = the operand divided by the scale, clipped to the integer type's limits minus the zero point, rounded."""
    limits = np.iinfo(dtype)
    f.append("div_C", scale)
    f.append("max_C", float(limits.min - zero), of=f.y)
    f.append("min_C", float(limits.max - zero), of=f.y)
    f.append("add_C", ROUNDING, of=f.y)
    f.append("sub_C", ROUNDING, of=f.y)


POWERS = (-2.0, -1.0, -0.5, 0.5, 1.0, 2.0, 3.0, 4.0)
"""Exponents that are composed of products, square roots and reciprocals."""


def power(lo: Lowering, node: Node) -> None:
    """Pow with a constant exponent of POWERS."""
    exponent = float(lo.graph.constants[node.inputs[1]].flat[0])

    def recipe(f: ComposedFunction) -> None:
        if abs(exponent) == 0.5:
            f.root("sqrt")
        elif abs(exponent) == 1.0:
            f.append("mul_C", 1.0)
        else:
            f.append_binary("mul", f.x, f.x)
        if exponent > 2:
            f.append_binary("mul", f.y, f.x if exponent == 3.0 else f.y)
        if exponent < 0:
            f.append("C_div", 1.0, of=f.y)

    one_operand(lo, node, recipe, fresh=True)


def quantize_linear(lo: Lowering, node: Node) -> None:
    """QuantizeLinear: the integers, stored as fp32 numbers."""
    scale, zero, dtype = _quantisation(lo, node, lo.graph.tensors[node.output].dtype)

    def recipe(f: ComposedFunction) -> None:
        _steps(f, scale, zero, dtype)
        f.append("add_C", float(zero), of=f.y)

    one_operand(lo, node, recipe)


def dequantize_linear(lo: Lowering, node: Node) -> None:
    """DequantizeLinear of integers stored as fp32 numbers."""
    scale, zero, _ = _quantisation(lo, node, lo.graph.tensors[node.inputs[0]].dtype)

    def recipe(f: ComposedFunction) -> None:
        f.append("sub_C", float(zero))
        f.append("mul_C", scale, of=f.y)

    one_operand(lo, node, recipe)


def _quantisation(lo: Lowering, node: Node, dtype: str) -> tuple[float, int, str]:
    scale = lo.graph.constants[node.inputs[1]]
    zero = lo.graph.constants[node.inputs[2]] if has_input(node, 2) else np.zeros(1, dtype)
    return float(scale.flat[0]), int(zero.flat[0]), dtype


RECIPES: Mapping[str, Callable[[Node], Recipe]] = {
    "Relu": _always(lambda f: f.append("relu")),
    "Clip": _clip,
    "LeakyRelu": _leaky,
    "Elu": _elu,
    "HardSigmoid": _hard_sigmoid,
    "HardSwish": _always(_hard_swish),
    "Swish": _swish,
    "Mish": _always(_mish),
    "Gelu": _gelu,
    "Erf": _always(_erf),
    "Softsign": _always(_softsign),
    "Sigmoid": _always(lambda f: f.series("sigmoid", SIGMOID)),
    "Tanh": _always(lambda f: f.series("tanh", TANH)),
    "Exp": _always(lambda f: f.series("exp", EXP)),
    "Sqrt": _always(lambda f: f.root("sqrt")),
    "Reciprocal": _always(lambda f: f.append("C_div", 1.0)),
    "Neg": _always(lambda f: f.append("neg")),
    "Abs": _always(_abs),
    "FakeQuantize": _fake_quantize,
}
"""By operator, the recipe for a node's attributes."""
