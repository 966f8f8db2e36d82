"""Warnings for fp16 programs whose values, according to the samples, are outside the range of fp16."""

from __future__ import annotations

from collections.abc import Mapping

from npuc.errors import Problem
from npuc.ir import Graph
from npuc.targets.nvdla.formats.precision import FP16_MOST
from npuc.targets.nvdla.quantisation.moments import Moments

FP16_LEAST = 2.0**-14
"""The smallest fp16 number with 11 significant bits."""
REMEDY = "scale the inputs, or weights and bias of the layer, or compile with --precision int16"


def beyond_range(
    graph: Graph, stored: Graph, seen: Mapping[str, Moments], *, synthetic: bool
) -> tuple[Problem, ...]:
    """A warning for every tensor of the float graph that NVDLA stores and whose values fp16 represents badly.

    Values that are too large saturate; a tensor whose values are all below the smallest 11-bit number loses bits.

    stored: the graph that NVDLA computes; tensors not in it are never fp16. synthetic: there was no calibration
    data.
    """
    samples = (
        "synthetic samples (--calibration DATA.npz has better ones)" if synthetic else "the calibration samples"
    )
    found: list[Problem] = []
    for name, each in seen.items():
        if name not in stored.tensors or each.largest == 0 or FP16_LEAST <= each.largest <= FP16_MOST:
            continue
        node = graph.producers.get(name)
        what = "saturates them" if each.largest > FP16_MOST else "loses bits of them"
        reason = f"its values reach +/-{each.largest:.4g} on {samples}: NVDLA {what}"
        limit = f"{FP16_LEAST:.2g}..{FP16_MOST:g} in fp16"
        layer = node.source if node else None
        found.append(Problem("W301", reason, layer, node.op if node else None, name, limit, REMEDY))
    return tuple(found)
