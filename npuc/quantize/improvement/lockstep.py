"""Improves the convolutions of the integer network one by one, each on the inputs that it receives.

A layer's inputs come from the preceding layers, already improved, so later layers can compensate for their errors.
A layer keeps the proposal with the least error on the held-out samples, or stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from math import prod

import numpy as np

from npuc.ir import Array, Graph, Node
from npuc.ops import build as build_graph
from npuc.ops import rebuild
from npuc.ops.accumulators import accumulator_bound
from npuc.ops.attributes import ACTIVATION, GROUP, SELECTS
from npuc.quantize.arithmetic.steadiness import better
from npuc.quantize.arithmetic.weights import ACCUMULATOR_LIMIT
from npuc.quantize.improvement.evidence import Sampled, float_bias, taps_under
from npuc.quantize.improvement.proposals import JudgedLayer, Proposal, rounded_in_turn
from npuc.quantize.network.construction import IntegerLayer, LayerEncoding, LayerWeights, Quantised


def weighted_nodes(nodes: Sequence[Node]) -> tuple[Node, ...]:
    """The float convolutions whose weights are rounded: not those that only select elements."""
    return tuple(node for node in nodes if node.op == "Conv" and not SELECTS(node))


def improve_layers(
    graph: Graph,
    quantised: Quantised,
    layers: LayerEncoding,
    sampled: Sampled,
    proposals: Sequence[Proposal],
    depth: int,
) -> Quantised:
    """The integer network with the weights and biases that the proposals give, each layer on its own.

    graph: the float graph that was quantised; layers: how its convolutions are read; sampled: of the graph's
    `weighted_nodes`. depth: a layer with more inputs per output channel keeps its weights, as rounding them in
    turn takes time cubic in their number.
    """
    integer = quantised.graph
    constants = dict(integer.constants)
    values = {name: np.stack([feed[name] for feed in sampled.feeds]) for name in integer.inputs}
    last = {name: place for place, node in enumerate(integer.nodes) for name in _data(node, constants)}
    done = 0
    for position, node in enumerate(integer.nodes):
        found = layers.layer(quantised, node)
        if found is None or found.source not in sampled.witnesses:
            continue
        read = {name for name, place in last.items() if place >= position}
        values = _run(integer, integer.nodes[done:position], constants, values, read)
        done = position
        allowed = [each for each in proposals if each is not rounded_in_turn or _depth(integer, node) <= depth]
        layer = _layer(graph, quantised, sampled, node, found, values[node.inputs[0]])
        constants.update(layers.constants(quantised, node, _improve_layer(layer, found.weights, allowed)))
    return replace(quantised, graph=rebuild(integer, integer.nodes, constants))


def _depth(integer: Graph, node: Node) -> int:
    return prod(integer.shape(node.inputs[1])[1:])


def _data(node: Node, constants: Mapping[str, Array]) -> list[str]:
    return [name for name in node.inputs if name and name not in constants]


def _improve_layer(layer: JudgedLayer, best: LayerWeights, proposals: Sequence[Proposal]) -> LayerWeights:
    """The best of a layer's weights and its proposals; each proposal starts from the best so far."""
    least = layer.error(best)
    for proposal in proposals:
        candidate = proposal(layer, best)
        error = layer.error(candidate)
        if better(error, least) and accumulator_bound(candidate.w, candidate.bias).max() < ACCUMULATOR_LIMIT:
            best, least = candidate, error
    return best


def _layer(
    graph: Graph, quantised: Quantised, sampled: Sampled, node: Node, found: IntegerLayer, x: Array
) -> JudgedLayer:
    """The data by which the layer is judged, in steps of its scales."""
    source = graph.producers[found.source]
    witness = sampled.witnesses[found.source]
    x_scale, y_scale = quantised.scales[node.inputs[0]], found.scale
    w = graph.constants[source.inputs[1]]
    x_zero = quantised.zeros.get(node.inputs[0], 0)
    maps = x[:, 0]  # the witness is of the first image of a batch, too
    taps = taps_under(maps, node, w.shape, witness.places, GROUP(node), x_zero)
    return JudgedLayer(
        w=w.reshape(len(w), -1),
        ratio=x_scale / y_scale,
        bias=float_bias(graph, source).astype(np.float64) / y_scale,
        found=taps.astype(np.float32) - np.float32(x_zero),
        results=witness.results / np.float32(y_scale),
        mean=witness.mean / x_scale,
        sample=witness.places.sample,
        training=sampled.training[witness.places.sample],
        x_zero=x_zero,
        y_zero=found.zero,
        lowest=found.lowest,
        largest=found.largest,
        limited=bool(ACTIVATION(source)),
    )


def _run(
    integer: Graph,
    nodes: Sequence[Node],
    constants: Mapping[str, Array],
    values: Mapping[str, Array],
    read: Collection[str],
) -> dict[str, Array]:
    """Of these tensors the values before these nodes, and behind them, for all samples.

    onnxruntime computes all nodes in one session, as opening one takes longer than to run a small layer.
    """
    from npuc.reference import integer_session

    kept = {name: value for name, value in values.items() if name in read}
    names = [name for node in nodes for name in node.outputs if name in read]
    if not names:
        return kept
    held = {name: constants[name] for node in nodes for name in node.inputs if name in constants}
    given = {name for node in nodes for name in _data(node, constants)} & values.keys()
    types = {name: integer.tensors[name] for name in values if name in given}
    count = len(next(iter(values.values())))
    run = integer_session(build_graph("layers", nodes, types, names, held, integer.operators), names, count)
    found = {
        name: np.empty((count, *integer.shape(name)), integer.tensors[name].dtype) for name in names
    }  # of all samples at once: maps are large
    for index in range(count):
        results = run.run(names, {name: values[name][index, ...] for name in types})
        for name, value in zip(names, results, strict=True):
            found[name][index] = value
    return kept | found
