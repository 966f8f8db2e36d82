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
    if node.op == "Neg":
        C = rewriter.shape(node.output)[1:2]
        return bool(C) and _convert(rewriter, node, node.inputs[0], np.full(C, -1.0), np.zeros(C))
    if node.op not in ("Add", "Sub", "Mul", "Div") or ACTIVATION(node):
        return False
    found = constant_operand(rewriter, node)
    if found is None or rewriter.shape(found[0]) != rewriter.shape(node.output):
        return False
    x, name = found
    value = along_axis(rewriter.constants[name], rewriter.shape(x), 1) if len(rewriter.shape(x)) > 1 else None
    if value is None or not np.isfinite(value).all():
        return False
    c, one, zero = value.astype(np.float64), np.ones(len(value)), np.zeros(len(value))
    if node.op == "Add":
        return _convert(rewriter, node, x, one, c)
    if node.op == "Sub":
        return (
            _convert(rewriter, node, x, one, -c) if node.inputs[0] == x else _convert(rewriter, node, x, -one, c)
        )
    if node.op == "Mul":
        return _convert(rewriter, node, x, c, zero)
    if node.inputs[0] != x or not c.all():
        return False
    return in_float32(1 / c) and _convert(rewriter, node, x, 1 / c, zero)


def _convert(rewriter: Rewriter, node: Node, x: str, factor: Array, shift: Array) -> bool:
    if not only_float(rewriter, x):
        return False
    _batch_norm(rewriter, node, x, factor, shift, node.sources)
    return True


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
