"""What a program in fp16 says of values that samples show and that fp16 has not: NVDLA saturates them."""

from __future__ import annotations

from collections.abc import Mapping

from npuc.errors import Problem
from npuc.ir import Graph
from npuc.targets.nvdla.formats.precision import FP16_MOST
from npuc.targets.nvdla.quantisation.moments import Moments

REMEDY = "scale the inputs, or weights and bias of the layer, or compile with --precision int16"


def saturated(graph: Graph, stored: Graph, seen: Mapping[str, Moments], *, made_up: bool) -> tuple[Problem, ...]:
    """A warning for every tensor of the float graph that NVDLA has in memory and whose values leave the range.

    stored: the graph that NVDLA computes; what it has not is never fp16. made_up: there was no calibration data.
    """
    samples = "made-up samples (--calibration DATA.npz has better ones)" if made_up else "the calibration samples"
    found: list[Problem] = []
    for name, each in seen.items():
        if each.largest <= FP16_MOST or name not in stored.tensors:
            continue
        node = graph.producers.get(name)
        reason = f"its values reach +/-{each.largest:.4g} on {samples}"
        limit = f"+/-{FP16_MOST:g} in fp16: NVDLA saturates what lies beyond"
        layer = (node.sources[0] if node.sources else node.name) if node else None
        found.append(Problem("W301", reason, layer, node.op if node else None, name, limit, REMEDY))
    return tuple(found)
