"""Arithmetic with constants, one number per channel or one for all, as BatchNormalization."""

from __future__ import annotations

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import ACTIVATION, EPSILON
from npuc.passes.rewriting.patterns import along_axis, constant_operand, only_float
from npuc.passes.rewriting.rules import Rewriter, rewrite


def recognise_batch_norm(graph: Graph) -> Graph:
    """Mul, Add, Sub, Div and Neg become BatchNormalization, and two of those in a row one.

    The tensor is float32 with the channels second. fold_batch_norm then folds it into a convolution; otherwise one
    multiplication and one addition per element remain, which every machine has.
    """
    return rewrite(graph, _arithmetic, merge_batch_norms)


def scale_and_shift(rewriter: Rewriter, node: Node) -> tuple[Array, Array] | None:
    """The factor and the summand per channel (float64) of a BatchNormalization with constant statistics."""
    values = [rewriter.constants.get(name) for name in node.inputs[1:5]]
    given = [value for value in values if value is not None]
    if node.op != "BatchNormalization" or len(given) < 4:
        return None
    scale, bias, mean, var = (value.astype(np.float64) for value in given)
    factor = scale / np.sqrt(var + EPSILON(node))
    return factor, bias - mean * factor


def in_float32(*values: Array) -> bool:
    """Whether all of these float64 values are finite in float32.

    A product of two factors may leave its range where the operators, one after the other, do not.
    """
    return all(bool((np.abs(each) <= np.finfo(np.float32).max).all()) for each in values)


def _batch_norm(
    rewriter: Rewriter, node: Node, x: str, factor: Array, shift: Array, sources: tuple[str, ...]
) -> None:
    """Replaces a node by x * factor + shift, per channel."""
    C = len(factor)
    parameters = {"scale": factor, "shift": shift, "mean": np.zeros(C), "variance": np.ones(C)}
    names = [rewriter.constant(v.astype(np.float32), f"{node.output}/{stem}") for stem, v in parameters.items()]
    attrs = {"epsilon": 0.0}
    rewriter.replace(node, Node("BatchNormalization", (x, *names), node.outputs, attrs, node.name, sources))


def _arithmetic(rewriter: Rewriter, node: Node) -> bool:
    found = factor_and_shift(rewriter, node, 1)
    if found is not None:
        _batch_norm(rewriter, node, *found, node.sources)
    return found is not None


def factor_and_shift(rewriter: Rewriter, node: Node, axis: int) -> tuple[str, Array, Array] | None:
    """x, factor and shift of a node that computes factor * x + shift, a float64 for each place of an axis."""
    if node.op not in ("Neg", "Add", "Sub", "Mul", "Div") or ACTIVATION(node):
        return None
    x, name = (node.inputs[0], "") if node.op == "Neg" else constant_operand(rewriter, node) or ("", "")
    shape = rewriter.shape(node.output)
    if not x or rewriter.shape(x) != shape or not -len(shape) <= axis < len(shape) or not only_float(rewriter, x):
        return None
    value = along_axis(rewriter.constants[name], shape, axis) if name else np.full(shape[axis], -1.0)
    if value is None or not np.isfinite(value).all():
        return None
    c, one, zero = value.astype(np.float64), np.ones(len(value)), np.zeros(len(value))
    if node.op == "Add":
        return x, one, c
    if node.op == "Sub":
        return (x, one, -c) if node.inputs[0] == x else (x, -one, c)
    if node.op == "Div":
        return (x, 1 / c, zero) if node.inputs[0] == x and c.all() and in_float32(1 / c) else None
    return x, c, zero


def merge_batch_norms(rewriter: Rewriter, node: Node) -> bool:
    """BatchNormalization of BatchNormalization."""
    first = rewriter.private(node.inputs[0]) if node.op == "BatchNormalization" else None
    inner = scale_and_shift(rewriter, first) if first is not None else None
    outer = scale_and_shift(rewriter, node)
    if first is None or inner is None or outer is None:
        return False
    factor, shift = inner[0] * outer[0], inner[1] * outer[0] + outer[1]
    if not in_float32(factor, shift):
        return False
    _batch_norm(rewriter, node, first.inputs[0], factor, shift, rewriter.sources(first, node))
    return True
