"""Concatenations of tensors with and without given scales: the given ones are rescaled."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import field, replace

from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.passes.expansion.images import ImageLimits, carried
from npuc.passes.rewriting.rules import Rewriter, rewrite
from npuc.quantize.scales.constraints import equal_scales
from npuc.quantize.scales.model_scales import Steps, given_steps, of_model


@frozen(eq=False)
class RescaleMixedConcats:
    """Rescale before a Concat of tensors with given scales and others, which may exceed these scales' ranges.

    On integers all operands of a Concat share scale and zero point. If the model gives them for every operand,
    they are used as they are. A table of scales counts as the model. limits: of the images that are rescaled.
    """

    limits: ImageLimits
    table: Mapping[str, Steps] = field(default_factory=dict[str, Steps])
    __name__ = "rescale_mixed_concats"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with rescaled operands."""
        mixed = _mixed(graph, self.table)
        return with_rescaled(graph, self.limits, mixed, "rescaled") if mixed else graph


def _mixed(graph: Graph, table: Mapping[str, Steps]) -> Mapping[Node, frozenset[str]]:
    """The operands with given scales of every Concat that also has others."""
    concats = {node for node in graph.nodes if node.op == "Concat"}
    computed = [name for name in graph.tensors if name not in graph.constants]
    if not concats or not (table or any(node.op in MARKS for node in graph.nodes)):
        return {}
    known, uniform = frozenset(computed), set[Node]()
    while True:
        nodes = [node for node in graph.nodes if node not in concats or node in uniform]
        pairs = [pair for pair in equal_scales(graph, nodes) if known.issuperset(pair)]
        given = given_steps(graph, computed, pairs, table)
        more = {node for node in concats - uniform if _uniform(graph, node, given, known, table)}
        if not more:
            break
        uniform |= more
    found = {node: frozenset(given.keys() & {*node.inputs}) for node in concats - uniform}
    return {node: names for node, names in found.items() if names}


def _uniform(
    graph: Graph, node: Node, given: Mapping[str, Steps], known: Collection[str], table: Mapping[str, Steps]
) -> bool:
    """Whether all operands of a Concat have given steps, and the same ones wherever a table gives some."""
    operands = [name for name in node.inputs if name in known]
    if not given.keys() >= {*operands}:
        return False
    exact = any(of_model(graph, name) in table for name in (*operands, node.output))
    return not exact or len({given.get(name) for name in (*operands, node.output)} - {None}) == 1


def with_rescaled(graph: Graph, limits: ImageLimits, operands: Mapping[Node, Collection[str]], stem: str) -> Graph:
    """The graph with these operands of its nodes rescaled, each under a name that ends in the stem."""

    def rule(rewriter: Rewriter, node: Node) -> bool:
        chosen = operands.get(node, ())
        names = {x: rewriter.fresh(f"{x}/{stem}") for x in node.inputs if x in chosen}
        if not names:
            return False
        before = [each for x, y in names.items() for each in _rescaled(limits, rewriter, node, x, y)]
        rewriter.replace(node, *before, replace(node, inputs=tuple(names.get(x, x) for x in node.inputs)))
        return True

    return rewrite(graph, rule)


def _rescaled(limits: ImageLimits, rewriter: Rewriter, node: Node, x: str, y: str) -> list[Node]:
    """The Rescale before a node from x to y, on an image."""
    shape, size = rewriter.shape(x), rewriter.types[x].size
    if not size or limits.image_of(shape) == shape:
        return [Node("Rescale", (x,), (y,), {}, f"{node.name}/{y}", node.sources)]
    image, before = carried(rewriter, x, range(len(shape)), limits.image_of(shape), node.sources)
    rescaled = rewriter.fresh(f"{y}/image")
    back = Node("Reshape", (rescaled,), (y,), {"shape": shape}, y, node.sources)
    return [*before, Node("Rescale", (image,), (rescaled,), {}, f"{node.name}/{y}", node.sources), back]


MARKS = ("FakeQuantize", "QuantizeLinear", "DequantizeLinear")
