"""Cross-layer equalisation and channel splitting: the channels of a tensor are brought to similar sizes.

A factor per channel moves through operators that are homogeneous of degree one (ReLU, PReLU, sums, pooling, a
gate's product) from the convolutions that write the channel, whose outputs it divides, to those that read it,
whose weights it multiplies. Weights have a scale per output channel, so dividing costs nothing; multiplying costs
resolution only if a reader sums over channels. Source: Nagel et al., "Data-Free Quantization Through Weight
Equalization and Bias Correction", 2019, with the magnitudes of activations in place of the writers' weights.

For a ReLU's channel v that exceeds a limit T, min(v, T) and min(max(v - T, 0), T) are two channels whose sum is v
up to 2 T, and which are read with the same weights. Both stay within the limit, so the tensor's steps are half as
large, also for the split channel over its whole range. Every split costs one more channel to write and to read.
After Zhao et al., "Improving Neural Network Quantization without Retraining using Outlier Channel Splitting",
2019, where channels are halved instead.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import field, replace

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops.attributes import ACTIVATION, GROUP, SELECTS
from npuc.quantize.arithmetic.steadiness import octaves, upward
from npuc.quantize.arithmetic.weights import in_groups
from npuc.quantize.calibration.histograms import tensor_values
from npuc.quantize.network.renaming import rename_tensors
from npuc.quantize.scales.assignment import components
from npuc.text.escaping import Names

HOMOGENEOUS = (
    "Relu",
    "PRelu",
    "LeakyRelu",
    "MaxPool",
    "AveragePool",
    "GlobalAveragePool",
    "GlobalMaxPool",
    "Identity",
)
"""Operators on each channel alone with f(a x) = a f(x) for every a > 0."""

STEPS = 16
"""Steps per octave: a few samples do not determine a channel's magnitude more precisely."""
REACH = 8.0
"""The largest factor on a channel: one that is almost inactive on a few samples may be active on
others."""


@frozen
class EqualisationGroup:
    """Tensors whose channels are scaled together, and their writers and readers: convolutions and borders."""

    tensors: tuple[str, ...]
    writers: tuple[Node, ...]
    readers: tuple[Node, ...]


def groups(graph: Graph, borders: Collection[Node] = ()) -> tuple[EqualisationGroup, ...]:
    """The groups of tensors through which a factor per channel can move.

    borders: products with a constant per channel, (1, C, 1, 1), which take a factor as convolutions do.
    """
    images = [name for name, each in graph.tensors.items() if len(each.shape) == 4 and name not in graph.constants]
    class_of = components(images, _links(graph))
    members: dict[str, list[str]] = {}
    for name, leader in class_of.items():
        members.setdefault(leader, []).append(name)
    found = (_group(graph, tensors, borders) for tensors in members.values())
    return tuple(each for each in found if each is not None)


def _links(graph: Graph) -> list[tuple[str, str]]:
    """Pairs of tensors whose channels must have the same factors."""
    found: list[tuple[str, str]] = []
    for node in graph.nodes:
        if node.op in HOMOGENEOUS and len(graph.shape(node.output)) == 4:
            found.append((node.inputs[0], node.output))
        elif node.op == "Add" and _same_channels(graph, node):
            found += [(node.inputs[0], node.inputs[1]), (node.inputs[0], node.output)]
        elif node.op == "Mul" and _same_channels(graph, node):
            found.append((node.inputs[_factor_operand(graph, node)], node.output))
    return found


def _same_channels(graph: Graph, node: Node) -> bool:
    shapes = [graph.shape(name) for name in node.inputs]
    variable = not any(name in graph.constants for name in node.inputs)
    return variable and all(len(shape) == 4 for shape in shapes) and shapes[0][1] == shapes[1][1]


def _factor_operand(graph: Graph, node: Node) -> int:
    """The operand of a product that carries the factor: the larger one, as the smaller is a gate."""
    sizes = [graph.tensors[name].size for name in node.inputs]
    return int(sizes[1] > sizes[0])


def _group(graph: Graph, tensors: Sequence[str], borders: Collection[Node]) -> EqualisationGroup | None:
    """The group of these tensors; None if a factor cannot pass something that writes or reads them."""
    inside, writers, readers = set(tensors), dict[Node, Node](), dict[Node, Node]()
    if inside.intersection((*graph.inputs, *graph.outputs)):
        return None
    for name in tensors:
        producer = graph.producers[name]
        if producer.op == "Conv" or producer in borders:
            writers[producer] = producer
        elif not _passes(graph, producer, inside):
            return None
        for reader in graph.readers[name]:
            if (reader.op == "Conv" and reader.inputs[0] == name) or reader in borders:
                readers[reader] = reader
            elif not _passes(graph, reader, inside):
                return None
    if not writers or not readers:
        return None
    if any(_is_closed(node) for node in writers.values()) or any(SELECTS(node) for node in readers.values()):
        return None
    return EqualisationGroup(tuple(tensors), tuple(writers.values()), tuple(readers.values()))


def _passes(graph: Graph, node: Node, inside: set[str]) -> bool:
    """Whether the factor passes through this node between members of the group."""
    if node.op in HOMOGENEOUS:
        return node.output in inside
    if node.op == "Add":
        return ACTIVATION(node) in ("", "Relu") and {*node.inputs, node.output} <= inside
    return (
        node.op == "Mul"
        and {node.inputs[_factor_operand(graph, node)], node.output} <= inside
        and sum(name in inside for name in node.inputs) == 1
    )


def _is_closed(node: Node) -> bool:
    """Whether a factor cannot be taken out of the convolution, because it clips or only selects elements."""
    return ACTIVATION(node) not in ("", "Relu") or bool(SELECTS(node))


def sizes(
    graph: Graph, found: Sequence[EqualisationGroup], feeds: Sequence[Mapping[str, Array]]
) -> dict[str, Array]:
    """The largest magnitude of every channel of each group's tensors over the samples: tensor -> (C,)."""
    largest = {name: np.zeros(graph.shape(name)[1]) for group in found for name in group.tensors}
    for values in tensor_values(graph, feeds, tuple(largest)):
        for name, value in values.items():
            largest[name] = np.maximum(largest[name], np.abs(value).max(axis=(0, 2, 3)))
    return largest


@frozen
class Equalised:
    """The graph, and the divisors (C,) and old names of the tensors whose channels were divided."""

    graph: Graph
    factors: Mapping[str, Array] = field(default_factory=dict[str, Array])
    names: Mapping[str, str] = field(default_factory=dict[str, str])

    def after(self, before: Equalised) -> Equalised:
        """The same, of a graph that was itself equalised: its factors together, and the names before both."""
        factors = {
            name: each * before.factors.get(self.names[name], np.float32(1)) for name, each in self.factors.items()
        }
        names = {name: before.names.get(old, old) for name, old in self.names.items()}
        return Equalised(self.graph, {**before.factors, **factors}, {**before.names, **names})


def equalise(
    graph: Graph,
    found: Sequence[EqualisationGroup],
    largest: Mapping[str, Array],
    share: float,
    *,
    one_step: bool = False,
) -> Equalised:
    """The graph with a factor per channel moved through each group. What it changes gets another name.

    share: how far activation channels are equalised where readers sum over channels: 1 fully, 0 only as far as the
    readers' weights are. Depthwise readers have a scale per channel and accept any factor, but with `one_step`, as
    all weights of a layer then have one scale, those of writers and of depthwise readers count like activations.
    """
    constants = dict(graph.constants)
    nodes = {node: node for node in graph.nodes}
    factors: dict[str, Array] = {}
    fresh = graph.names()
    names = {name: fresh.new(f"{name}/equalised") for group in found for name in group.tensors}
    for group in found:
        chosen = _factors(constants, nodes, group, largest, share, one_step=one_step)
        factors |= dict.fromkeys(group.tensors, chosen)
        for node in group.writers:
            nodes[node] = _rescale(fresh, constants, nodes[node], 1 / chosen, axis=0)
        for node in group.readers:
            nodes[node] = _rescale(fresh, constants, nodes[node], chosen, axis=1)
    built = rename_tensors(graph, nodes.values(), names, constants)
    old = {new: name for name, new in names.items()}
    return Equalised(built, {new: factors[name] for new, name in old.items()}, old)


def _factors(
    constants: Mapping[str, Array],
    nodes: Mapping[Node, Node],
    group: EqualisationGroup,
    largest: Mapping[str, Array],
    share: float,
    *,
    one_step: bool,
) -> Array:
    """The factor of each channel (C,), with geometric mean 1."""
    activation = np.max([largest[name] / max(largest[name].max(), 1e-30) for name in group.tensors], axis=0)
    convolutions = [node for node in group.readers if node.op == "Conv"]
    read = [(constants[nodes[node].inputs[1]], GROUP(node)) for node in convolutions]
    columns = [_columns(w, groups) for w, groups in read if one_step or w.shape[1] > 1]
    written = [constants[nodes[node].inputs[1]] for node in group.writers if one_step and node.op == "Conv"]
    rows = [np.abs(w).reshape(len(w), -1).max(axis=1) for w in written]
    if rows:
        activation = np.sqrt(activation * np.max([each / max(each.max(), 1e-30) for each in rows], axis=0))
    exponent = (1 + share) / 2 if rows and columns else share if columns else 1.0
    weights = np.max([each / max(each.max(), 1e-30) for each in columns], axis=0) if columns else 1.0
    alive = activation > 0
    sizes = octaves(np.maximum(activation, 1e-9), STEPS), octaves(np.maximum(weights, 1e-9), STEPS)
    logs = np.where(alive, sizes[0] * exponent - sizes[1] * (1 - exponent), 0.0)
    centre = logs[alive].mean() if alive.any() else 0.0
    return np.where(alive, np.exp2(np.clip(logs - centre, -np.log2(REACH), np.log2(REACH))), 1.0).astype(
        np.float32
    )


def _columns(w: Array, groups: int) -> Array:
    """The largest weight of every input channel (C,) of a convolution that sums over channels."""
    return in_groups(np.abs(w), groups).max(axis=(1, 3)).ravel().astype(np.float64)


def _rescale(fresh: Names, constants: dict[str, Array], node: Node, factors: Array, axis: int) -> Node:
    """A convolution with weights multiplied per output (axis 0, with the bias) or input channel (axis 1).

    Those of a border's product are multiplied per channel.
    """
    x, weights, *rest = node.inputs
    w = constants[weights]
    name = fresh.new(f"{node.output}/equalised_w")
    constants[name] = (w * _of_weights(node, w, factors, axis)).astype(np.float32)
    if axis == 0 and rest and rest[0]:
        bias = fresh.new(f"{node.output}/equalised_b")
        constants[bias] = (constants[rest[0]] * factors).astype(np.float32)
        rest = [bias, *rest[1:]]
    return replace(node, inputs=(x, name, *rest))


def _of_weights(node: Node, w: Array, factors: Array, axis: int) -> Array:
    """The factors (C,) in a shape that multiplies weights of C output (axis 0) or input channels (axis 1)."""
    if node.op == "Mul":
        return factors.reshape(1, -1, 1, 1)
    if axis == 0:
        return factors.reshape(-1, 1, 1, 1)
    of_groups = factors.reshape(GROUP(node), w.shape[1])
    return np.repeat(of_groups, len(w) // len(of_groups), axis=0)[:, :, None, None]


MOST = 0.125
"""Share of a tensor's channels that may be split."""
BITS = 12
"""Significant bits of a limit."""
ROOM = 0.8
"""A channel that reaches this share of the limit on the samples may exceed it on others, so it is split too."""


def split(graph: Graph, feeds: Iterable[Mapping[str, Array]], fixed: Collection[str] = ()) -> Graph:
    """The graph with outlier channels of ReLUs between dense convolutions split; unchanged if there are none.

    feeds: samples that determine the range of every channel. fixed: tensors that stay as they are.
    """
    writers = [node for node in graph.nodes if _splits(graph, node) and node.output not in fixed]
    reached = _reach(graph, [node.output for node in writers], feeds)
    constants, nodes = dict(graph.constants), {node: node for node in graph.nodes}
    names: dict[str, str] = {}
    fresh = graph.names()  # a tensor with more channels differs from the ONNX model's tensor
    for writer in writers:
        largest = float(reached[writer.output].max())
        limit = upward(largest, BITS) / 2 if largest > 0 else 0.0
        outliers = np.flatnonzero(reached[writer.output] > ROOM * limit)
        if 0 < len(outliers) <= MOST * len(reached[writer.output]):
            names[writer.output] = fresh.new(f"{writer.output}/split")
            nodes[writer] = _split_writer(fresh, constants, nodes[writer], outliers, limit)
            for reader in graph.readers[writer.output]:
                nodes[reader] = _split_reader(fresh, constants, nodes[reader], outliers)
    if not names:
        return graph
    return rename_tensors(graph, nodes.values(), names, constants)


def _splits(graph: Graph, node: Node) -> bool:
    """Whether it is a dense convolution with a ReLU that only dense convolutions read."""
    readers = graph.readers[node.output]
    return (
        _dense(node)
        and ACTIVATION(node) == "Relu"
        and node.output not in graph.outputs
        and bool(readers)
        and all(_dense(reader) and reader.inputs[0] == node.output for reader in readers)
    )


def _dense(node: Node) -> bool:
    return node.op == "Conv" and GROUP(node) == 1 and not SELECTS(node)


def _reach(graph: Graph, names: list[str], feeds: Iterable[Mapping[str, Array]]) -> dict[str, Array]:
    """The largest value of every channel of each tensor over the samples: tensor -> (C,)."""
    from npuc.reference import graph_session

    if not names:
        return {}
    found = {name: np.zeros(graph.shape(name)[1]) for name in names}
    run = graph_session(graph, names)
    for feed in feeds:
        for name, value in zip(names, run.run(names, dict(feed)), strict=True):
            found[name] = np.maximum(found[name], value.max(axis=(0, 2, 3)))
    return found


def _split_writer(fresh: Names, constants: dict[str, Array], node: Node, outliers: Array, limit: float) -> Node:
    """The convolution, extended to write the part above the limit as well."""
    x, weights, *rest = node.inputs
    w = constants[weights]
    bias = constants[rest[0]] if rest and rest[0] else np.zeros(len(w), np.float32)
    named = tuple(fresh.new(f"{node.output}/split_{key}") for key in "wb")
    constants[named[0]] = np.concatenate([w, w[outliers]])
    constants[named[1]] = np.concatenate([bias, bias[outliers] - np.float32(limit)])
    limits = {"activation": "Clip", "min": 0.0, "max": limit}
    return replace(node, inputs=(x, *named), attrs={**node.attrs, **limits})


def _split_reader(fresh: Names, constants: dict[str, Array], node: Node, outliers: Array) -> Node:
    """The convolution, extended to read both channels with the same weights."""
    x, weights, *rest = node.inputs
    name = fresh.new(f"{node.output}/split_v")
    constants[name] = np.concatenate([constants[weights], constants[weights][:, outliers]], axis=1)
    return replace(node, inputs=(x, name, *rest))
