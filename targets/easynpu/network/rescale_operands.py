"""Where an operator has no zero points and ties its scales, what is given to a tensor is changed around it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from npuc.ir import Graph, Node
from npuc.passes.rewriting.rules import Draft, rewrite


def rescale_operands(graph: Graph) -> Graph:
    """Rescale around products, and around PRelu with slopes per channel, between tensors that FakeQuantize rounds.

    Their operands and results then have scales of their own. The target's products take no zero points, and only
    shifts requantise them.
    """
    return rewrite(graph, _free)


def _free(draft: Draft, node: Node) -> bool:
    if not (node.op == "Mul" or (node.op == "PRelu" and _many_slopes(draft, node))):
        return False
    computed = [name for name in dict.fromkeys(node.inputs) if name not in draft.constants]
    given = [name for name in computed if _op(draft.producer(name)) in ("FakeQuantize", "DequantizeLinear")]
    rounded = any(each.op in ("FakeQuantize", "QuantizeLinear") for each in draft.readers(node.output))
    if not given and not rounded:
        return False
    names = {name: draft.fresh(f"{name}/rescaled") for name in given}
    before = [_rescale(name, new, node) for name, new in names.items()]
    inputs = tuple(names.get(name, name) for name in node.inputs)
    if not rounded:
        draft.replace(node, *before, replace(node, inputs=inputs))
        return True
    free = draft.fresh(f"{node.output}/free")
    after = replace(_rescale(free, node.output, node), sources=node.sources)
    draft.replace(node, *before, replace(node, inputs=inputs, outputs=(free,)), after)
    return True


def _many_slopes(draft: Draft, node: Node) -> bool:
    slope = draft.constants.get(node.inputs[1])
    return slope is not None and bool(np.unique(slope).size > 1)


def _op(node: Node | None) -> str:
    return "" if node is None else node.op


def _rescale(source: str, result: str, node: Node) -> Node:
    return Node("Rescale", (source,), (result,), {}, f"{node.name}/{result}", node.sources)
