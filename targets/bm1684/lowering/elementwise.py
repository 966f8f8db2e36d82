"""Elementwise functions as calls; functions that the interface lacks are composed.

Operands have the shape of the result, or extent 1 along N, H or W (a stride of 0); along C every NPU needs its
own copy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import frexp, inf

from npuc.frozen import frozen
from npuc.ir import Node
from npuc.ops.attributes import ACTIVATION, MAX, MIN
from npuc.targets.bm1684.lowering.context import Lowering
from npuc.targets.bm1684.lowering.kernel import Call, call
from npuc.targets.bm1684.lowering.tensors import Tensor, local_shape
from npuc.targets.bm1684.machine.local_memory import Dim4

BINARY = {"Add": "add", "Sub": "sub", "Mul": "mul", "Div": "div", "Max": "max", "Min": "min"}


def activation_calls(node: Node, on: Tensor) -> tuple[Call, ...]:
    """The calls of a fused Relu or Clip, in place."""
    match ACTIVATION(node):
        case "Relu":
            return (_relu(on),)
        case "Clip":
            return tuple(_clip(on, MIN(node), MAX(node)))
        case _:
            return ()


def _relu(on: Tensor) -> Call:
    return call("bdc_relu", on.at, on.at, on.shape, None, None)


def _clip(on: Tensor, low: float, high: float) -> list[Call]:
    calls: list[Call] = []
    if low == 0:
        calls.append(_relu(on))
    elif low > -inf:
        calls.append(call("bdc_max_C", on.at, on.at, float(low), on.shape, None, None))
    if high < inf:
        calls.append(call("bdc_min_C", on.at, on.at, float(high), on.shape, None, None))
    return calls


def binary(lo: Lowering, node: Node) -> None:
    """Add, Sub, Mul, Div, Max and Min; with a constant scalar, by the calls for scalars."""
    number = _number(lo, node)
    if number is not None:
        one_operand(lo, node, _scalar_form(node.op, *number))
        return
    left, right = _operands(lo, node)
    like = left if left.shape == local_shape(lo.graph.shape(node.output), left.shape.w) else right
    out = _result(lo, node, like, right if like is left else left)
    strides = (None, _broadcast_strides(lo, left, out), _broadcast_strides(lo, right, out))
    made = call(f"bdc_{BINARY[node.op]}", out.at, left.at, right.at, out.shape, *strides)
    lo.emit(made, *activation_calls(node, out))
    lo.define(node.output, out)


def _number(lo: Lowering, node: Node) -> tuple[int, float] | None:
    """The index and value of an operand that is a constant with one value everywhere; None if neither is."""
    for index, name in enumerate(node.inputs[:2]):
        value = lo.graph.constant(name)
        other = lo.graph.shape(node.inputs[1 - index])
        if (
            value is not None
            and value.size
            and (value == value.flat[0]).all()
            and other == lo.graph.shape(node.output)
        ):
            return index, float(value.flat[0])
    return None


def _scalar_form(op: str, index: int, value: float) -> Recipe:
    """The recipe of an operation with a scalar. index: which operand the scalar is."""
    match op, index:
        case "Sub", 0:
            return lambda f: f.append("C_sub", value)
        case "Div", 0:
            return lambda f: f.append("C_div", value)
        case "Div", 1:
            return lambda f: f.append("mul_C", 1.0 / value) if _power_of_two(value) else f.append("div_C", value)
        case _:
            return lambda f: f.append(f"{BINARY[op]}_C", value)


def _power_of_two(value: float) -> bool:
    """Whether division by the value equals multiplication by its reciprocal, bit for bit."""
    mantissa, exponent = frexp(value)
    return abs(mantissa) == 0.5 and -120 < exponent < 120


def _operands(lo: Lowering, node: Node) -> tuple[Tensor, Tensor]:
    """Both operands in local memory, starting at the same NPU, broadcast along C where needed."""
    names, result = node.inputs[:2], lo.graph.shape(node.output)
    whole = [name for name in names if lo.graph.shape(name) == result]
    if not whole:
        return _load_broadcast(lo, names[0], result), _load_broadcast(lo, names[1], result)
    first = next((name for name in whole if lo.is_local(name)), whole[0])
    base = lo.load(first)
    width = base.shape.w if len(result) < 3 else None
    found = [base if name == first else _load_beside(lo, name, base, result, width) for name in names]
    return found[0], found[1]


def _load_beside(lo: Lowering, name: str, base: Tensor, result: Sequence[int], width: int | None) -> Tensor:
    shape = lo.graph.shape(name)
    if tuple(shape) == tuple(result):
        return lo.load(name, width, base.at.npu)
    aligned = (1,) * (len(result) - len(shape)) + tuple(shape)
    inner = local_shape(aligned)
    fits = len(result) > 2 and inner.c == base.shape.c
    fits = (
        fits
        and all(a in (1, b) for a, b in zip(inner, base.shape, strict=True))
        and lo.graph.constant(name) is None
    )
    if fits and len(shape) == len(result):
        return lo.load(name, None, base.at.npu)
    return _load_broadcast(lo, name, result, base)


def _load_broadcast(lo: Lowering, name: str, result: Sequence[int], base: Tensor | None = None) -> Tensor:
    """An operand broadcast to the result's shape as it is loaded from system memory."""
    view = lo.view(name).broadcast(result)
    if base is None:
        return lo.fetch(f"{name}/repeated", view, local_shape(result))
    return lo.fetch(f"{name}/repeated", view, base.shape, base.at.npu)


def _broadcast_strides(lo: Lowering, tensor: Tensor, out: Tensor) -> Dim4 | None:
    """Strides of a broadcast operand, 0 along broadcast axes; None if it has the result's shape."""
    if tensor.shape == out.shape:
        return None
    pairs = zip(tensor.stride(lo.machine), tensor.shape, out.shape, strict=True)
    return Dim4(*(0 if have == 1 and want > 1 else step for step, have, want in pairs))


def _result(lo: Lowering, node: Node, like: Tensor, other: Tensor | None = None) -> Tensor:
    """The tensor for the result: an operand that nothing else reads, or a new one like it.

    Not in place if the other operand may partly overlap the overwritten one.
    """
    apart = other is None or other == like or other.at.buffer != like.at.buffer
    if apart and lo.home(node.output) is None and lo.may_overwrite(like):
        return like
    return lo.output(node.output, like.shape, like.at.npu)


@frozen
class ComposedFunction:
    """A composed function under construction: operand x, result y, temporaries of the same shape, calls."""

    lo: Lowering
    x: Tensor
    y: Tensor
    calls: list[Call]

    def temporary(self) -> Tensor:
        """A new tensor of the operand's shape."""
        return self.lo.new_tensor(f"{self.lo.node.output}/temporary", self.x.shape, self.x.at.npu)

    def append(self, name: str, *values: float, out: Tensor | None = None, of: Tensor | None = None) -> Tensor:
        """Appends out = name(of, *values); `of` defaults to x, `out` to y."""
        to, x = out or self.y, of or self.x
        self.calls.append(call(f"bdc_{name}", to.at, x.at, *map(float, values), x.shape, None, None))
        return to

    def append_binary(self, name: str, a: Tensor, b: Tensor, out: Tensor | None = None) -> Tensor:
        """Appends out = name(a, b); `out` defaults to y."""
        to = out or self.y
        self.calls.append(call(f"bdc_{name}", to.at, a.at, b.at, to.shape, None, None, None))
        return to

    def series(
        self, name: str, limits: tuple[float, float | None], out: Tensor | None = None, of: Tensor | None = None
    ) -> Tensor:
        """Appends exp, sigmoid or tanh of an operand clipped to limits; needs a work tensor and a new result."""
        to, x, work, (low, high) = out or self.y, of or self.x, self.temporary(), limits
        limited = self.append("max_C", low, out=self.temporary(), of=x)
        if high is not None:
            self.append("min_C", high, out=limited, of=limited)
        self.calls.append(call(f"bdc_{name}_tunable", to.at, limited.at, work.at, x.shape, TERMS))
        return to

    def root(self, name: str, out: Tensor | None = None, of: Tensor | None = None) -> Tensor:
        """Appends sqrt or rsqrt, which do not compute in place."""
        to, x = out or self.y, of or self.x
        self.calls.append(call(f"bdc_{name}", to.at, x.at, x.shape))
        return to


TERMS = 10
"""Terms of the series of exp, sigmoid and tanh: more give the same fp32 values (the interface's default: 32)."""

Recipe = Callable[[ComposedFunction], object]


def unary(recipe: Callable[[Node], Recipe]) -> Callable[[Lowering, Node], None]:
    """The rule of an operator with one operand. recipe: from a node to the function that lists its calls."""
    return lambda lo, node: one_operand(lo, node, recipe(node), fresh=node.op not in IN_PLACE)


IN_PLACE = ("Relu", "Clip", "Neg", "FakeQuantize")
"""Operators all of whose calls may overwrite their operand."""


def one_operand(lo: Lowering, node: Node, recipe: Recipe, *, fresh: bool = False) -> None:
    """Emits a function of a node's one computed operand. fresh: the result must not overwrite the operand."""
    whole = lo.graph.shape(node.output)
    computed = (name for name in node.inputs if name and lo.graph.constant(name) is None)
    x = lo.load(next(name for name in computed if lo.graph.shape(name) == whole))
    y = lo.output(node.output, x.shape, x.at.npu) if fresh else _result(lo, node, x)
    function = ComposedFunction(lo, x, y, [])
    recipe(function)
    lo.emit(*function.calls, *activation_calls(node, y))
    lo.define(node.output, y)
