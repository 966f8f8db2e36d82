"""Fully connected layers written as MatMul and Add, as Gemm."""

from __future__ import annotations

from dataclasses import replace
from math import prod

import numpy as np

from npuc.ir import Graph, Node
from npuc.ops.attributes import ACTIVATION
from npuc.passes.rewriting.patterns import along_axis, quantisation_axis, restored_weight, stored_weight
from npuc.passes.rewriting.rules import Rewriter, rewrite


def recognise_gemm(graph: Graph) -> Graph:
    """MatMul with a constant matrix becomes Gemm, and Adds of a constant row its bias.

    Matrix and row may come from a DequantizeLinear. An input of more than two dimensions is reshaped to rows, and
    the result back.
    """
    return rewrite(graph, _product, _bias)


def _product(rewriter: Rewriter, node: Node) -> bool:
    """x (.., K) times w (K, N)."""
    w = stored_weight(rewriter, node.inputs[1]) if node.op == "MatMul" else None
    shape = rewriter.shape(node.inputs[0])
    if w is None or w.ndim != 2 or len(shape) < 2 or node.inputs[0] in rewriter.constants:
        return False
    stored = np.ascontiguousarray(w.T)
    axis = 1 - quantisation_axis(rewriter, node.inputs[1])
    weight, nodes = restored_weight(rewriter, node.inputs[1], stored, f"{node.output}/weight", axis)
    gemm = replace(node, op="Gemm", inputs=(node.inputs[0], weight), attrs={})
    rewriter.replace(node, *nodes, *(_over_rows(rewriter, gemm, shape) if len(shape) > 2 else (gemm,)))
    return True


def _over_rows(rewriter: Rewriter, gemm: Node, shape: tuple[int, ...]) -> tuple[Node, Node, Node]:
    """Reshape to rows, Gemm, Reshape back."""
    x, y = gemm.inputs[0], gemm.output
    rows, result = rewriter.fresh(f"{y}/rows"), rewriter.fresh(f"{y}/product")
    flatten = {"shape": (prod(shape[:-1]), shape[-1])}
    return (
        Node("Reshape", (x,), (rows,), flatten, rows, gemm.sources),
        replace(gemm, inputs=(rows, *gemm.inputs[1:]), outputs=(result,)),
        Node("Reshape", (result,), (y,), {"shape": rewriter.shape(y)}, y, gemm.sources),
    )


def _gemm_behind(rewriter: Rewriter, tensor: str) -> tuple[Node, Node | None] | None:
    """The Gemm that computes the tensor for one reader, and the Reshape of its rows between them, if any."""
    node = rewriter.private(tensor)
    reshape = node if node is not None and node.op == "Reshape" else None
    if reshape is not None:
        node = rewriter.private(reshape.inputs[0])
    if node is None or node.op != "Gemm" or ACTIVATION(node):
        return None
    return (node, reshape) if rewriter.shape(tensor)[-1:] == rewriter.shape(node.output)[-1:] else None


def _bias(rewriter: Rewriter, node: Node) -> bool:
    """Gemm, then Add of a row: a Gemm with a bias."""
    if node.op != "Add" or ACTIVATION(node):
        return False
    for x, b in (node.inputs, node.inputs[::-1]):
        found = _gemm_behind(rewriter, x)
        if found is None or rewriter.shape(x) != rewriter.shape(node.output):
            continue
        gemm, reshape = found
        row = _row(rewriter, gemm, b, rewriter.shape(x), f"{node.output}/bias")
        if row is not None:
            _with_bias(rewriter, node, gemm, reshape, *row)
            return True
    return False


def _row(
    rewriter: Rewriter, gemm: Node, b: str, shape: tuple[int, ...], stem: str
) -> tuple[str, list[Node]] | None:
    """The Gemm's bias plus a tensor that is added to its result: its name, and the nodes that compute it.

    None if the tensor is not a constant row, or if one of the two is stored as integers.
    """
    stored = stored_weight(rewriter, b)
    values = None if stored is None else along_axis(stored, shape, len(shape) - 1)
    if stored is None or values is None:
        return None
    if "".join(gemm.inputs[2:]):
        old = rewriter.constants.get(gemm.inputs[2])
        summable = old is not None and b in rewriter.constants
        return (rewriter.constant(old + values, stem), []) if summable else None
    return (b, []) if stored.shape == values.shape else restored_weight(rewriter, b, values, stem, 0)


def _with_bias(
    rewriter: Rewriter, add: Node, gemm: Node, reshape: Node | None, bias: str, nodes: list[Node]
) -> None:
    sources = rewriter.sources(gemm, add)
    result = add.output if reshape is None else rewriter.fresh(f"{add.output}/sum")
    biased = replace(gemm, inputs=(*gemm.inputs[:2], bias), outputs=(result,), sources=sources)
    back = [] if reshape is None else [replace(reshape, inputs=(result,), outputs=add.outputs)]
    rewriter.replace(add, *nodes, biased, *back)
