"""Upper limits on a chip that only saturates: tensors that exceed a limit get their own scale.

An int8 layer can limit its result from above only at its largest integer, so a Clip demands a scale of at most its
limit / 127. Tensors that must share this scale would be clipped at the limit as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence

from npuc.frozen import frozen
from npuc.ir import Graph, Node
from npuc.passes.expansion.images import ImageLimits
from npuc.passes.scales import Histograms, Pair, Select, joining, tying, with_rescaled
from npuc.quantize.arithmetic.tables import is_relu
from npuc.quantize.scales.assignment import ScaleConstraints, components
from npuc.quantize.scales.constraints import data_inputs, tensors_of
from npuc.targets.bm1684.quantisation.steps import constraints, without_arithmetic

NEARLY = 1.001
"""Tolerance: a value equal to the limit does not exceed it."""


@frozen
class RescaleAtLimits:
    """Rescales where a tensor that is clipped at a limit would share the scale of one that exceeds it.

    Copies come before a Clip whose operand has other readers, and before a Concat or another operator whose
    operands share a scale. histograms: of the tensors with free scales. select: the nodes that become integer.
    limits: of the images that are rescaled.
    """

    histograms: Histograms
    select: Select
    limits: ImageLimits
    __name__ = "rescale_at_limits"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with rescaled copies."""
        nodes = self.select(graph)
        free = {name: self.histograms[name].largest for name in tensors_of(nodes) if name in self.histograms}
        given = [name for name in tensors_of(nodes) if name not in self.histograms]
        demands = constraints(graph, nodes, self.histograms, given)
        if not demands.ceilings:
            return graph
        ties = tying(graph, without_arithmetic(nodes), frozenset(demands.equal))
        found = {clip: clip.inputs[:1] for clip in ties if _cuts(graph, clip, ties, free, demands)}
        left = {node: pairs for node, pairs in ties.items() if node not in found}
        return with_rescaled(graph, self.limits, {**found, **_limited(left, free, demands)}, "limited")


def _cuts(
    graph: Graph,
    clip: Node,
    ties: Mapping[Node, Sequence[Pair]],
    free: Mapping[str, float],
    demands: ScaleConstraints,
) -> bool:
    """Whether a Clip's limit would clip its operand for readers other than a Clip."""
    if not is_relu(clip) or clip.output not in demands.ceilings or clip.inputs[0] not in free:
        return False
    class_of = components(free, (pair for node in ties if node is not clip for pair in ties[node]))
    leader = class_of[clip.inputs[0]]
    beyond = demands.ceilings[clip.output] * 127 * NEARLY
    return any(
        free[name] > beyond and (name in graph.outputs or not ties.keys() >= {*graph.readers[name]})
        for name in class_of
        if class_of[name] == leader
    )


def _limited(
    ties: Mapping[Node, Sequence[Pair]], free: Mapping[str, float], demands: ScaleConstraints
) -> dict[Node, Collection[str]]:
    """For each joining node, the operands clipped at a limit that another operand exceeds."""
    joins = joining(ties, free)
    pairs = [pair for node in ties if node not in joins for pair in ties[node]]
    found: dict[Node, Collection[str]] = {}
    for node in joins:
        class_of = components(free, pairs)
        operands = [name for name in data_inputs(node) if name in free]
        limits = {name: _limit(class_of, name, demands.ceilings) for name in operands}
        reach = {name: min(limits[name], _largest(class_of, name, free)) for name in operands}
        ended = {name for name in operands if limits[name] * NEARLY < max(reach.values())}
        found |= {node: ended} if ended else {}
        pairs += [(name, node.output) for name in operands if name not in ended]
    return found


def _limit(class_of: Mapping[str, str], tensor: str, ceilings: Mapping[str, float]) -> float:
    """The largest value that a tensor's scale may represent."""
    return min(
        (ceilings[name] * 127 for name in _class(class_of, tensor) if name in ceilings), default=float("inf")
    )


def _largest(class_of: Mapping[str, str], tensor: str, free: Mapping[str, float]) -> float:
    return max(free[name] for name in _class(class_of, tensor))


def _class(class_of: Mapping[str, str], tensor: str) -> Iterable[str]:
    """The tensors that share a tensor's scale."""
    return (name for name, leader in class_of.items() if leader == class_of[tensor])
