"""Weights rounded so that their errors cancel, whatever the samples: for models with scales of their own.

The inputs under a kernel resemble each other, and behind a ReLU their mean is far from zero. So much of a layer's
error is the sum of its weights' errors times that mean. To the nearest integer, K weights leave a sum of about
sqrt(K / 12) steps. Here some weights, those nearest to the middle between two integers, take the other one, until
the errors of each kernel and then those of each output channel sum to half a step at most. Source: Guo et al.,
"SQuant: On-the-Fly Data-Free Quantization via Diagonal Hessian Approximation", 2022.

Balancing enlarges the errors of single weights, so it does not suit every layer. Noise over the whole range of
8-bit inputs shows which layers it suits, and the mean of every tensor, which the bias needs. For float inputs
synthetic samples do not show that, as their range is unknown.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import prod

import numpy as np

from npuc.ir import Array
from npuc.ops import rebuild
from npuc.ops.accumulators import accumulator_bound
from npuc.quantize.arithmetic.weights import ACCUMULATOR_LIMIT, blocks
from npuc.quantize.improvement.evidence import sample_windows
from npuc.quantize.improvement.levels import Level
from npuc.quantize.improvement.lockstep import improve_layers, weighted_nodes
from npuc.quantize.improvement.proposals import JudgedLayer, bias_by_weights
from npuc.quantize.improvement.search import FEWEST_SAMPLES, TrialNetwork
from npuc.quantize.network.construction import LayerWeights
from npuc.samples.loading import Samples


def without_data(network: TrialNetwork, samples: Samples, level: Level) -> TrialNetwork:
    """The network with weights and biases that need no data of the user's.

    If the level makes corrections and all inputs are 8-bit integers, whose synthetic samples are noise over their
    whole range, every layer takes what has the least error there: its weights as they are or balanced, and with
    or without `bias_by_weights`. Otherwise all weights are balanced.
    """
    given = [network.graph.tensors[name].dtype for name in network.graph.inputs]
    noise = samples.synthetic and len(samples) >= FEWEST_SAMPLES and {*given} <= {"int8", "uint8"}
    return choose_weights(network, samples) if level.proposals and noise else balance_network(network)


def choose_weights(network: TrialNetwork, samples: Samples) -> TrialNetwork:
    """The network with the better weights of every layer, by half of the samples; the others give the means."""
    feeds = list(samples.feeds())
    evidence = sample_windows(network.graph, weighted_nodes(network.nodes), feeds, np.arange(len(feeds)) % 2 == 1)
    proposals = (layer_balanced, bias_by_weights)
    made = improve_layers(network.graph, network.quantised, network.layers, evidence, proposals, depth=0)
    return replace(network, integer=made)


def layer_balanced(layer: JudgedLayer, weights: LayerWeights) -> LayerWeights:
    """A proposal: the layer's weights balanced, with the bias of the float network."""
    wanted = (layer.exact() * weights.power[:, None]).reshape(*weights.w.shape[:2], -1)
    return layer.with_bias(
        replace(weights, w=balance_errors(wanted).astype(np.int8).reshape(weights.w.shape)), layer.bias
    )


def balance_network(network: TrialNetwork) -> TrialNetwork:
    """The network with the weights of its integer convolutions balanced."""
    quantised, graph, layers = network.quantised, network.graph, network.layers
    sources = {node.output: graph.constants[node.inputs[1]] for node in weighted_nodes(network.nodes)}
    integer = quantised.graph
    constants = dict(integer.constants)
    for node in integer.nodes:
        found = layers.layer(quantised, node)
        if found is not None and found.source in sources:
            ratio = quantised.scales[node.inputs[0]] / found.scale
            zero = quantised.zeros.get(node.inputs[0], 0)
            weights = _balance_layer(found.weights, sources[found.source], ratio, zero)
            constants.update(layers.constants(quantised, node, weights))
    made = replace(quantised, graph=rebuild(integer, integer.nodes, constants))
    return replace(network, integer=made)


def _balance_layer(weights: LayerWeights, w: Array, ratio: float, x_zero: int) -> LayerWeights:
    """The layer's weights balanced; w: (Co, ...) float. Unchanged if an accumulator could then exceed 32 bits."""
    flat = w.reshape(len(w), prod(w.shape[1:]))
    found = np.empty(flat.shape, np.int8)
    for at in blocks(flat):
        wanted = flat[at].astype(np.float64) * (ratio * weights.power[at, None])
        found[at] = balance_errors(wanted.reshape(len(wanted), w.shape[1], -1)).reshape(wanted.shape)
    made = replace(weights, w=found.reshape(w.shape))
    made = replace(made, bias=weights.round_bias(weights.bias - x_zero * (made.total - weights.total)))
    return made if accumulator_bound(made.w, made.bias).max() < ACCUMULATOR_LIMIT else weights


def balance_errors(wanted: Array) -> Array:
    """Integers -128..127 (Co, kernels, taps), each a neighbour of the weight in steps, that balance the errors.

    Weights beyond that range become its limits; their errors do not count.
    """
    found = np.clip(np.rint(wanted), -128, 127)
    errors = np.where((wanted >= -128) & (wanted <= 127), found - wanted, 0.0)
    kernels, of_kernels = (each.reshape(-1, wanted.shape[2]) for each in (found, errors))
    for rows, taps, signs in _moves(of_kernels):
        kernels[rows, taps] -= signs
    for rows, columns, signs in _moves(errors.sum(axis=2)):
        taps = (errors[rows, columns] * signs[:, None]).argmax(axis=1)
        found[rows, columns, taps] -= signs
        errors[rows, columns, taps] -= signs
    return found


def _moves(errors: Array) -> Iterator[tuple[Array, Array, Array]]:
    """Rows, columns and signs of the steps that take the errors' sum in each row to half a step at most.

    The largest error moves first. The errors are changed in place.
    """
    left = np.rint(errors.sum(axis=1))
    while len(rows := np.flatnonzero(left)):
        signs = np.sign(left[rows])
        columns = (errors[rows] * signs[:, None]).argmax(axis=1)
        errors[rows, columns] -= signs
        left[rows] -= signs
        yield rows, columns, signs
