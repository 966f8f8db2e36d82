"""Matrix products: with a weight they become Gemm, with the weight as (N, K). Einsum of one or two operands."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

import numpy as np

from npuc.frontend.builder import Importer, NodeBuilder, OnnxNode
from npuc.frozen import frozen
from npuc.ops.attributes import AXIS

REMEDY = "write it as matrix products"


@frozen
class _Term:
    """A tensor with a label for each axis."""

    name: str
    labels: str


def _einsum(node: OnnxNode, to: NodeBuilder) -> None:
    """The first operand's own labels become rows, the second's columns, those of both that stay matrices."""
    terms, result = _terms(node, to)
    everywhere = [*(each.labels for each in terms), result]
    terms = [_sum_out(node, to, each, everywhere) for each in terms]
    found = terms[0] if len(terms) == 1 else _combine(node, to, *terms, result)
    to.emit(node, "Transpose", (found.name,), perm=_places(found.labels, result))


def _terms(node: OnnxNode, to: NodeBuilder) -> tuple[list[_Term], str]:
    """The operands and the labels of the result.

    Raises UnsupportedOperator for three operands, an ellipsis, a diagonal, or broadcasting; ModelError for an
    equation that contradicts the operands.
    """
    equation = node.attrs["equation"].replace(" ", "")
    left, arrow, result = equation.partition("->")
    operands = left.split(",")
    every = "".join(operands)
    if not arrow:
        result = "".join(sorted(label for label in set(every) if every.count(label) == 1))
    diagonal = any(len(set(each)) < len(each) for each in operands)
    if "." in equation or diagonal or len(operands) > 2:
        raise node.support_error(
            f"the equation is {equation}", REMEDY, limit="two operands, each label once in each"
        )
    terms = [_Term(name, labels) for name, labels in zip(node.inputs, operands, strict=True)]
    contradicts = any(len(each.labels) != len(to.shape(each.name)) for each in terms)
    if contradicts or len(set(result)) < len(result) or not set(result) <= set(every):
        raise node.bad(f"the equation {equation} for the shapes {[list(to.shape(each.name)) for each in terms]}")
    extents = {pair for each in terms for pair in zip(each.labels, to.shape(each.name), strict=True)}
    if len(extents) > len(set(every)):
        raise node.support_error("an axis has different extents in the operands", REMEDY, limit="equal extents")
    return terms, result


def _sum_out(node: OnnxNode, to: NodeBuilder, term: _Term, everywhere: Iterable[str]) -> _Term:
    """The operand, summed over the axes that only it has."""
    alone = [label for label in term.labels if sum(label in each for each in everywhere) == 1]
    if not alone:
        return term
    axes = _places(term.labels, alone)
    name = to.emit(node, "ReduceSum", (term.name,), (), axes=axes, keepdims=0)
    return _Term(name, "".join(label for label in term.labels if label not in alone))


def _combine(node: OnnxNode, to: NodeBuilder, x: _Term, y: _Term, result: str) -> _Term:
    if x.name in to.constants:
        x, y = y, x
    shared = [label for label in x.labels if label in y.labels]
    batch = "".join(label for label in shared if label in result)
    summed = "".join(label for label in shared if label not in result)
    rows, columns = ("".join(label for label in each.labels if label not in shared) for each in (x, y))
    if not summed:
        return _multiply(
            node, to, _order_axes(node, to, x, batch + rows), _order_axes(node, to, y, batch + columns)
        )
    x, y = _order_axes(node, to, x, batch + rows + summed), _order_axes(node, to, y, batch + summed + columns)
    sizes = dict(zip(x.labels + y.labels, to.shape(x.name) + to.shape(y.name), strict=True))
    shapes = [tuple(sizes[label] for label in each) for each in (batch, rows, summed, columns)]
    stack, height, inner, width = shapes
    # without a batch the rows may stay apart: a matrix of weights is the same for all of them
    lines = (prod(height),) if batch or not rows else height
    a = to.emit(node, "Reshape", (x.name,), (), shape=(*stack, *lines, prod(inner)))
    b = to.emit(node, "Reshape", (y.name,), (), shape=(*stack, prod(inner), prod(width)))
    product = to.emit(node, "MatMul", (a, b), ())
    whole = to.emit(node, "Reshape", (product,), (), shape=(*stack, *height, *width))
    return _Term(whole, batch + rows + columns)


def _multiply(node: OnnxNode, to: NodeBuilder, x: _Term, y: _Term) -> _Term:
    """The elementwise product, without sums: each operand has an axis of 1 for the other's own labels."""
    own = [label for label in y.labels if label not in x.labels]
    labels = x.labels + "".join(own)
    spread: list[str] = []
    for each in (x, y):
        sizes = dict(zip(each.labels, to.shape(each.name), strict=True))
        shape = tuple(sizes.get(label, 1) for label in labels)
        spread.append(to.emit(node, "Reshape", (each.name,), (), shape=shape))
    return _Term(to.emit(node, "Mul", tuple(spread), ()), labels)


def _order_axes(node: OnnxNode, to: NodeBuilder, term: _Term, labels: str) -> _Term:
    """The operand with its axes in this order."""
    name = to.emit(node, "Transpose", (term.name,), (), perm=_places(term.labels, labels))
    return replace(term, name=name, labels=labels)


def _places(labels: str, wanted: Iterable[str]) -> tuple[int, ...]:
    return tuple(labels.index(label) for label in wanted)


def _is_weight(to: NodeBuilder, name: str) -> bool:
    """Whether the tensor is a constant matrix, or the DequantizeLinear of one."""
    producer = to.producers.get(name)
    dequantised = producer is not None and producer.op == "DequantizeLinear"
    held = dequantised and producer is not None and all(each in to.constants for each in producer.inputs)
    return len(to.shape(name)) == 2 and (name in to.constants or held)


def _transpose_weight(node: OnnxNode, to: NodeBuilder, name: str) -> str:
    """The transposed weight: a new constant, or a new DequantizeLinear of one."""
    if name in to.constants:
        return to.constant(node, "weight", np.ascontiguousarray(to.constants[name].T))
    dequantize = to.producers[name]
    x, *scales = dequantize.inputs
    turned = to.constant(node, "weight", np.ascontiguousarray(to.constants[x].T))
    return to.emit(node, "DequantizeLinear", (turned, *scales), (), axis=1 - AXIS(dequantize))


def _matmul(node: OnnxNode, to: NodeBuilder) -> None:
    """A vector operand becomes a matrix of one row or column, which is removed again from the result."""
    shapes = [to.shape(name) for name in node.inputs]
    vectors = [place for place, shape in enumerate(shapes) if len(shape) == 1]
    if not vectors or not min(map(len, shapes)):
        _product(node, to, node.inputs[0], node.inputs[1])
        return
    matrices = list(node.inputs)
    for place in vectors:
        shape = (1, *shapes[place]) if place == 0 else (*shapes[place], 1)
        matrices[place] = to.emit(node, "Reshape", (matrices[place],), (), shape=shape)
    product = _product(node, to, matrices[0], matrices[1], ())
    shape = np.delete(to.shape(product), [place - 2 for place in vectors])
    to.emit(node, "Reshape", (product,), shape=tuple(map(int, shape)))


def _product(node: OnnxNode, to: NodeBuilder, x: str, w: str, outputs: tuple[str, ...] | None = None) -> str:
    if len(to.shape(x)) == 2 and x not in to.constants and _is_weight(to, w):
        return to.emit(node, "Gemm", (x, _transpose_weight(node, to, w)), outputs)
    return to.emit(node, "MatMul", (x, w), outputs)


def _gemm(node: OnnxNode, to: NodeBuilder) -> None:
    """alpha * A * B + beta * C, each factor transposed if the attributes say so."""
    a, b = node.inputs[:2]
    if len(to.shape(a)) != 2 or len(to.shape(b)) != 2:
        reason = f"the factors have shapes {list(to.shape(a))} and {list(to.shape(b))}"
        raise node.bad(reason, limit="two dimensions each")
    if node.attrs["transA"]:
        a = to.emit(node, "Transpose", (a,), (), perm=(1, 0))
    scaled = b in to.constants or node.attrs["alpha"] == 1
    if a not in to.constants and _is_weight(to, b) and scaled:
        _gemm_of_weight(node, to, a, b)
    else:
        _gemm_of_products(node, to, a, b)


def _gemm_of_weight(node: OnnxNode, to: NodeBuilder, a: str, b: str) -> None:
    weight = b if node.attrs["transB"] else _transpose_weight(node, to, b)
    if node.attrs["alpha"] != 1:
        value = to.constants[weight] * np.float32(node.attrs["alpha"])
        weight = to.constant(node, "weight", value)
    columns = to.shape(weight)[0]
    if not node.has_input(2) or node.attrs["beta"] == 0:
        to.emit(node, "Gemm", (a, weight))
        return
    bias = _bias(node, to, columns)
    if bias:
        to.emit(node, "Gemm", (a, weight, bias))
    else:
        _add_bias(node, to, to.emit(node, "Gemm", (a, weight), ()))


def _bias(node: OnnxNode, to: NodeBuilder, columns: int) -> str:
    """C as a vector with one element per column; "" if it differs from row to row or is computed."""
    name, beta = node.inputs[2], node.attrs["beta"]
    shape = to.shape(name)
    if shape == (columns,) and beta == 1:
        return name
    if name not in to.constants or shape not in ((), (1,), (columns,), (1, 1), (1, columns)):
        return ""
    value = to.constants[name].reshape(-1) * np.float32(beta)
    return to.constant(node, "bias", np.broadcast_to(value, (columns,)).copy())


def _add_bias(node: OnnxNode, to: NodeBuilder, product: str) -> None:
    bias = node.inputs[2]
    if node.attrs["beta"] != 1:
        beta = to.constant(node, "beta", np.float32(node.attrs["beta"]))
        bias = to.emit(node, "Mul", (bias, beta), ())
    shape = to.shape(product)
    to.emit(node, "Add", (product, bias))
    if to.shape(node.outputs[0]) != shape:
        raise node.bad(f"C of shape {list(to.shape(bias))} does not broadcast to {list(shape)}")


def _gemm_of_products(node: OnnxNode, to: NodeBuilder, a: str, b: str) -> None:
    if node.attrs["transB"]:
        b = to.emit(node, "Transpose", (b,), (), perm=(1, 0))
    biased = node.has_input(2) and node.attrs["beta"] != 0
    scaled = node.attrs["alpha"] != 1
    product = to.emit(node, "MatMul", (a, b), () if scaled or biased else None)
    if scaled:
        alpha = to.constant(node, "alpha", np.float32(node.attrs["alpha"]))
        product = to.emit(node, "Mul", (product, alpha), () if biased else None)
    if biased:
        _add_bias(node, to, product)


IMPORTERS: dict[str, Importer] = {"Einsum": _einsum, "Gemm": _gemm, "MatMul": _matmul}
