"""From the float graph to NVDLA's integer graph: which nodes make one pass through SDP, and its numbers.

Every tensor has a scale of its own, a free real number: multipliers of 16 bits with a shift take up any ratio.
Only what moves or selects elements ties its tensors. A convolution takes in what its one reader does: the
activation, an addition of another map, slopes. Between the stages values keep FRACTION fractional bits of the
last scale.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from npuc.ir import Graph, Node
from npuc.quantize.calibration import Spread
from npuc.quantize.draft import Quantised
from npuc.quantize.scales import choose_scales
from npuc.targets.nvdla.quantisation.builder import MOST_POOL, Builder
from npuc.targets.nvdla.quantisation.ties import equal_ties, ties


def quantise(graph: Graph, nodes: Sequence[Node], spreads: Mapping[str, Spread], method: str = "mse") -> Quantised:
    """The integer graph of a float graph, these of whose nodes become integer.

    nodes: what support.refusal accepts.
    """
    scales = choose_scales(spreads, ties(graph, nodes, spreads), method)
    return Builder(graph, nodes, scales).built()


__all__ = ["MOST_POOL", "equal_ties", "quantise"]
