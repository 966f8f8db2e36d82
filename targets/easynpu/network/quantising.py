"""EasyNPU's quantisation of a network: which nodes become integer, and by which accuracy levels.

Short-cuts over a single convolution, folded into a tap: the document's psum + m * ifmap within one word.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from npuc.errors import DataError
from npuc.flag import POWER_OF_TWO
from npuc.frozen import frozen
from npuc.ir import Array, Attr, Graph, Node
from npuc.ops.attributes import ACTIVATION
from npuc.ops.windows import window_of
from npuc.passes.frames import surround_frames
from npuc.passes.rewriting.rules import Rewriter, rewrite
from npuc.passes.scales import RescaleCoarseOperands
from npuc.pipeline import Hook, run_passes
from npuc.quantize.arithmetic.weights import quantise_weights
from npuc.quantize.calibration.histograms import Histogram, HistogramSource, source, uniform
from npuc.quantize.improvement.balance import without_data
from npuc.quantize.improvement.levels import LEVELS
from npuc.quantize.improvement.mixed import Host, mix_precision, nodes_without
from npuc.quantize.improvement.search import Recipe, Trial, TrialNetwork, best_network, best_weights, teaches
from npuc.quantize.network.build import quantiser
from npuc.quantize.scales.constraints import constraints_of, integer_nodes, tensors_of
from npuc.quantize.scales.model_scales import Steps, only_of_inputs
from npuc.quantize.scales.results import calibrate, node_histograms
from npuc.quantize.scales.zero_points import IN_BIASES
from npuc.quantize.table import expect_machine
from npuc.samples.loading import Samples
from npuc.target import Options
from npuc.targets.easynpu.flags import DOCUMENTED, ISA
from npuc.targets.easynpu.layers import support
from npuc.targets.easynpu.layers.kernels import IMAGES
from npuc.targets.easynpu.layers.rewrites import pads_cheaply
from npuc.targets.easynpu.layers.tables import best_table
from npuc.targets.easynpu.machine.parameters import Machine

STEPS = 24
"""The number of scales to try for a tensor: four an octave, downwards from the largest value / 127."""


@frozen
class FoldShortCuts:
    """Add(Conv(x), x) becomes one Conv, whose tap over the pixel itself is larger by 1.

    The convolution has as many outputs as inputs, stride 1 and a tap over the pixel, and only the sum reads it.
    The result is exact in real numbers, and rounded once instead of once per convolution and sum. But the step of
    the weights must now suit 1 as well as the other weights: where that costs more accuracy than the rounding, by
    the histograms of the values, the sum stays. Source: easynpu, Short_cut operator.
    """

    histograms: Mapping[str, Histogram]
    __name__ = "fold_short_cuts"

    def __call__(self, graph: Graph) -> Graph:
        """The graph with short-cuts folded into weights where that costs no accuracy."""
        return rewrite(graph, self._fold)

    def _fold(self, rewriter: Rewriter, node: Node) -> bool:
        found = _short_cut(rewriter, node)
        if found is None:
            return False
        conv, w = found
        folded = _with_pixel(conv, w)
        if not self._pays(conv, node, w, folded):
            return False
        activation: dict[str, Attr] = {
            key: node.attrs[key] for key in ("activation", "min", "max") if key in node.attrs
        }
        inputs = (conv.inputs[0], rewriter.constant(folded, f"{node.output}/short_cut"), *conv.inputs[2:])
        sources = rewriter.sources(conv, node)
        rewriter.replace(
            node, Node("Conv", inputs, node.outputs, {**conv.attrs, **activation}, node.name, sources)
        )
        return True

    def _pays(self, conv: Node, add: Node, w: Array, folded: Array) -> bool:
        """Whether the squared error of the folded convolution is at most that of convolution and sum."""
        names = (conv.inputs[0], conv.output, add.output)
        if any(name not in self.histograms or not self.histograms[name].energy for name in names):
            return False
        x, result, total = (self.histograms[name] for name in names)
        tied = _scales(max(x.largest, result.largest))
        shared = float(tied[np.argmin(x.error(tied) + result.error(tied))])
        own = float(_scales(x.largest)[np.argmin(x.error(_scales(x.largest)))])
        sums = shared * 2.0 ** np.arange(8)
        apart = _weight_error(w, shared, shared) * x.energy + float(
            x.error(np.array([shared]))[0]
            - x.error(np.array([own]))[0]
            + result.error(np.array([shared]))[0]
            + total.error(sums).min()
        )
        y = _scales(total.largest)
        together = _weight_error(folded, own, float(y[np.argmin(total.error(y))])) * x.energy
        return together + float(total.error(y).min()) <= apart


def _short_cut(rewriter: Rewriter, node: Node) -> tuple[Node, Array] | None:
    """The convolution and its weights, if the node adds the convolution's input to its result."""
    if node.op != "Add" or ACTIVATION(node) not in ("", "Relu", "Clip"):
        return None
    for index in (0, 1):
        conv = rewriter.private(node.inputs[index])
        if conv is None or conv.op != "Conv" or conv.inputs[0] != node.inputs[1 - index] or ACTIVATION(conv):
            continue
        w = rewriter.constants.get(conv.inputs[1])
        if w is None or rewriter.shape(conv.inputs[0]) != rewriter.shape(conv.output) or w.dtype != np.float32:
            continue
        if _pixel(conv, w) is not None:
            return conv, w
    return None


def _pixel(conv: Node, w: Array) -> tuple[int, ...] | None:
    """The tap over the output's own pixel, or None."""
    window = window_of(conv, w.shape[2:])
    taps = tuple(begin // dilation for begin, dilation in zip(window.begins, window.dilations, strict=True))
    meets = all(begin % dilation == 0 for begin, dilation in zip(window.begins, window.dilations, strict=True))
    inside = all(tap < extent for tap, extent in zip(taps, w.shape[2:], strict=True))
    return taps if meets and inside and set(window.strides) == {1} else None


def _with_pixel(conv: Node, w: Array) -> Array:
    """The weights (Co, Ci/group, *kernel) with 1 added to each channel's tap over its own pixel."""
    channels = np.arange(len(w))
    folded = w.copy()
    folded[(channels, channels % w.shape[1], *(_pixel(conv, w) or ()))] += 1
    return folded


def _scales(largest: float) -> Array:
    return largest / 127 * np.exp2(-np.arange(STEPS) / 4)


def _weight_error(w: Array, x_scale: float, y_scale: float) -> float:
    """The squared error that rounding the weights causes, per unit of squared input."""
    found = quantise_weights(w, None, x_scale, y_scale)
    step = np.exp2(-found.shift.astype(np.float64)) * y_scale / x_scale
    error = found.w * step.reshape(-1, *(1 for _ in w.shape[1:])) - w
    return float(np.sum(error**2)) / len(w)


def integer(graph: Graph, machine: Machine) -> tuple[Node, ...]:
    """The nodes that run on the array."""

    def accepted(node: Node) -> bool:
        return node.op in support.ARRAY and support.refusal(graph, node, machine) is None

    return integer_nodes(graph, accepted)


def _calibrated(
    find: HistogramSource,
    graph: Graph,
    samples: Samples,
    machine: Machine,
    table: Mapping[str, Steps],
    hook: Hook | None,
    *,
    factors: bool,
) -> tuple[Graph, dict[str, Steps], dict[str, Histogram]]:
    """The graph after the passes that depend on ranges, the scales that its model gives, other histograms."""
    given, found = calibrate(find, graph, samples, integer(graph, machine), table)
    copies = RescaleCoarseOperands(
        found,
        lambda each: integer(each, machine),
        lambda each, some, histograms: constraints_of(each, some, given, histograms, factors=factors),
        IMAGES,
    )
    graph = run_passes(graph, (FoldShortCuts(found), copies), hook)
    nodes = integer(graph, machine)
    tensors = tensors_of(nodes)
    new = [name for name in tensors if name not in found and name not in given]
    found |= node_histograms(find, graph, samples, new, nodes, given) if new else {}
    found = {name: found[name] for name in tensors if name in found}
    return graph, {name: given[name] for name in tensors if name in given}, found


def network(
    graph: Graph, samples: Samples, machine: Machine, options: Options, hook: Hook | None = None
) -> tuple[TrialNetwork, tuple[Trial, ...]]:
    """The integer network, and the trials that were made to improve it.

    A model with scales of its own keeps them; its weights are balanced, or improved on samples. Documented
    instructions have no words for the padding of maps with a zero point. Without a search, sums keep equal scales:
    they then continue on the sums of a convolution, without a word of their own.
    """
    level, documented = LEVELS[options.level], options.flag(ISA) == DOCUMENTED
    method = options.method or level.method
    factors = bool(level.variants) and teaches(samples) and not documented
    find = source(options.histograms, synthetic=samples.synthetic)
    if documented and options.scales_in:
        limit, remedy = "words that add and pool at any scales", "leave out --isa documented or --scales-in"
        raise DataError("E406", "the document adds and pools at equal scales", limit=limit, remedy=remedy)
    table = expect_machine(options.scales_in, machine.scales)
    graph = surround_frames(graph)
    graph, given, found = _calibrated(find, graph, samples, machine, table, hook, factors=factors)
    free_scales = not given or only_of_inputs(graph)
    if documented:  # the document adds and pools at equal scales: only the ranges of the model's steps are used
        found |= {name: uniform(steps.reach) for name, steps in given.items()}
        found, given = {name: found[name] for name in tensors_of(integer(graph, machine))}, {}
    power_of_two = machine.scales == POWER_OF_TWO
    make = quantiser(best_table, power_of_two=power_of_two, factors=factors)

    def drawn(host: Host) -> TrialNetwork:
        chosen = nodes_without(integer(graph, machine), host)
        return TrialNetwork(graph, chosen, found, {}, make(graph, chosen, found, method, given))

    def best(host: Host) -> tuple[TrialNetwork, tuple[Trial, ...]]:
        zeros = None if documented else replace(IN_BIASES, power_of_two=power_of_two, pads=pads_cheaply)
        recipe = Recipe(
            lambda each: nodes_without(integer(each, machine), host),
            make,
            zero_points=zeros,
            splits=not options.one_scale,
            equalises=not options.one_scale,
            histograms=find,
            given=given,
        )
        if free_scales:
            return best_network(graph, recipe, samples, level, options.method, found)
        plain = drawn(host)
        return best_weights(plain, recipe, samples, level, without_data(plain, samples, level))

    if not options.mixed:
        return best(frozenset())
    return mix_precision(graph, lambda host: drawn(host).quantised, best, samples)
