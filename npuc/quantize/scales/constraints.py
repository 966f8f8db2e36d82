"""The choice of the float graph's nodes that become integer, and the constraints on their tensors' scales."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import ACTIVATION, KERNEL_SHAPE, MAX
from npuc.ops.movement import KEPT_INTEGERS, MOVEMENT
from npuc.ops.quantisation import CONVERSIONS
from npuc.ops.windows import AVERAGES, SELECTION
from npuc.quantize.arithmetic.tables import TABLE_OPS, is_relu
from npuc.quantize.arithmetic.weights import MOST_SHIFT, average_taps, blocks
from npuc.quantize.calibration.histograms import Histogram
from npuc.quantize.scales.assignment import Ratio, ScaleConstraints
from npuc.quantize.scales.model_scales import steps_of

NOT_KNOWN: Mapping[str, Histogram] = {}


def integer_nodes(graph: Graph, accepts: Callable[[Node], bool]) -> tuple[Node, ...]:
    """The nodes that run on int8: those the target accepts, and data movement between them.

    A concatenation counts as such movement if any of its operands is int8: the others are quantised for it. A
    conversion runs on int8 next to any of these nodes, and so does movement that the target accepts, for which it
    has an operation. Tensors that the model itself dequantises are int8 already.
    """
    after: set[str] = set()
    forward: list[Node] = []
    for node in graph.nodes:
        if node.op == "DequantizeLinear" and steps_of(graph, node) is not None:
            after.update(node.outputs)
        computed = [name for name in node.inputs if name not in graph.constants]
        moves = node.op in (*MOVEMENT, *CONVERSIONS) and any(name in after for name in computed)
        accepted = accepts(node)
        if moves or (accepted and node.op not in MOVEMENT):
            after.update(node.outputs)
        if moves or accepted or node.op in CONVERSIONS:
            forward.append(node)
    before: set[str] = set()
    kept: list[Node] = []
    for node in reversed(forward):
        done = node.op in MOVEMENT and accepts(node)
        ends = (node.op in CONVERSIONS or done) and any(name in after for name in node.inputs)
        computes = node.op not in (*MOVEMENT, *CONVERSIONS)
        if computes or ends or before.intersection(node.outputs):
            before.update(data_inputs(node))
            kept.append(node)
    return tuple(reversed(kept))


def data_inputs(node: Node) -> tuple[str, ...]:
    """The inputs that carry activations."""
    return node.inputs[:1] if node.op in ("Conv", "PRelu", "Pow") else node.inputs


def tensors_of(nodes: Sequence[Node]) -> tuple[str, ...]:
    """The float tensors that get an int8 form, in order of appearance."""
    found = dict.fromkeys(name for node in nodes for name in (*data_inputs(node), *node.outputs))
    return tuple(found)


def average_kernel(graph: Graph, node: Node) -> tuple[int, int]:
    """The window of an average or global pooling node."""
    if node.op.startswith("Global"):
        height, width = graph.shape(node.inputs[0])[2:]
        return height, width
    height, width = KERNEL_SHAPE(node)
    return height, width


WEIGHTED = ("Conv", "Add", *AVERAGES)
"""Operators that multiply what they read by numbers of 8 bits: weights, factors of a sum, taps of an average."""


def largest_weight(graph: Graph, node: Node) -> float:
    """The largest magnitude of the numbers by which one of WEIGHTED multiplies what it reads."""
    if node.op == "Add":
        return 1.0
    if node.op in AVERAGES:
        return 1 / math.prod(average_kernel(graph, node))
    return float(np.abs(graph.constants[node.inputs[1]]).max(initial=0))


def equal_scales(graph: Graph, nodes: Sequence[Node]) -> tuple[tuple[str, str], ...]:
    """Pairs of tensors that share scale and zero point: the integer operator between them has no arithmetic."""
    found: list[tuple[str, str]] = []
    for node in nodes:
        limits = is_relu(node) and not _between_conversions(graph, node)
        if node.op in (*KEPT_INTEGERS, *SELECTION) or limits:
            found += [(node.inputs[0], other) for other in (*node.inputs[1:], *node.outputs)]
    return tuple(found)


def _between_conversions(graph: Graph, node: Node) -> bool:
    """Whether the node's input or result is rounded to a given scale and zero point of its own."""
    producer = graph.producers.get(node.inputs[0])
    neighbours = (*graph.readers[node.output], *([producer] if producer else ()))
    return any(each.op in CONVERSIONS for each in neighbours)


def constraints_of(
    graph: Graph,
    nodes: Sequence[Node],
    given: Collection[str] = (),
    histograms: Mapping[str, Histogram] = NOT_KNOWN,
    *,
    factors: bool = False,
) -> ScaleConstraints:
    """The constraints of the operators on the scales of their tensors.

    given: tensors with known scales. An operator with its own arithmetic accepts these as they are, so it imposes
    no constraint. histograms: of tensors with known values. factors: whether sums multiply each operand by a
    factor of 8 bits, for any ratio of scales. A sum of a tensor and itself, or its positive part, does not: powers
    of two are exact.
    """
    equal = [pair for pair in equal_scales(graph, nodes) if pair[0] not in given]
    ratios: list[Ratio] = []
    ceilings: dict[str, float] = {}
    powers: list[str] = []
    sums = [node for node in nodes if factors and node.op == "Add" and not _of_one_tensor(graph, node)]
    for node in nodes:
        x, y = node.inputs[0], node.output
        if y not in given and ((node.op == "Clip" and is_relu(node)) or ACTIVATION(node) == "Clip"):
            ceilings[y] = min(ceilings.get(y, np.inf), MAX(node) / 127)
        steps = steps_of(graph, node) if node.op == "FakeQuantize" and y not in given else None
        if steps is not None:
            ceilings[y] = min(ceilings.get(y, np.inf), steps.reach / 127)
        if node in sums or any(name in given for name in (*data_inputs(node), y)):
            continue
        if node.op in ("Neg", "FakeQuantize") or selects(graph, node):
            equal.append((x, y))
        elif node.op in AVERAGES:
            exponent = average_taps(average_kernel(graph, node))[1]
            ratios.append(Ratio(y, x, -exponent, MOST_SHIFT - exponent))
        elif node.op == "Add":
            equal.append((x, node.inputs[1]))
            ratios.append(Ratio(y, x, 0, MOST_SHIFT))
        elif node.op == "Mul":
            which = factor_of(graph, node)
            powers.append(node.inputs[which])
            gain = _gain(histograms.get(node.inputs[which]))
            ratios.append(Ratio(y, node.inputs[1 - which], -gain, MOST_SHIFT))
    finite = {k: v for k, v in ceilings.items() if np.isfinite(v)}
    return ScaleConstraints(
        tuple(equal),
        tuple(ratios),
        finite,
        tuple(powers),
        unsaturated=visible(graph, nodes),
        sums=tuple((node.inputs[0], node.inputs[1], node.output) for node in sums),
    )


def _of_one_tensor(graph: Graph, node: Node) -> bool:
    """Whether both operands of a sum are one tensor or what a ReLU makes of it, which has the same scale."""
    return len({_before_relu(graph, name) for name in node.inputs}) == 1


def _before_relu(graph: Graph, name: str) -> str:
    """The tensor whose elements a ReLU, if any, has limited to this one."""
    producer = graph.producers.get(name)
    return producer.inputs[0] if producer is not None and is_relu(producer) else name


def visible(graph: Graph, nodes: Collection[Node]) -> frozenset[str]:
    """The graph's outputs and tensors that are only moved or averaged into one: users see their values.

    Saturation would make their largest values indistinguishable. The same holds for inputs of functions such as a
    Sigmoid that the host computes there, since they are not among the (integer) nodes.
    """
    found, integer = set(graph.outputs), set(nodes)
    for node in reversed(graph.nodes):
        moves = node.op in (*MOVEMENT, *SELECTION, "AveragePool") or selects(graph, node)
        if (moves or (node.op in TABLE_OPS and node not in integer)) and found.intersection(node.outputs):
            found.update(data_inputs(node))
    return frozenset(found)


def selects(graph: Graph, node: Node) -> bool:
    """Whether a Conv only selects elements of its input: it is then exact with equal scales."""
    taps = graph.constant(node.inputs[1]) if node.op == "Conv" and len(node.inputs) == 2 else None
    if taps is None or not np.isin(taps, (0, 1)).all():
        return False
    return bool((np.count_nonzero(taps.reshape(len(taps), -1), axis=1) == 1).all())


MOST_GAIN = 5
"""A product's scale is at most 2^5 times finer than its larger operand's: a gate needs no more."""
ROOM = 2
"""Octaves that a product's scale may be finer when a factor is so small that all products are small."""


def _gain(factor: Histogram | None) -> int:
    """The octaves by which a product's scale may be finer than that of its larger operand."""
    largest = factor.largest if factor is not None else 0.0
    return max(MOST_GAIN, ROOM - math.floor(math.log2(largest))) if largest > 0 else MOST_GAIN


def factor_of(graph: Graph, node: Node) -> int:
    """The operand of a product that gets a power-of-two scale: the smaller one, otherwise the second."""
    sizes = [graph.tensors[name].size for name in node.inputs]
    return 0 if sizes[0] < sizes[1] else 1


def floors(graph: Graph, nodes: Sequence[Node], histograms: Mapping[str, Histogram]) -> dict[str, float]:
    """For the result of each convolution, the deviation of the error from quantising its input.

    Finer steps would only resolve noise, at the expense of range, which is worth more, above all where the terms
    happen to cancel on a few calibration samples.
    """
    found: dict[str, float] = {}
    for node in nodes:
        if node.op == "Conv" and node.inputs[0] in histograms and node.output in histograms:
            w = graph.constants[node.inputs[1]]
            gain = np.sqrt(np.mean(_energies(w)))
            found[node.output] = float(histograms[node.inputs[0]].largest / 127 * gain / np.sqrt(12))
    return {name: floor for name, floor in found.items() if floor > 0}


def _energies(w: Array) -> Array:
    """The sum of squares of each kernel, in float64."""
    kernels = np.ascontiguousarray(w).reshape(len(w), -1)
    return np.concatenate([np.square(kernels[at], dtype=np.float64).sum(axis=1) for at in blocks(kernels)])
