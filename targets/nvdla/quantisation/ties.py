"""Which tensors share a scale, and how large scales may be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf

from npuc.ir import Graph, Node
from npuc.quantize.calibration import Spread
from npuc.quantize.scales import Ties
from npuc.quantize.tables import CONVERSIONS
from npuc.quantize.ties import MOVEMENT, SELECTION, floors, visible


def equal_ties(graph: Graph, nodes: Sequence[Node]) -> tuple[tuple[str, str], ...]:
    """Tensors that share a scale: those of what moves, selects or only annotates."""
    del graph
    moving = (node for node in nodes if node.op in (*MOVEMENT, *SELECTION, *CONVERSIONS))
    return tuple((node.inputs[0], other) for node in moving for other in (*node.inputs[1:], *node.outputs))


def ties(graph: Graph, nodes: Sequence[Node], spreads: Mapping[str, Spread]) -> Ties:
    """Equal scales, and ceilings so that saturation is an upper limit."""
    ceilings: dict[str, float] = {}
    for node in nodes:
        high = 1.0 if node.op == "HardSigmoid" else _upper_limit(node)
        if high < inf:
            ceilings[node.output] = min(ceilings.get(node.output, inf), high / 127)
    equal = equal_ties(graph, nodes)
    return Ties(equal, (), ceilings, floors=floors(graph, nodes, spreads), unsaturated=visible(graph))


def _upper_limit(node: Node) -> float:
    clips = node.op == "Clip" or node.text("activation") == "Clip"
    return node.number("max", inf) if clips else inf
