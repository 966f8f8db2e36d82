"""Zero points for tensors whose values are asymmetric around 0, regardless of the cost of reading them.

Inputs and results of tables are seldom symmetric: a HardSwish needs nothing below -3 and gives nothing below
-0.375, and a detector's logits are nearly all negative. With a zero point that makes 8 bits cover both ends, steps
are up to half as large. The zero point is absorbed by the bias of the convolution that writes the tensor, by the
entries of the table that reads or writes it, and by the bias of a convolution that reads it; windows that reach
into padding cost an instruction (module offsets).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import ACTIVATION, SELECTS
from npuc.quantize.arithmetic.tables import TABLE_OPS, as_unary, domains
from npuc.quantize.calibration.histograms import EMPTY, Histogram, computed
from npuc.quantize.scales.constraints import floors
from npuc.quantize.scales.model_scales import Steps
from npuc.quantize.scales.offsets import LEVELS, ZeroPoints, finest

SHARES = np.linspace(0, 1, 5)[:, None]
"""Shares of the clipped excess beyond 8 bits that are cut off at the low end."""
MOST_STEPS = 2048
"""The most steps for the whole range of a tensor, however much of it saturates."""
WORTH = 0.9
"""The error must fall to this share of that with zero point 0."""
Span = tuple[float, float]
Sides = dict[tuple[str, Span | None], tuple[Histogram, Histogram]]
"""By tensor and limits of its values: the histograms of the negative values and of the positive ones."""


def one_sided(
    graph: Graph,
    nodes: Sequence[Node],
    feeds: Sequence[Mapping[str, Array]],
    known: Mapping[str, Histogram],
    zero_points: ZeroPoints,
    seen: Sides | None = None,
) -> dict[str, Steps]:
    """Scales and zero points of table inputs and results for which a zero point other than 0 reduces the error.

    feeds: samples that show the range on both sides. known: histograms of tensors, from which the relevant inputs
    of tables follow. seen: what was found on the same samples in graphs whose tensors of the same name are equal;
    new histograms are added. The cost of reading the tensors is not considered.
    """
    names = _candidates(graph, nodes, zero_points) if zero_points.tables else []
    names = [name for name in names if name in known]
    limits = domains(graph, nodes, {name: histogram.largest for name, histogram in known.items()})
    keys = {name: (name, limits.get(name)) for name in names}
    seen = {} if seen is None else seen
    seen.update(_sides(graph, feeds, [key for key in keys.values() if key not in seen]))
    noise = floors(graph, nodes, known)
    whole = {name for name in names if name in limits and np.isfinite(limits[name]).all()}
    found = {
        name: _best(
            *seen[keys[name]],
            max(finest(graph, graph.producers[name], known), 0.0 if name in whole else noise.get(name, 0.0)),
            zero_points,
            whole=name in whole,
        )
        for name in names
    }
    return {name: steps for name, steps in found.items() if steps is not None}


def _sides(graph: Graph, feeds: Sequence[Mapping[str, Array]], keys: Sequence[tuple[str, Span | None]]) -> Sides:
    """The histograms of these tensors on both sides of 0, their values limited."""
    below, above = dict.fromkeys(keys, EMPTY), dict.fromkeys(keys, EMPTY)
    for values in computed(graph, feeds, [name for name, _ in keys]) if keys else ():
        for key in keys:
            name, limits = key
            within = values[name] if limits is None else np.clip(values[name], *limits)
            below[key] = below[key].with_values(np.minimum(within, 0))
            above[key] = above[key].with_values(np.maximum(within, 0))
    return {key: (below[key], above[key]) for key in keys}


def _candidates(graph: Graph, nodes: Sequence[Node], zero_points: ZeroPoints) -> list[str]:
    """Results of convolutions and tables that have a table on at least one side and only suitable readers."""
    integer = set(nodes)
    tables = {node for node in nodes if node.op in TABLE_OPS and as_unary(graph, node) is not None}
    found: list[str] = []
    for node in nodes:
        readers = graph.readers[node.output]
        plain = node.op == "Conv" and not ACTIVATION(node) and not SELECTS(node)
        mine = node in tables or (plain and any(reader in tables for reader in readers))
        taken = all(each in tables or (each in integer and zero_points.reads(each, True)) for each in readers)
        if mine and taken and readers and node.output not in graph.outputs:
            found.append(node.output)
    return found


def _best(
    below: Histogram, above: Histogram, floor: float, zero_points: ZeroPoints, *, whole: bool
) -> Steps | None:
    """Scale and zero point with the least error; None if zero point 0 is as good.

    below, above: the magnitudes of negative and of positive values. whole: none may saturate, since all of them
    change a result, above all the rare large ones, which are a detector's objects.
    """
    reach = below.largest + above.largest
    least = max(floor, reach / (LEVELS - 1) if whole else reach / MOST_STEPS)
    scales = zero_points.candidates[(zero_points.candidates >= least) & (zero_points.candidates < reach)]
    if not len(scales):
        return None
    excess = np.maximum(reach - LEVELS * scales, 0)
    zeros = np.ceil((below.largest - SHARES * excess) / scales - 1e-9).clip(0, LEVELS) - 128
    errors = np.stack([_error(below, above, scales, each) for each in zeros])
    row, column = np.unravel_index(np.argmin(errors), errors.shape)
    if not errors[row, column] < _usual(below, above, least, zero_points, whole=whole) * WORTH:
        return None
    return Steps(float(scales[column]), int(zeros[row, column]))


def _usual(below: Histogram, above: Histogram, least: float, zero_points: ZeroPoints, *, whole: bool) -> float:
    """The least error with the zero point 0."""
    least = max(below.largest, above.largest) / 127 if whole else least
    scales = zero_points.candidates[zero_points.candidates >= least]
    return float(_error(below, above, scales, np.zeros(len(scales))).min())


def _error(below: Histogram, above: Histogram, scales: Array, zeros: Array) -> Array:
    """The expected squared error for each of these scales with its zero point."""
    return below.error(scales, zeros + 128) + above.error(scales, 127 - zeros)
