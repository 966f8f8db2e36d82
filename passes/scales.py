"""Rescaling copies between operators that must share a scale. Targets choose from these."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace

from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.ops.movement import MOVEMENT
from npuc.ops.windows import SELECTION
from npuc.passes.expansion.images import ImageLimits, to_image
from npuc.passes.rewriting.rules import Rewriter, rewrite
from npuc.quantize.arithmetic.tables import is_relu
from npuc.quantize.calibration.histograms import Histogram
from npuc.quantize.scales.assignment import ScaleConstraints, choose_scales, components
from npuc.quantize.scales.constraints import data_inputs, equal_scales, selects, tensors_of
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
        mixed = _mixed_concats(graph, self.table)
        return with_rescaled(graph, self.limits, mixed, "rescaled") if mixed else graph


def _mixed_concats(graph: Graph, table: Mapping[str, Steps]) -> Mapping[Node, frozenset[str]]:
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
        before = [each for x, y in names.items() for each in _rescale(limits, rewriter, node, x, y)]
        rewriter.replace(node, *before, replace(node, inputs=tuple(names.get(x, x) for x in node.inputs)))
        return True

    return rewrite(graph, rule)


def _rescale(limits: ImageLimits, rewriter: Rewriter, node: Node, x: str, y: str) -> list[Node]:
    """The Rescale before a node from x to y, on an image."""
    shape, size = rewriter.shape(x), rewriter.types[x].size
    if not size or limits.image_of(shape) == shape:
        return [Node("Rescale", (x,), (y,), {}, f"{node.name}/{y}", node.sources)]
    image, before = to_image(rewriter, x, range(len(shape)), limits.image_of(shape), node.sources)
    rescaled = rewriter.fresh(f"{y}/image")
    back = Node("Reshape", (rescaled,), (y,), {"shape": shape}, y, node.sources)
    return [*before, Node("Rescale", (image,), (rescaled,), {}, f"{node.name}/{y}", node.sources), back]


MARKS = ("FakeQuantize", "QuantizeLinear", "DequantizeLinear")


FEWEST = 8
"""The least number of quantisation steps in the largest value of a tensor used by other computations."""
TYING = (*MOVEMENT, *SELECTION, "Add", "Neg")
"""Operators that may lack arithmetic to change the scale."""
Histograms = Mapping[str, Histogram]
Select = Callable[[Graph], tuple[Node, ...]]
Pair = tuple[str, str]


@frozen
class RescaleCoarseOperands:
    """Rescale before an operator whose operands must share a scale, if that would make one operand too coarse.

    This is done only for an operand that another operator computes with: in max(x, exp(x)) the exponential needs a
    fine x, the maximum does not. If the result is as coarse, nothing is gained. histograms: of the tensors with
    free scales. select: the nodes that become integer. constraints: their constraints on the free scales.
    limits: of the images that are rescaled. fewest: as FEWEST.
    """

    histograms: Histograms
    select: Select
    constraints: Callable[[Graph, Sequence[Node], Histograms], ScaleConstraints]
    limits: ImageLimits
    fewest: int = FEWEST
    __name__ = "rescale_coarse_operands"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with copies of coarse operands."""
        nodes = self.select(graph)
        free = {name: self.histograms[name] for name in tensors_of(nodes) if name in self.histograms}
        demands = self.constraints(graph, nodes, free)
        ties = tying(graph, nodes, frozenset(demands.equal))
        joins = joining(ties, free)
        if not _is_coarser(joins, free, demands, self.fewest):
            return graph
        scales = choose_scales(free, demands, "minmax")
        coarse = {name for name, scale in scales.items() if 0 < free[name].largest < self.fewest * scale}
        class_of = components(free, (pair for node in ties if node not in joins for pair in ties[node]))
        computing = {*nodes} - ties.keys()
        needed = {class_of[name] for name in coarse if computing.intersection(graph.readers[name])}
        lost = {class_of[name] for name in coarse}
        found = {
            node: {x for x in node.inputs if x in coarse and class_of[x] in needed}
            for node in joins
            if class_of[node.output] not in lost
        }
        return with_rescaled(graph, self.limits, found, "copy")


def tying(graph: Graph, nodes: Sequence[Node], equal: Collection[Pair]) -> dict[Node, list[Pair]]:
    """The nodes that constrain the scales of their operands or results to be related, and these pairs."""
    found: dict[Node, list[Pair]] = {}
    for node in nodes:
        if node.op in TYING or is_relu(node) or selects(graph, node):
            first, *others = (*data_inputs(node), *node.outputs)
            pairs = [(first, other) for other in others if (first, other) in equal]
            found |= {node: pairs} if pairs else {}
    return found


def joining(ties: Iterable[Node], free: Collection[str]) -> list[Node]:
    """The nodes that constrain more than one operand with a free scale."""
    return [node for node in ties if len({*data_inputs(node)}.intersection(free)) > 1]


def _is_coarser(joins: Sequence[Node], free: Histograms, demands: ScaleConstraints, fewest: int) -> bool:
    """Whether an operand is so much smaller than a tensor with its scale that it may become too coarse."""
    class_of = components(free, demands.equal)
    largest: dict[str, float] = {}
    for name, leader in class_of.items():
        largest[leader] = max(largest.get(leader, 0.0), free[name].largest)
    operands = {name for node in joins for name in node.inputs if name in free}
    return any(0 < free[x].largest < largest[class_of[x]] * 2 * fewest / 127 for x in operands)
