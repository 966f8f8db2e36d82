"""Refusals and warnings for fp16 programs whose values, on the samples, are outside the range of fp16."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from npuc.errors import DoesNotFit, Problem
from npuc.ir import Graph, Node
from npuc.targets.nvdla.formats.precision import FP16_MOST, FP16_SMALLEST
from npuc.targets.nvdla.quantisation.moments import Moments

FP16_LEAST = 2.0**-14
"""The smallest fp16 number with 11 significant bits."""
REMEDY = "scale the inputs, or weights and bias of the layer, or compile with --precision int16"


def expect_in_range(nodes: Sequence[Node], stored: Graph, seen: Mapping[str, Moments], *, synthetic: bool) -> None:
    """Raises DoesNotFit (E301) for every node that reads or writes a stored tensor with values beyond fp16.

    Values that are too large would saturate; a tensor of tiny values would become 0.

    stored: the graph that NVDLA computes; tensors not in it are never fp16. synthetic: there was no calibration
    data.
    """
    lost = {name for name in _stored(stored, seen) if not FP16_SMALLEST <= seen[name].largest <= FP16_MOST}
    found: list[Problem] = []
    for node in nodes if lost else ():
        name = next((name for name in (*node.outputs, *node.inputs) if name in lost), None)
        if name is not None:
            reason = f"its values reach {_reach(seen[name], synthetic)}"
            limit = f"{FP16_SMALLEST:.2g}..{FP16_MOST:g} in fp16"
            found.append(Problem("E301", reason, node.source, node.op, name, limit, REMEDY))
    if found:
        raise DoesNotFit.of(found)


def short_of_bits(
    graph: Graph, stored: Graph, seen: Mapping[str, Moments], *, synthetic: bool
) -> tuple[Problem, ...]:
    """A warning for every tensor that NVDLA stores and whose values are all below the smallest 11-bit number.

    graph: the float graph; the rest as for `expect_in_range`.
    """
    found: list[Problem] = []
    for name in _stored(stored, seen):
        if seen[name].largest < FP16_LEAST:
            node = graph.producers.get(name)
            reason = f"its values reach {_reach(seen[name], synthetic)}: NVDLA loses bits of them"
            limit = f"{FP16_LEAST:.2g}..{FP16_MOST:g} in fp16"
            layer = node.source if node else None
            found.append(Problem("W301", reason, layer, node.op if node else None, name, limit, REMEDY))
    return tuple(found)


def _stored(stored: Graph, seen: Mapping[str, Moments]) -> list[str]:
    return [name for name, each in seen.items() if name in stored.tensors and each.largest]


def _reach(values: Moments, synthetic: bool) -> str:
    samples = (
        "synthetic samples (--calibration DATA.npz has better ones)" if synthetic else "the calibration samples"
    )
    return f"+/-{values.largest:.4g} on {samples}"
