"""Rescaled copies of operands that would share a much larger tensor's scale; the operand keeps its own."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.ops.movement import MOVEMENT
from npuc.ops.pooling import SELECTION
from npuc.passes.expansion.images import ImageLimits
from npuc.passes.scales.rescale_mixed_concats import with_rescaled
from npuc.quantize.arithmetic.tables import is_relu
from npuc.quantize.calibration.histograms import Histogram
from npuc.quantize.scales.assignment import ScaleConstraints, choose_scales, components
from npuc.quantize.scales.constraints import data_inputs, selects, tensors_of

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
        if not _apart(joins, free, demands, self.fewest):
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


def _apart(joins: Sequence[Node], free: Histograms, demands: ScaleConstraints, fewest: int) -> bool:
    """Whether an operand is so much smaller than a tensor with its scale that it may become too coarse."""
    class_of = components(free, demands.equal)
    largest: dict[str, float] = {}
    for name, leader in class_of.items():
        largest[leader] = max(largest.get(leader, 0.0), free[name].largest)
    operands = {name for node in joins for name in node.inputs if name in free}
    return any(0 < free[x].largest < largest[class_of[x]] * 2 * fewest / 127 for x in operands)
