"""Calibration that takes the results of tables into account: which inputs matter depends on how large results get.

The scale of a tensor that only tables read covers just the inputs that change a result. If all results are small
(the scores of a detector, from a Conv with bias -8 and a Sigmoid), that interval is much wider than if some are 1.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import inf, isfinite

from npuc.errors import DataError
from npuc.ir import Array, Graph, Node
from npuc.ops.products import PRODUCTS
from npuc.quantize.arithmetic.tables import domains
from npuc.quantize.calibration.histograms import Histogram, HistogramSource, uniform
from npuc.quantize.scales.constraints import equal_scales, tensors_of
from npuc.quantize.scales.model_scales import NOTHING_GIVEN, Steps, given_steps, of_model, reaches
from npuc.quantize.scales.spans import spans
from npuc.samples.loading import Samples


def node_histograms(
    find: HistogramSource,
    graph: Graph,
    samples: Samples,
    tensors: Sequence[str],
    nodes: Sequence[Node],
    given: Mapping[str, Steps] = NOTHING_GIVEN,
    known: Mapping[str, Histogram] | None = None,
    gains: Mapping[str, Array] | None = None,
) -> dict[str, Histogram]:
    """The histograms of the tensors that these nodes read and write, as far as they matter to actual results.

    given: scales of other tensors. known: histograms of other tensors. The samples are read a second time only if
    results are small. Raises DataError (E402) for a value that is infinite or NaN.
    """
    told = _told_ranges(graph, tensors, samples, given)
    tensors = [name for name in tensors if name not in told]
    known = {**(known or {}), **told}
    usual = domains(graph, nodes)
    found = find(graph, samples.feeds(), tensors, usual, gains)
    reached = {name: steps.reach for name, steps in given.items()}
    reached |= {name: histogram.largest for name, histogram in {**(known or {}), **found}.items()}
    wider = {
        name: limits
        for name, limits in domains(graph, nodes, reached).items()
        if name in found and limits != usual[name]
    }
    if wider:
        found = {**found, **find(graph, samples.feeds(), tuple(wider), wider, gains)}
    return {**found, **told}


def _told_ranges(
    graph: Graph, tensors: Sequence[str], samples: Samples, given: Mapping[str, Steps]
) -> dict[str, Histogram]:
    """The tensors whose range follows from what a quantised model says of them, or of tensors around them.

    Raises DataError (E404) for an input or a product of which it says nothing: samples would have to tell.
    """
    if samples.ranges is None:
        return {}
    known = {**samples.ranges, **{name: each.limits for name, each in given.items()}}
    for node in reversed(graph.nodes):
        if node.op in ("Reshape", "Transpose") and node.output in known:
            known.setdefault(node.inputs[0], known[node.output])
    reach = {name: max(map(abs, each)) for name, each in spans(graph, known).items() if isfinite(sum(each))}
    for name in tensors:
        made, tensor = graph.producers.get(name), of_model(graph, name)
        if name not in reach and (made is None or (made.op in PRODUCTS and tensor in graph.reserved)):
            node, op = (made.source, made.op) if made else (None, None)
            reason = "the model is quantised, but gives no range of this tensor"
            raise DataError("E404", reason, node=node, op=op, tensor=tensor)
    return {name: uniform(reach[name]) for name in tensors if name in reach}


def calibrate(
    find: HistogramSource,
    graph: Graph,
    samples: Samples,
    nodes: Sequence[Node],
    table: Mapping[str, Steps] = NOTHING_GIVEN,
) -> tuple[dict[str, Steps], dict[str, Histogram]]:
    """The scales that the model or a table gives tensors of these nodes, and the histograms of the other tensors.

    A tensor whose range follows from given scales is not calibrated. Raises as `node_histograms`.
    """
    tensors = tensors_of(nodes)
    given = given_steps(graph, tensors, equal_scales(graph, nodes), table)
    known = {name: uniform(reach) for name, reach in reaches(nodes, given).items()}
    free = [name for name in tensors if name not in given and name not in known]
    return given, {**node_histograms(find, graph, samples, free, nodes, given), **known}


FLAT = ("Clip", "HardSigmoid", "HardSwish")
"""Functions that are constant outside their domain."""


def histograms_before_host(
    find: HistogramSource, graph: Graph, samples: Samples, found: Mapping[str, Histogram], on_host: Collection[str]
) -> dict[str, Histogram]:
    """The histograms if these nodes of the graph run on the host: their inputs keep all large values.

    A table cannot tell the results of large inputs apart, such as scores near 1; in float they keep their order.
    Small results matter as before. found: the histograms for tables.
    """
    nodes = [node for node in graph.nodes if node.name in on_host and node.op not in FLAT]
    largest = {name: histogram.largest for name, histogram in found.items()}
    wider = {
        name: (low, inf)
        for name, (low, high) in domains(graph, nodes, largest).items()
        if name in found and high < inf
    }
    return {**found, **(find(graph, samples.feeds(), tuple(wider), wider) if wider else {})}
