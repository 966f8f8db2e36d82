"""Scales and zero points: the unsigned tensors, the operators' constraints on scales, and upper limits.

A sum and an average accept any scales, so only operators that move or select elements constrain them.

An int8 layer can limit its result from above only at its largest integer, so a Clip demands a scale of at most its
limit / 127. Tensors that must share this scale would be clipped at the limit as well.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from npuc.conditions.values import NOT_NEGATIVE
from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import ACTIVATION, SELECTS, VALUE
from npuc.ops.movement import KEPT_INTEGERS
from npuc.ops.windows import AVERAGES, SELECTION
from npuc.passes.expansion.images import ImageLimits
from npuc.passes.scales import Histograms, Pair, Select, joining, tying, with_rescaled
from npuc.quantize.arithmetic.tables import is_relu
from npuc.quantize.arithmetic.weights import LARGEST_WEIGHT
from npuc.quantize.calibration.histograms import Histogram
from npuc.quantize.network.construction import LayerWeights, Quantised, Shifted
from npuc.quantize.scales.assignment import ScaleConstraints, components
from npuc.quantize.scales.constraints import constraints_of, data_inputs, equal_scales, floors, tensors_of
from npuc.quantize.scales.model_scales import Steps
from npuc.targets.bm1684.quantisation.operators import UNSIGNED

MOST_BIAS, MOST_SHIFT, MOST_WEIGHT = 2**15 - 1, 15, LARGEST_WEIGHT - 0.001
SAME = (*KEPT_INTEGERS, *SELECTION)
NEVER_NEGATIVE = (*NOT_NEGATIVE, "HardSigmoid", "Sqrt", "Abs")


def natural_steps(given: Mapping[str, Steps]) -> dict[str, Steps]:
    """Given scales with a zero point of 0 or -128; others are replaced by signed ones with the same range."""
    return {
        name: steps if steps.zero in (0, UNSIGNED) else Steps(steps.reach / 127) for name, steps in given.items()
    }


def share_steps(graph: Graph, nodes: Sequence[Node], given: Mapping[str, Steps]) -> dict[str, Steps]:
    """Given scales, extended to the tensors that must share them."""
    equal = equal_scales(graph, nodes)
    class_of = components((*given, *(name for pair in equal for name in pair)), equal)
    found: dict[str, Steps] = {}
    for name, steps in given.items():
        found.setdefault(class_of[name], steps)
    return {**{name: found[leader] for name, leader in class_of.items() if leader in found}, **given}


def constraints(
    graph: Graph, nodes: Sequence[Node], free: Mapping[str, Histogram], given: Collection[str]
) -> ScaleConstraints:
    """The operators' constraints on the scales of their tensors."""
    others = _without_arithmetic(nodes)
    limited = constraints_of(graph, nodes, given)
    found = constraints_of(graph, others, given)
    ceilings = {**limited.ceilings, **dict(_ceilings_of_functions(graph, nodes, free))}
    return replace(found, ceilings=ceilings, floors=floors(graph, nodes, free))


SPREAD = 128
"""The ratio of the largest base of a negative power to the least one of which the result is not saturated."""
NEGLIGIBLE = 6.5
"""Exponents that are less than the largest by this have powers of less than half a step."""


def _ceilings_of_functions(
    graph: Graph, nodes: Sequence[Node], free: Mapping[str, Histogram]
) -> Iterator[tuple[str, float]]:
    """The largest scales of what Exp reads, and of negative powers.

    Neither exponents without effect nor a few bases near 0, such as the variances of padding, decide a scale.
    """
    for node in nodes:
        if node.op == "Exp" and {node.inputs[0], node.output} <= free.keys():
            high = float(np.log(max(free[node.output].largest, 1e-30)))
            yield node.inputs[0], max(abs(high), abs(high - NEGLIGIBLE)) / 127
        if node.op == "Pow" and node.inputs[0] in free:
            least = max(free[node.inputs[0]].largest, 1e-30) / SPREAD
            yield node.output, least ** float(graph.constants[node.inputs[1]].item()) / 127


def _without_arithmetic(nodes: Sequence[Node]) -> list[Node]:
    """The nodes that may demand a shared scale: not sums, products, averages and layers with a ReLU."""
    free = ("Add", "Mul", *AVERAGES)
    return [node for node in nodes if node.op not in free and not (node.op == "Conv" and ACTIVATION(node))]


def without_negatives(
    graph: Graph, nodes: Sequence[Node], chosen: Mapping[str, Steps], demanded: ScaleConstraints
) -> dict[str, Steps]:
    """The chosen scales within their ceilings; halved, and unsigned, for tensors without negative elements."""
    class_of = components(chosen, (pair for pair in demanded.equal if all(name in chosen for name in pair)))
    negative = _signed_classes(graph, nodes, class_of)
    scales: dict[str, float] = {}
    for name, steps in chosen.items():
        scale = min(steps.scale, demanded.ceilings.get(name, steps.scale))
        scales[class_of[name]] = min(scale, scales.get(class_of[name], scale))
    return {
        name: Steps(scales[leader]) if leader in negative else Steps(scales[leader] * 127 / 255, UNSIGNED)
        for name, leader in class_of.items()
    }


def _signed_classes(graph: Graph, nodes: Sequence[Node], class_of: Mapping[str, str]) -> set[str]:
    """The scale classes of tensors that may have negative elements."""
    integer = set(nodes)
    found: set[str] = set()
    before = -1
    while len(found) > before:
        before = len(found)
        for name, leader in class_of.items():
            producer = graph.producers.get(name)
            if producer is None or producer not in integer or _may_be_negative(producer, class_of, found):
                found.add(leader)
    return found


def _may_be_negative(node: Node, class_of: Mapping[str, str], signed: Collection[str]) -> bool:
    """Whether a node's result may have negative elements, given the classes that may."""
    square = node.op == "Mul" and len({*node.inputs}) == 1
    if ACTIVATION(node) in ("Relu", "Clip") or node.op in NEVER_NEGATIVE or square:
        return False
    if node.op in SAME:
        return node.op == "Pad" and VALUE(node) < 0  # or as its operands, which are of the same class
    if node.op in (*AVERAGES, "Add", "Mul", "Pow"):
        return any(class_of.get(x) is None or class_of[x] in signed for x in data_inputs(node))
    return not is_relu(node)


TRIED = np.exp2(np.arange(-4, 9) / 16)
"""Factors that are tried on a scale: up to 1/4 of an octave finer, up to 1/2 coarser."""


def fill_range(
    graph: Graph,
    nodes: Sequence[Node],
    steps: Mapping[str, Steps],
    free: Mapping[str, Histogram],
    demanded: ScaleConstraints,
    method: str,
) -> dict[str, Steps]:
    """The steps with scales at which convolutions use their 8 bits better.

    All weights of a layer have one step, the ratio of the scales over a power of two. The largest weight thus has
    64 to 127 of these, by chance. A result's scale minimises the squared errors of its values and of the weights,
    each relative to its energy. Inputs come first, as a layer has only its own result to choose. free: tensors
    whose scales are chosen. method: of calibration; only mse and output let values saturate.
    """
    class_of = components(free, (pair for pair in demanded.equal if all(name in free for name in pair)))
    members, writers = dict[str, list[str]](), dict[str, list[Node]]()
    for name, leader in class_of.items():
        members.setdefault(leader, []).append(name)
    for node in nodes:
        if node.op == "Conv" and node.output in free:
            writers.setdefault(class_of[node.output], []).append(node)
    found = dict(steps)
    for leader, convolutions in writers.items():
        if demanded.ceilings.keys().isdisjoint(members[leader]):
            whole = method not in ("mse", "output") or not demanded.unsaturated.isdisjoint(members[leader])
            tried = TRIED[TRIED >= 1] if whole else TRIED
            cost = sum(_value_errors(free[name], found[name], tried) for name in members[leader])
            cost = cost + sum(_weight_errors(graph, node, found, tried) for node in convolutions)
            best = float(tried[np.argmin(cost)])
            found |= {name: replace(found[name], scale=found[name].scale * best) for name in members[leader]}
    return found


EVEN = 1e-2
"""The most noise, relative to its weights' energy, that one step for all weights may add to the median channel.

This exchanges accuracy for cycles. PP-LCNet: 45.7 dB in 222,669 cycles if no layer is computed in two, 46.2 in
227,337 with this limit, 51.8 in 295,518 with a tenth of it (onnxruntime's static int8: 44.3 dB).
"""


def has_even_weights(graph: Graph, node: Node) -> bool:
    """Whether a node is no convolution whose weights one step does not suit in most channels.

    Channels whose weights all round to 0 do not count. Those of a convolution with an activation can be equalised.
    """
    if node.op != "Conv" or SELECTS(node) or ACTIVATION(node):
        return True
    w = graph.constants[node.inputs[1]]
    noise = (_largest(w) / MOST_WEIGHT) ** 2 / 12
    energies = np.square(w.reshape(len(w), -1), dtype=np.float64).mean(axis=1)
    return not (energies > noise / 12).any() or noise <= EVEN * float(np.median(energies[energies > noise / 12]))


def _value_errors(values: Histogram, steps: Steps, tried: Array) -> Array:
    """The squared error of a tensor's values over their energy, for each factor on its scale."""
    levels = 255 if steps.zero == UNSIGNED else 127
    return values.error(steps.scale * tried, levels) / max(values.energy, 1e-30)


def _weight_errors(graph: Graph, node: Node, steps: Mapping[str, Steps], tried: Array) -> Array:
    """The squared error of a convolution's weights over their energy, for each factor on its result's scale.

    Those of uneven weights are made up for.
    """
    w, *more = (graph.constants[name] for name in node.inputs[1:] if name)
    x, y = steps[node.inputs[0]].scale, steps[node.output].scale * tried
    finest = max(1e-30, *(x * _largest(w) / MOST_WEIGHT, *(_largest(bias) / MOST_BIAS for bias in more)))
    step = y / x / np.exp2(np.clip(np.floor(np.log2(y / finest)), 0, MOST_SHIFT))
    energy = float(np.square(w, dtype=np.float64).sum())
    return step**2 / 12 * np.count_nonzero(w) * has_even_weights(graph, node) / max(energy, 1e-30)


def _largest(values: Array) -> float:
    return float(np.abs(values).max(initial=0))


def chip_bias(w: Array, bias: Array, shift: Array, x_zero: int, y_zero: int) -> Array:
    """The chip's bias (Co,) int64 of an IntConv, for integers larger by 128 where the zero point is -128."""
    total = w.astype(np.int64).reshape(len(w), -1).sum(axis=1)
    wide = bias.astype(np.int64)
    wide = wide + UNSIGNED * total * (x_zero == UNSIGNED)
    return wide - (np.int64(UNSIGNED) << shift.astype(np.int64)) * (y_zero == UNSIGNED)


class OneShift(Shifted):
    """Shifted layers whose biases fit the chip's 16 bits."""

    def constants(self, quantised: Quantised, node: Node, weights: LayerWeights) -> Mapping[str, Array]:
        """The weights, and the nearest bias that fits."""
        zeros = (quantised.zeros.get(node.inputs[0], 0), quantised.zeros.get(node.output, 0))
        shift = quantised.graph.constants[node.inputs[3]]
        own = chip_bias(weights.w, weights.bias, shift, *zeros)
        bias = weights.bias + np.clip(own, -MOST_BIAS - 1, MOST_BIAS) - own
        return {node.inputs[1]: weights.w, node.inputs[2]: bias.astype(np.int32)}


ONE_SHIFT = OneShift()
"""The layer form of BM1684."""


NEARLY = 1.001
"""Tolerance: a value equal to the limit does not exceed it."""


@frozen
class RescaleAtLimits:
    """Rescales where a tensor that is clipped at a limit would share the scale of one that exceeds it.

    Copies come before a Clip whose operand has other readers, and before a Concat or another operator whose
    operands share a scale. histograms: of the tensors with free scales. select: the nodes that become integer.
    limits: of the images that are rescaled.
    """

    histograms: Histograms
    select: Select
    limits: ImageLimits
    __name__ = "rescale_at_limits"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with rescaled copies."""
        nodes = self.select(graph)
        free = {name: self.histograms[name].largest for name in tensors_of(nodes) if name in self.histograms}
        given = [name for name in tensors_of(nodes) if name not in self.histograms]
        demands = constraints(graph, nodes, self.histograms, given)
        if not demands.ceilings:
            return graph
        ties = tying(graph, _without_arithmetic(nodes), frozenset(demands.equal))
        found = {clip: clip.inputs[:1] for clip in ties if _cuts(graph, clip, ties, free, demands)}
        left = {node: pairs for node, pairs in ties.items() if node not in found}
        return with_rescaled(graph, self.limits, {**found, **_limited_operands(left, free, demands)}, "limited")


def _cuts(
    graph: Graph,
    clip: Node,
    ties: Mapping[Node, Sequence[Pair]],
    free: Mapping[str, float],
    demands: ScaleConstraints,
) -> bool:
    """Whether a Clip's limit would clip its operand for readers other than a Clip."""
    if not is_relu(clip) or clip.output not in demands.ceilings or clip.inputs[0] not in free:
        return False
    class_of = components(free, (pair for node in ties if node is not clip for pair in ties[node]))
    leader = class_of[clip.inputs[0]]
    beyond = demands.ceilings[clip.output] * 127 * NEARLY
    return any(
        free[name] > beyond and (name in graph.outputs or not ties.keys() >= {*graph.readers[name]})
        for name in class_of
        if class_of[name] == leader
    )


def _limited_operands(
    ties: Mapping[Node, Sequence[Pair]], free: Mapping[str, float], demands: ScaleConstraints
) -> dict[Node, Collection[str]]:
    """For each joining node, the operands clipped at a limit that another operand exceeds."""
    joins = joining(ties, free)
    pairs = [pair for node in ties if node not in joins for pair in ties[node]]
    found: dict[Node, Collection[str]] = {}
    for node in joins:
        class_of = components(free, pairs)
        operands = [name for name in data_inputs(node) if name in free]
        limits = {name: _limit(class_of, name, demands.ceilings) for name in operands}
        reach = {name: min(limits[name], _reach(class_of, name, free)) for name in operands}
        ended = {name for name in operands if limits[name] * NEARLY < max(reach.values())}
        found |= {node: ended} if ended else {}
        pairs += [(name, node.output) for name in operands if name not in ended]
    return found


def _limit(class_of: Mapping[str, str], tensor: str, ceilings: Mapping[str, float]) -> float:
    """The largest value that a tensor's scale may represent."""
    return min(
        (ceilings[name] * 127 for name in _class(class_of, tensor) if name in ceilings), default=float("inf")
    )


def _reach(class_of: Mapping[str, str], tensor: str, free: Mapping[str, float]) -> float:
    return max(free[name] for name in _class(class_of, tensor))


def _class(class_of: Mapping[str, str], tensor: str) -> Iterable[str]:
    """The tensors that share a tensor's scale."""
    return (name for name, leader in class_of.items() if leader == class_of[tensor])
