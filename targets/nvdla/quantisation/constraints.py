"""Constraints on scales: which tensors share one, and upper bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from npuc.ir import Graph, Node
from npuc.ops.attributes import ACTIVATION, MAX
from npuc.ops.movement import MOVEMENT
from npuc.ops.quantisation import CONVERSIONS
from npuc.ops.windows import SELECTION
from npuc.quantize.calibration.histograms import Histogram
from npuc.quantize.scales.assignment import ScaleConstraints
from npuc.quantize.scales.constraints import average_kernel, floors, visible
from npuc.targets.nvdla.quantisation.builder import MOST_POOL


def equal_scales(graph: Graph, nodes: Sequence[Node]) -> tuple[tuple[str, str], ...]:
    """Pairs of tensors that share scale and zero point, through operators that move or select elements."""
    del graph
    moving = (node for node in nodes if node.op in (*MOVEMENT, *SELECTION))
    return tuple((node.inputs[0], other) for node in moving for other in (*node.inputs[1:], *node.outputs))


def constraints(
    graph: Graph, nodes: Sequence[Node], histograms: Mapping[str, Histogram], most: int = 127
) -> ScaleConstraints:
    """Equal scales, and ceilings that make saturation at `most` an upper limit, for tensors with histograms.

    Scale annotations in the graph share their scale if none is given: then neither side has other steps.
    """
    ceilings: dict[str, float] = {}
    for node in nodes:
        high = upper_limit(node)
        if high < inf and node.output in histograms:
            ceilings[node.output] = min(ceilings.get(node.output, inf), high / most)
    averaged = tuple((node.inputs[0], node.output) for node in keeping_averages(graph, nodes, histograms, most))
    annotated = ((node.inputs[0], node.output) for node in nodes if node.op in CONVERSIONS)
    equal = tuple(
        pair for pair in (*equal_scales(graph, nodes), *averaged, *annotated) if histograms.keys() >= {*pair}
    )
    return ScaleConstraints(
        equal, (), ceilings, floors=floors(graph, nodes, histograms), unsaturated=visible(graph, nodes)
    )


LOST_BITS = {127: 2, 32767: 4}
"""Bits that PDP's average, which never saturates, may lose by keeping the map's scale; by largest integer."""


def keeping_averages(
    graph: Graph, nodes: Sequence[Node], histograms: Mapping[str, Histogram], most: int = 127
) -> list[Node]:
    """The averages in PDP's range that should keep the scale of their map, so that no result wraps."""
    return [node for node in nodes if _keeps_scale(graph, node, histograms, most)]


def _keeps_scale(graph: Graph, node: Node, histograms: Mapping[str, Histogram], most: int) -> bool:
    if node.op not in ("AveragePool", "GlobalAveragePool") or not histograms.keys() >= {
        node.inputs[0],
        node.output,
    }:
        return False
    x, y = (histograms[name].largest for name in (node.inputs[0], node.output))
    return max(average_kernel(graph, node)) <= MOST_POOL and x <= y * 2 ** LOST_BITS[most]


def upper_limit(node: Node) -> float:
    """The largest result that a node's definition or activation allows; infinite without a limit."""
    if node.op == "HardSigmoid":
        return 1.0
    clips = node.op == "Clip" or ACTIVATION(node) == "Clip"
    return MAX(node) if clips else inf
