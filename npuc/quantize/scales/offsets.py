"""Zero points for tensors without negative values: with 0 at -128 they have twice the resolution.

If every reader is a convolution, an average or a sum, its bias absorbs the offset exactly. Windows that reach into
the padding need padding with -128, which costs extra instructions; this is done where they take few cycles, and
elsewhere only at the highest level.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import MAX, PADS, SELECTS
from npuc.ops.windows import AVERAGES
from npuc.quantize.calibration.histograms import Histogram
from npuc.quantize.scales.assignment import next_power
from npuc.quantize.scales.constraints import WEIGHTED, data_inputs, largest_weight
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
        if source is None or not _taken(graph, name, integer, zero_points, anyway=anyway):
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
            and _taken(graph, name, integer, zero_points, anyway=anyway)
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


def _taken(graph: Graph, name: str, integer: set[Node], zero_points: ZeroPoints, *, anyway: bool) -> bool:
    """Whether all readers of a tensor are integer nodes that accept a zero point."""
    readers = graph.readers[name]
    fits = all(
        node in integer and zero_points.reads(node, anyway or zero_points.pads(graph, node)) for node in readers
    )
    return bool(readers) and name not in graph.outputs and fits
