"""Scales of a sum's operands that its factors of 8 bits represent exactly.

Both factors share one exponent, so the smaller one may have few bits: 2 for 1.76 is an error of 14 % of the
operand. A scale that is a little coarser, so that the factor is a whole number, costs less.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil

from npuc.ir import Graph
from npuc.quantize.arithmetic.weights import sum_factors
from npuc.quantize.scales.assignment import ScaleConstraints

SMALL = 2.0**-7
"""The largest relative error of a factor from 64 to 127, which is left as it is."""
COARSER = 2.0**-6
"""The share by which the scale of an operand with other readers may become coarser."""


def with_exact_factors(
    graph: Graph, scales: Mapping[str, float], constraints: ScaleConstraints, given: Mapping[str, float]
) -> dict[str, float]:
    """The chosen scales, those of operands of sums coarser where nothing else determines them.

    given: scales that stay. From the last sum to the first, as the result of one may be the operand of another.
    """
    found, fixed = dict(scales), _dependent_tensors(constraints)
    for *operands, result in reversed(constraints.sums):
        known = {**given, **found}
        first, second = (known[name] / known[result] for name in operands)
        exponent = sum_factors(first, second)[2]
        for name, ratio in zip(operands, (first, second), strict=True):
            factor = ratio * 2.0**exponent
            share, rough = ceil(factor) / factor, abs(round(factor) - factor) > SMALL * factor
            free = name in found and name not in fixed
            if free and rough and (share <= 1 + COARSER or len(graph.readers[name]) == 1):
                found[name] *= share
            fixed.add(name)
    return found


def _dependent_tensors(constraints: ScaleConstraints) -> set[str]:
    """The tensors whose scales depend on others or have limits."""
    pairs = (*constraints.equal, *((ratio.coarse, ratio.fine) for ratio in constraints.ratios))
    tied = {name for pair in pairs for name in pair}
    return {*tied, *constraints.powers, *constraints.ceilings, *constraints.unsaturated}
