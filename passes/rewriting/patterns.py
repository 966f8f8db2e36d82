"""Building blocks of patterns: constants, and sums and products of one tensor with numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Node
from npuc.ops.attributes import ACTIVATION, STEPS_AXIS
from npuc.ops.windows import Window, window_of
from npuc.passes.rewriting.rules import Rewriter

DEGREE = 3
"""The highest power that `polynomial` follows: Gelu's cube."""

Polynomial = dict[int, float]
"""Power -> coefficient."""


def scalar(rewriter: Rewriter, tensor: str) -> float | None:
    """The value of a float constant of one element."""
    value = rewriter.constants.get(tensor)
    if value is None or value.size != 1 or value.dtype.kind != "f":
        return None
    return float(value.reshape(())[()])


def constant_operand(rewriter: Rewriter, node: Node) -> tuple[str, str] | None:
    """For a binary node with one constant operand: the other operand, and the constant's name."""
    x, y = node.inputs
    if (x in rewriter.constants) == (y in rewriter.constants):
        return None
    return (y, x) if x in rewriter.constants else (x, y)


def along_axis(value: Array, shape: tuple[int, ...], axis: int) -> Array | None:
    """A constant as a vector along one axis of a tensor with this shape; None if it varies along others.

    A scalar counts as a vector of equal elements.
    """
    if value.ndim > len(shape):
        return None
    aligned = (1,) * (len(shape) - value.ndim) + value.shape
    if any(extent != 1 for at, extent in enumerate(aligned) if at != axis):
        return None
    if aligned[axis] not in (1, shape[axis]):
        return None
    return np.array(np.broadcast_to(value.reshape(-1), (shape[axis],)))


def stored_weight(rewriter: Rewriter, tensor: str) -> Array | None:
    """The elements of a weight as stored: a constant, or the constant behind a DequantizeLinear."""
    node = rewriter.producer(tensor)
    if node is not None and node.op == "DequantizeLinear":
        constant = all(name in rewriter.constants for name in filter(None, node.inputs))
        return rewriter.constants[node.inputs[0]] if constant else None
    return rewriter.constants.get(tensor)


def restored_weight(
    rewriter: Rewriter, tensor: str, stored: Array, stem: str, axis: int
) -> tuple[str, list[Node]]:
    """A weight like this one with other stored elements: its name, and the nodes that compute it.

    axis: the new position of the quantisation's axis, if the weight has one.
    """
    node = rewriter.producer(tensor)
    if node is None:
        return rewriter.constant(stored, stem), []
    name = rewriter.fresh(stem)
    inputs = (rewriter.constant(stored, f"{stem}/stored"), *node.inputs[1:])
    return name, [replace(node.with_attrs(axis=axis), inputs=inputs, outputs=(name,), name=name)]


def quantisation_axis(rewriter: Rewriter, tensor: str) -> int:
    """The axis along which a weight's scales vary; 0 if there is none."""
    node = rewriter.producer(tensor)
    return STEPS_AXIS(node) if node is not None else 0


def only_float(rewriter: Rewriter, *tensors: str) -> bool:
    """Whether all of these are float32."""
    return all(rewriter.types[name].dtype == "float32" for name in tensors)


def conv_window(rewriter: Rewriter, node: Node) -> Window | None:
    """The window of a 2-D convolution of floats; None for any other node."""
    if node.op != "Conv" or len(rewriter.shape(node.inputs[0])) != 4 or not only_float(rewriter, *node.inputs[:2]):
        return None
    return window_of(node, rewriter.shape(node.inputs[1])[2:])


@frozen
class Affine:
    """scale * tensor + offset."""

    tensor: str
    scale: float
    offset: float


def affine(rewriter: Rewriter, tensor: str) -> Affine:
    """The tensor as an affine function of the most distant tensor connected by such functions only.

    Every intermediate result has one reader.
    """
    scale, offset = 1.0, 0.0
    while True:
        step = _affine_step(rewriter, tensor)
        if step is None:
            return Affine(tensor, scale, offset)
        offset += scale * step.offset
        scale *= step.scale
        tensor = step.tensor
        if rewriter.only_reader(tensor) is None:
            return Affine(tensor, scale, offset)


def _affine_step(rewriter: Rewriter, tensor: str) -> Affine | None:
    node = rewriter.producer(tensor)
    if node is None or node.op not in ("Add", "Sub", "Mul", "Div", "Neg") or ACTIVATION(node):
        return None
    if node.op == "Neg":
        return Affine(node.inputs[0], -1.0, 0.0)
    x, y = node.inputs
    left, right = scalar(rewriter, x), scalar(rewriter, y)
    if right is not None and rewriter.shape(x) == rewriter.shape(tensor):
        if node.op == "Div":
            return Affine(x, 1 / right, 0.0) if right else None
        return Affine(x, right, 0.0) if node.op == "Mul" else Affine(x, 1.0, -right if node.op == "Sub" else right)
    if left is not None and node.op != "Div" and rewriter.shape(y) == rewriter.shape(tensor):
        return Affine(y, left, 0.0) if node.op == "Mul" else Affine(y, -1.0 if node.op == "Sub" else 1.0, left)
    return None


def polynomial(rewriter: Rewriter, tensor: str, x: str, depth: int = 8) -> Polynomial | None:
    """The tensor as a polynomial in x up to `DEGREE`; every intermediate result has one reader."""
    if tensor == x:
        return {1: 1.0}
    number = scalar(rewriter, tensor)
    if number is not None:
        return {0: number}
    node = rewriter.private(tensor)
    if node is None or depth == 0 or ACTIVATION(node):
        return None
    return _polynomial_of(rewriter, node, lambda each: polynomial(rewriter, each, x, depth - 1))


def _polynomial_of(rewriter: Rewriter, node: Node, inner: Callable[[str], Polynomial | None]) -> Polynomial | None:
    if node.op not in ("Add", "Sub", "Mul", "Div", "Neg", "Pow"):
        return None
    first = inner(node.inputs[0])
    if first is None:
        return None
    if node.op == "Neg":
        return {power: -c for power, c in first.items()}
    if node.op in ("Div", "Pow"):
        return _with_number(node.op, first, rewriter.constants.get(node.inputs[1]))
    second = inner(node.inputs[1])
    if second is None or node.op == "Mul":
        return _product(first, second)
    sign = 1 if node.op == "Add" else -1
    return {p: first.get(p, 0.0) + sign * second.get(p, 0.0) for p in {*first, *second}}


def _with_number(op: str, first: Polynomial, second: Array | None) -> Polynomial | None:
    """A quotient by a number, or a square or cube (whose exponent may be an integer)."""
    number = float(second.reshape(-1)[0]) if second is not None and second.size == 1 else 0.0
    if op == "Div":
        return {power: c / number for power, c in first.items()} if number else None
    square = _product(first, first)
    return square if number == 2 else _product(first, square) if number == 3 else None


def _product(first: Polynomial, second: Polynomial | None) -> Polynomial | None:
    if second is None or max(first) + max(second) > DEGREE:
        return None
    result: Polynomial = {}
    for p, c in first.items():
        for q, d in second.items():
            result[p + q] = result.get(p + q, 0.0) + c * d
    return result


def factors(rewriter: Rewriter, tensor: str) -> tuple[float, list[str]]:
    """The tensor as a number times a product of tensors of its shape; inner results have one reader."""
    node = rewriter.producer(tensor)
    whole = rewriter.shape(tensor)
    if node is None or node.op not in ("Mul", "Div"):
        return 1.0, [tensor]
    numbers = [scalar(rewriter, name) for name in node.inputs]
    if node.op == "Div" and not numbers[1]:
        return 1.0, [tensor]
    scale, found = 1.0, list[str]()
    for name, number in zip(node.inputs, numbers, strict=True):
        if number is not None:
            scale *= number if node.op == "Mul" else 1 / number
        elif rewriter.only_reader(name) and rewriter.shape(name) == whole:
            more, inner = factors(rewriter, name)
            scale *= more
            found.extend(inner)
        else:
            found.append(name)
    return scale, found
