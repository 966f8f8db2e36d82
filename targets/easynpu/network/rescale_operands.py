"""Rescale nodes around operators that take no zero points and constrain their scales."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from npuc.ir import Graph, Node
from npuc.passes.rewriting.rules import Rewriter, rewrite
from npuc.quantize.scales.constraints import equal_scales
from npuc.quantize.scales.model_scales import given_steps


def rescale_operands(graph: Graph) -> Graph:
    """Rescale around products, and around PRelu with slopes per channel, of tensors whose steps a model sets.

    Operands and results then have scales of their own, as the target's products take no zero points and are
    requantised only by shifts. A model sets the steps of a tensor by FakeQuantize or a conversion, and a limit, a
    maximum or a move passes them on, whichever of these nodes run on int8 in the end.
    """
    computed = [name for name in graph.tensors if name not in graph.constants]
    known = frozenset(computed)
    constraints = [pair for pair in equal_scales(graph, graph.nodes) if known.issuperset(pair)]
    given = frozenset(given_steps(graph, computed, constraints))
    return rewrite(graph, lambda rewriter, node: _free(rewriter, node, given))


def _free(rewriter: Rewriter, node: Node, steps: Collection[str]) -> bool:
    if not (node.op == "Mul" or (node.op == "PRelu" and _many_slopes(rewriter, node))):
        return False
    given = [name for name in dict.fromkeys(node.inputs) if name in steps]
    if not given and node.output not in steps:
        return False
    names = {name: rewriter.fresh(f"{name}/rescaled") for name in given}
    before = [_rescale(name, new, node) for name, new in names.items()]
    inputs = tuple(names.get(name, name) for name in node.inputs)
    if node.output not in steps:
        rewriter.replace(node, *before, replace(node, inputs=inputs))
        return True
    free = rewriter.fresh(f"{node.output}/free")
    after = replace(_rescale(free, node.output, node), sources=node.sources)
    rewriter.replace(node, *before, replace(node, inputs=inputs, outputs=(free,)), after)
    return True


def _many_slopes(rewriter: Rewriter, node: Node) -> bool:
    slope = rewriter.constants.get(node.inputs[1])
    return slope is not None and bool(np.unique(slope).size > 1)


def _rescale(source: str, result: str, node: Node) -> Node:
    return Node("Rescale", (source,), (result,), {}, f"{node.name}/{result}", node.sources)
