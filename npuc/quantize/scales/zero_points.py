"""Zero points other than 0: for tensors without negative values, and for those that are asymmetric around 0.

With 0 at -128 a tensor without negative values has twice the resolution. If every reader is a convolution, an
average or a sum, its bias absorbs the offset exactly. Windows that reach into the padding need padding with -128,
which costs extra instructions; this is done where they take few cycles, and elsewhere only at the highest level.

Inputs and results of tables are seldom symmetric: a HardSwish needs nothing below -3 and gives nothing below
-0.375, and a detector's logits are nearly all negative. With a zero point that makes 8 bits cover both ends, steps
are up to half as large. The highest level does this whatever it costs to read them. The zero point is absorbed by
the bias of the convolution that writes the tensor, by the entries of the table that reads or writes it, and by the
bias of a convolution that reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import ACTIVATION, MAX, PADS, SELECTS
from npuc.ops.windows import AVERAGES
from npuc.quantize.arithmetic.tables import TABLE_OPS, as_unary, domains
from npuc.quantize.calibration.histograms import EMPTY, Histogram, tensor_values
from npuc.quantize.scales.assignment import next_power
from npuc.quantize.scales.constraints import WEIGHTED, data_inputs, floors, largest_weight
from npuc.quantize.scales.model_scales import Steps, source_input
from npuc.quantize.scales.spans import ANYTHING, spans

LEVELS = 255
"""Steps from -128 to 127."""
PER_OCTAVE = 16
SCALES = np.exp2(np.arange(-40 * PER_OCTAVE, 40 * PER_OCTAVE) / PER_OCTAVE)
"""Candidate scales: the same for every tensor, so that choices hardly depend on a histogram's bin edges."""


@frozen
class ZeroPoints:
    """Where a target supports zero points, for free or at an acceptable cost.

    reads: whether a node accepts such an input; second argument: at any cost. writes: the operators that can give
    such results if a ReLU follows. power_of_two: whether scales must be powers of two. tables: whether tables read
    and write tensors with any zero point. pads: whether padding with a zero point takes a small part of a node's
    cycles.
    """

    reads: Callable[[Node, bool], bool]
    writes: tuple[str, ...] = ("Conv",)
    power_of_two: bool = False
    tables: bool = False
    pads: Callable[[Graph, Node], bool] = lambda _graph, _node: False

    def scale(self, wanted: float) -> float:
        """The smallest permitted scale that is not below the one wanted."""
        return next_power(wanted) if self.power_of_two else wanted

    @property
    def candidates(self) -> Array:
        """The candidate scales."""
        return SCALES[::PER_OCTAVE] if self.power_of_two else SCALES


def by_biases(node: Node, anyway: bool) -> bool:
    """Whether a machine that pads windows with zeros supports a zero point: the bias absorbs it, padding costs."""
    if node.op in ("Add", *AVERAGES):
        return not any(PADS(node))
    return node.op == "Conv" and not SELECTS(node) and (anyway or not any(PADS(node)))


IN_BIASES = ZeroPoints(by_biases, WEIGHTED, tables=True)
"""For a machine without zero points, where biases absorb them."""


def offset_inputs(
    graph: Graph,
    nodes: Sequence[Node],
    feeds: Sequence[Mapping[str, Array]],
    zero_points: ZeroPoints = IN_BIASES,
    *,
    anyway: bool,
) -> dict[str, Steps]:
    """Scales and zero points of the quantised inputs without negative values whose readers accept a zero point.

    anyway: at any cost. Whole numbers up to 255, as in images, keep their values.
    """
    integer = set(nodes)
    sources = {name: source_input(graph, name) for name in {node.inputs[0] for node in nodes if node.op == "Conv"}}
    found: dict[str, Steps] = {}
    for name, source in sources.items():
        if source is None or not _accepts_zero(graph, name, integer, zero_points, anyway=anyway):
            continue
        values = [feed[source] for feed in feeds]
        least, largest = min(float(each.min()) for each in values), max(float(each.max()) for each in values)
        if 0 <= least < largest:
            whole = largest <= LEVELS and all((each == np.rint(each)).all() for each in values)
            found[name] = Steps(
                1.0 if whole and largest > LEVELS / 2 else zero_points.scale(largest / LEVELS), -128
            )
    return found


def offset_results(
    graph: Graph,
    nodes: Sequence[Node],
    known: Mapping[str, Histogram],
    zero_points: ZeroPoints = IN_BIASES,
    *,
    anyway: bool = False,
) -> dict[str, Steps]:
    """Scales and zero points of results of ReLUs, and of averages over these, whose readers accept a zero point.

    anyway: at any cost, not only for free.
    """
    integer, known_spans = set(nodes), spans(graph)
    found: dict[str, Steps] = {}
    for node in nodes:
        name = node.output
        least = known_spans.get(node.inputs[0] if node.op in AVERAGES else name, ANYTHING)[0]
        limited = node.op in zero_points.writes and least >= 0
        if (
            limited
            and name in known
            and _accepts_zero(graph, name, integer, zero_points, anyway=anyway)
            and known[name].largest
        ):
            limit = MAX(node) / LEVELS
            top = [zero_points.scale(limit)] if np.isfinite(limit) else []
            candidates = np.append(zero_points.candidates[limit > zero_points.candidates], top)
            coarse = candidates[candidates >= finest(graph, node, known)]
            if len(coarse):
                found[name] = Steps(float(coarse[np.argmin(known[name].error(coarse, LEVELS))]), -128)
    return found


def finest(graph: Graph, node: Node, known: Mapping[str, Histogram]) -> float:
    """The scale at which one step of an operand is up to FINEST steps of a result; 0 without such a limit."""
    read = [known[name].largest for name in data_inputs(node) if name in known]
    if node.op not in WEIGHTED or not read:
        return 0.0
    return largest_weight(graph, node) * max(read) / 127 / FINEST


FINEST = 64
"""Weights have 8 bits, and finer steps would only resolve the error of the input."""


def _accepts_zero(graph: Graph, name: str, integer: set[Node], zero_points: ZeroPoints, *, anyway: bool) -> bool:
    """Whether all readers of a tensor are integer nodes that accept a zero point."""
    readers = graph.readers[name]
    fits = all(
        node in integer and zero_points.reads(node, anyway or zero_points.pads(graph, node)) for node in readers
    )
    return bool(readers) and name not in graph.outputs and fits


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
    *,
    anyway: bool = True,
) -> dict[str, Steps]:
    """Scales and zero points of table inputs and results for which a zero point other than 0 reduces the error.

    feeds: samples that show the range on both sides. known: histograms of tensors, from which the relevant inputs
    of tables follow. seen: what was found on the same samples in graphs whose tensors of the same name are equal;
    new histograms are added. anyway: at any cost of reading the tensors, not only for free.
    """
    names = _candidates(graph, nodes, zero_points, anyway=anyway) if zero_points.tables else []
    names = [name for name in names if name in known]
    limits = domains(graph, nodes, {name: histogram.largest for name, histogram in known.items()})
    keys = {name: (name, limits.get(name)) for name in names}
    seen = {} if seen is None else seen
    seen.update(_sides(graph, feeds, [key for key in keys.values() if key not in seen]))
    noise = floors(graph, nodes, known)
    whole = {name for name in names if name in limits and np.isfinite(limits[name]).all()}
    found = {
        name: _best_steps(
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
    for values in tensor_values(graph, feeds, [name for name, _ in keys]) if keys else ():
        for key in keys:
            name, limits = key
            within = values[name] if limits is None else np.clip(values[name], *limits)
            below[key] = below[key].with_values(np.minimum(within, 0))
            above[key] = above[key].with_values(np.maximum(within, 0))
    return {key: (below[key], above[key]) for key in keys}


def _candidates(graph: Graph, nodes: Sequence[Node], zero_points: ZeroPoints, *, anyway: bool) -> list[str]:
    """Results of convolutions and tables that have a table on at least one side and only suitable readers."""
    integer = set(nodes)
    tables = {node for node in nodes if node.op in TABLE_OPS and as_unary(graph, node) is not None}
    found: list[str] = []
    for node in nodes:
        readers = graph.readers[node.output]
        plain = node.op == "Conv" and not ACTIVATION(node) and not SELECTS(node)
        mine = node in tables or (plain and any(reader in tables for reader in readers))
        taken = all(
            each in tables
            or (each in integer and zero_points.reads(each, anyway or zero_points.pads(graph, each)))
            for each in readers
        )
        if mine and taken and readers and node.output not in graph.outputs:
            found.append(node.output)
    return found


def _best_steps(
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
    if not errors[row, column] < _zero_cost(below, above, least, zero_points, whole=whole) * WORTH:
        return None
    return Steps(float(scales[column]), int(zeros[row, column]))


def _zero_cost(below: Histogram, above: Histogram, least: float, zero_points: ZeroPoints, *, whole: bool) -> float:
    """The least error with the zero point 0."""
    least = max(below.largest, above.largest) / 127 if whole else least
    scales = zero_points.candidates[zero_points.candidates >= least]
    return float(_error(below, above, scales, np.zeros(len(scales))).min())


def _error(below: Histogram, above: Histogram, scales: Array, zeros: Array) -> Array:
    """The expected squared error for each of these scales with its zero point."""
    return below.error(scales, zeros + 128) + above.error(scales, 127 - zeros)
