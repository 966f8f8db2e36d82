"""From the float graph to NVDLA's integer graph: which nodes form a pass through SDP, and its integers.

Every tensor has its own real-valued scale, as 16-bit multipliers with a shift can represent any ratio. Only
operators that move or select elements constrain the scales of their tensors. Scales and zero points that a model
provides are kept, as are the integers of its weights. A convolution absorbs what its only reader does: the
activation, the addition of another map, slopes. Between the stages values keep FRACTION fractional bits of the
last scale.

int16 beside int8 in one graph: SDP converts between them on a map in memory (table 30); a convolution, a pool and
CDP keep the format of their map (tables 29, 31, 32). So every tensor has one format, and wherever it passes from
one to the other there is a Rescale, a layer of its own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from math import inf

from npuc.ir import Graph, Node
from npuc.ops import rebuild
from npuc.ops.movement import MOVEMENT
from npuc.ops.windows import SELECTION
from npuc.quantize.calibration.histograms import Histogram
from npuc.quantize.network.construction import Quantised
from npuc.quantize.network.renaming import reading
from npuc.quantize.scales.assignment import (
    ScaleConstraints,
    choose_scales,
    components,
    in_powers_of_two,
    next_power,
)
from npuc.quantize.scales.constraints import data_inputs
from npuc.quantize.scales.model_scales import NOTHING_GIVEN, Steps
from npuc.quantize.scales.spans import expect_within_reach
from npuc.targets.nvdla.quantisation.builder import MOST_POOL
from npuc.targets.nvdla.quantisation.constraints import constraints, keeping_averages
from npuc.targets.nvdla.quantisation.floats import Floats
from npuc.targets.nvdla.quantisation.integers import Integers
from npuc.targets.nvdla.quantisation.rounding import NOTHING_SEEN, Moments


def quantise(
    graph: Graph,
    nodes: Sequence[Node],
    histograms: Mapping[str, Histogram],
    method: str = "mse",
    given: Mapping[str, Steps] = NOTHING_GIVEN,
    precision: str = "int8",
    winograd: Collection[str] = (),
    *,
    power_of_two: bool = False,
    wide: Collection[str] = (),
) -> Quantised:
    """The integer graph of a float graph; `nodes` become integer (int8 or int16).

    nodes: accepted by support.refusal. histograms: of every tensor in tensors_of(nodes) without given scales.
    winograd: names of convolutions whose weights are transformed before they are rounded (module transformed).
    power_of_two: make every scale that is not given a power of two. wide: names of the nodes that become int16
    in a graph of int8.
    """
    dtypes = dict.fromkeys(wide_tensors(graph, wide), "int16")
    most = INT16_MOST if precision == "int16" else 127
    known = dict(given)
    for node in keeping_averages(graph, nodes, histograms, most):  # including the zero point of its map
        if node.inputs[0] in known:
            known.setdefault(node.output, known[node.inputs[0]])
    given = known
    free = {name: histogram for name, histogram in histograms.items() if name not in given}
    expect_within_reach(nodes, free)
    scales: dict[str, float] = {}
    for kind in ("int8", "int16"):
        those = {name: each for name, each in free.items() if dtypes.get(name, precision) == kind}
        demands = constraints(graph, nodes, those, INT16_MOST if kind == "int16" else 127)
        demands = in_powers_of_two(demands, those) if power_of_two else demands
        if those:
            scales |= wide_scales(those, demands) if kind == "int16" else choose_scales(those, demands, method)
    chosen = {name: Steps(scale) for name, scale in scales.items()}
    largest = {name: histogram.largest for name, histogram in free.items()}
    steps = {**chosen, **given}
    return Integers(graph, nodes, steps, given.keys(), precision, winograd, largest, dtypes).build()


INT16_MOST = 32767
HEADROOM = 2.0
"""int16 reaches this far beyond the largest calibration value: a bit of resolution costs less than saturation."""


def wide_scales(histograms: Mapping[str, Histogram], demands: ScaleConstraints) -> dict[str, float]:
    """A scale for every int16 tensor, from its largest value, whatever the method.

    A ceiling applies if the values of all tensors that share the scale are within it.
    """
    class_of = components(histograms, demands.equal)
    largest = dict.fromkeys(class_of.values(), 0.0)
    ceilings = dict.fromkeys(largest, inf)
    for name, leader in class_of.items():
        largest[leader] = max(largest[leader], histograms[name].largest)
        ceilings[leader] = min(ceilings[leader], demands.ceilings.get(name, inf))
    reach = {
        name: min(HEADROOM * value or 1.0, max(INT16_MOST * ceilings[name], value))
        for name, value in largest.items()
    }
    scales = {name: value / INT16_MOST for name, value in reach.items()}
    chosen = {name: next_power(scale) if name in demands.powers else scale for name, scale in scales.items()}
    return {name: chosen[leader] for name, leader in class_of.items()}


def in_fp16(
    graph: Graph, nodes: Sequence[Node], seen: Mapping[str, Moments] = NOTHING_SEEN, winograd: Collection[str] = ()
) -> Quantised:
    """The graph of a float graph whose `nodes` NVDLA computes in fp16: every scale is 1.

    seen: statistics of the convolutions' inputs; winograd: names of convolutions whose weights are transformed
    before they are rounded.
    """
    return Floats(graph, nodes, seen, winograd).build()


def wide_tensors(graph: Graph, wide: Collection[str]) -> set[str]:
    """The tensors in int16 of a graph in which nodes of these names are: results, and inputs that they read."""
    found = {name for node in graph.nodes if node.name in wide for name in node.outputs}
    read = {name for node in graph.nodes if node.name in wide for name in data_inputs(node)}
    return found | read.intersection(graph.inputs)


def widen_nodes(
    graph: Graph, nodes: Sequence[Node], wide: Collection[str]
) -> tuple[Graph, frozenset[str], Mapping[str, str]]:
    """The graph with borders between int8 and int16, the names of its nodes in int16, and what borders copy.

    nodes: those that NVDLA computes. wide: the names of those that compute in int16; what only moves or selects
    elements of their results does so in int16. The last value: the tensor of which each border is a copy.
    """
    names, device, count = graph.names(), {*nodes}, Counter(node.name for node in graph.nodes)
    found, tensors = {*wide}, wide_tensors(graph, wide)
    made: list[Node] = []
    copies: dict[tuple[str, bool], str] = {}
    for node in graph.nodes:
        read = [name for name in data_inputs(node) if name not in graph.constants]
        moves = node.op in (*MOVEMENT, *SELECTION) and count[node.name] == 1
        if node in device and moves and tensors.issuperset(data_inputs(node)):  # no constant among them
            found.add(node.name)
            tensors.update(node.outputs)
        for name in dict.fromkeys(read) if node in device else ():
            other = node.name in found
            if (name in tensors) == other or (name, other) in copies:
                continue
            copy = copies[name, other] = names.new(f"{name}/{'wide' if other else 'narrow'}")
            made.append(Node("Rescale", (name,), (copy,), {}, copy, node.sources))
            if other:
                found.add(copy)
                tensors.add(copy)
        given = {name: copies.get((name, node.name in found), name) for name in read} if node in device else {}
        made.append(reading(node, given))
    copied = {copy: name for (name, _), copy in copies.items()}
    return (rebuild(graph, made, {}) if copies else graph), frozenset(found), copied


__all__ = ["MOST_POOL", "in_fp16", "quantise", "wide_tensors", "widen_nodes"]
