"""Concatenations of tensors whose steps a model gives with others: what is given takes another scale."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

from npuc.ir import Graph, Node
from npuc.passes.expansion.images import carried, image_shape, is_image
from npuc.passes.rewriting.rules import Rewriter, rewrite
from npuc.quantize.scales.constraints import equal_scales
from npuc.quantize.scales.model_scales import given_steps


def rescale_mixed_concats(graph: Graph) -> Graph:
    """Rescale before a Concat of given steps and other values, which those steps need not reach.

    On integers all operands of a Concat share scale and zero point. Where the model gives them for each of the
    operands, they are taken as they are.
    """
    mixed = _mixed(graph)
    return rewrite(graph, lambda rewriter, node: _free(rewriter, node, mixed)) if mixed else graph


def _mixed(graph: Graph) -> Mapping[Node, frozenset[str]]:
    """The operands with given steps of every Concat that has others as well."""
    concats = {node for node in graph.nodes if node.op == "Concat"}
    computed = [name for name in graph.tensors if name not in graph.constants]
    if not concats or not any(node.op in MARKS for node in graph.nodes):
        return {}
    known, uniform = frozenset(computed), set[Node]()
    while True:
        nodes = [node for node in graph.nodes if node not in concats or node in uniform]
        pairs = [pair for pair in equal_scales(graph, nodes) if known.issuperset(pair)]
        given = given_steps(graph, computed, pairs).keys()
        more = {node for node in concats - uniform if given >= {*_operands(node, known)}}
        if not more:
            break
        uniform |= more
    found = {node: frozenset(given & {*node.inputs}) for node in concats - uniform}
    return {node: names for node, names in found.items() if names}


def _operands(node: Node, known: Collection[str]) -> list[str]:
    return [name for name in node.inputs if name in known]


def _free(rewriter: Rewriter, node: Node, mixed: Mapping[Node, frozenset[str]]) -> bool:
    given = mixed.get(node, frozenset())
    if not given:
        return False
    names = {name: rewriter.fresh(f"{name}/rescaled") for name in node.inputs if name in given}
    before = [each for x, y in names.items() for each in rescaled(rewriter, node, x, y)]
    rewriter.replace(node, *before, replace(node, inputs=tuple(names.get(name, name) for name in node.inputs)))
    return True


def rescaled(rewriter: Rewriter, node: Node, x: str, y: str) -> list[Node]:
    """The Rescale before a node from x to y, on an image."""
    shape, size = rewriter.shape(x), rewriter.types[x].size
    if is_image(shape) or not size:
        return [Node("Rescale", (x,), (y,), {}, f"{node.name}/{y}", node.sources)]
    image, before = carried(rewriter, x, range(len(shape)), image_shape(size), node.sources)
    rescaled = rewriter.fresh(f"{y}/image")
    back = Node("Reshape", (rescaled,), (y,), {"shape": shape}, y, node.sources)
    return [*before, Node("Rescale", (image,), (rescaled,), {}, f"{node.name}/{y}", node.sources), back]


MARKS = ("FakeQuantize", "QuantizeLinear", "DequantizeLinear")
