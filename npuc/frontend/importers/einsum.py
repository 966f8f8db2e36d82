"""Einsum of one or two operands as reductions, a matrix product and transpositions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import prod

from npuc.frontend.builder import NodeBuilder, OnnxNode
from npuc.frontend.importers.importer import Importer
from npuc.frozen import frozen

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
    terms = [_summed(node, to, each, everywhere) for each in terms]
    found = terms[0] if len(terms) == 1 else _combined(node, to, *terms, result)
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
        raise node.unsupported(
            f"the equation is {equation}", REMEDY, limit="two operands, each label once in each"
        )
    terms = [_Term(name, labels) for name, labels in zip(node.inputs, operands, strict=True)]
    contradicts = any(len(each.labels) != len(to.shape(each.name)) for each in terms)
    if contradicts or len(set(result)) < len(result) or not set(result) <= set(every):
        raise node.bad(f"the equation {equation} for the shapes {[list(to.shape(each.name)) for each in terms]}")
    extents = {pair for each in terms for pair in zip(each.labels, to.shape(each.name), strict=True)}
    if len(extents) > len(set(every)):
        raise node.unsupported("an axis has different extents in the operands", REMEDY, limit="equal extents")
    return terms, result


def _summed(node: OnnxNode, to: NodeBuilder, term: _Term, everywhere: Iterable[str]) -> _Term:
    """The operand, summed over the axes that only it has."""
    alone = [label for label in term.labels if sum(label in each for each in everywhere) == 1]
    if not alone:
        return term
    axes = _places(term.labels, alone)
    name = to.emit(node, "ReduceSum", (term.name,), (), axes=axes, keepdims=0)
    return _Term(name, "".join(label for label in term.labels if label not in alone))


def _combined(node: OnnxNode, to: NodeBuilder, x: _Term, y: _Term, result: str) -> _Term:
    if x.name in to.constants:
        x, y = y, x
    shared = [label for label in x.labels if label in y.labels]
    batch = "".join(label for label in shared if label in result)
    summed = "".join(label for label in shared if label not in result)
    rows, columns = ("".join(label for label in each.labels if label not in shared) for each in (x, y))
    if not summed:
        return _multiplied(node, to, _ordered(node, to, x, batch + rows), _ordered(node, to, y, batch + columns))
    x, y = _ordered(node, to, x, batch + rows + summed), _ordered(node, to, y, batch + summed + columns)
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


def _multiplied(node: OnnxNode, to: NodeBuilder, x: _Term, y: _Term) -> _Term:
    """The elementwise product, without sums: each operand has an axis of 1 for the other's own labels."""
    own = [label for label in y.labels if label not in x.labels]
    labels = x.labels + "".join(own)
    spread: list[str] = []
    for each in (x, y):
        sizes = dict(zip(each.labels, to.shape(each.name), strict=True))
        shape = tuple(sizes.get(label, 1) for label in labels)
        spread.append(to.emit(node, "Reshape", (each.name,), (), shape=shape))
    return _Term(to.emit(node, "Mul", tuple(spread), ()), labels)


def _ordered(node: OnnxNode, to: NodeBuilder, term: _Term, labels: str) -> _Term:
    """The operand with its axes in this order."""
    name = to.emit(node, "Transpose", (term.name,), (), perm=_places(term.labels, labels))
    return replace(term, name=name, labels=labels)


def _places(labels: str, wanted: Iterable[str]) -> tuple[int, ...]:
    return tuple(labels.index(label) for label in wanted)


IMPORTERS: dict[str, Importer] = {"Einsum": _einsum}
