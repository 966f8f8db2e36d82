"""EasyNPU's quantisation of a network: which nodes become integer, and by which accuracy levels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import cache

from npuc.flag import POWER_OF_TWO
from npuc.ir import Graph, Node
from npuc.passes.scales.rescale_coarse_operands import RescaleCoarseOperands
from npuc.pipeline import Hook, run_passes
from npuc.quantize.calibration.histograms import Histogram, HistogramSource, source, uniform
from npuc.quantize.improvement.balance import without_data
from npuc.quantize.improvement.levels import LEVELS
from npuc.quantize.improvement.mixed import Host, mixed, without
from npuc.quantize.improvement.search import Network, Recipe, Trial, best_network, best_weights, teaches
from npuc.quantize.network.build import quantiser
from npuc.quantize.scales.constraints import constraints_of, integer_nodes, tensors_of
from npuc.quantize.scales.model_scales import Steps, only_of_inputs
from npuc.quantize.scales.offsets import IN_BIASES
from npuc.quantize.scales.results import calibrated, histograms_before_host, node_histograms
from npuc.samples.loading import Samples
from npuc.target import Options
from npuc.targets.easynpu.flags import DOCUMENTED, ISA
from npuc.targets.easynpu.layers import support
from npuc.targets.easynpu.layers.borders import pads_cheaply
from npuc.targets.easynpu.layers.tables import best_table
from npuc.targets.easynpu.machine.parameters import Machine
from npuc.targets.easynpu.network.fold_short_cuts import FoldShortCuts
from npuc.targets.easynpu.network.limits import IMAGES


def integer(graph: Graph, machine: Machine) -> tuple[Node, ...]:
    """The nodes that run on the array."""

    def accepted(node: Node) -> bool:
        return node.op in support.ARRAY and support.refusal(graph, node, machine) is None

    return integer_nodes(graph, accepted)


def _calibrated(
    find: HistogramSource, graph: Graph, samples: Samples, machine: Machine, hook: Hook | None, *, factors: bool
) -> tuple[Graph, dict[str, Steps], dict[str, Histogram]]:
    """The graph after the passes that depend on ranges, the scales that its model gives, other histograms."""
    given, found = calibrated(find, graph, samples, integer(graph, machine))
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
) -> tuple[Network, tuple[Trial, ...]]:
    """The integer network, and the trials that were made to improve it.

    A model with scales of its own keeps them; its weights are balanced, or improved on samples. Documented
    instructions have no words for the padding of maps with a zero point. Without a search, sums keep equal scales:
    they then continue on the sums of a convolution, without a word of their own.
    """
    level, documented = LEVELS[options.level], options.flag(ISA) == DOCUMENTED
    method = options.method or level.method
    factors = bool(level.variants) and teaches(samples) and not documented
    find = source(options.histograms, synthetic=samples.synthetic)
    graph, given, found = _calibrated(find, graph, samples, machine, hook, factors=factors)
    free_scales = not given or only_of_inputs(graph)
    if documented:  # the document adds and pools at equal scales: only the ranges of the model's steps are used
        found |= {name: uniform(steps.reach) for name, steps in given.items()}
        found, given = {name: found[name] for name in tensors_of(integer(graph, machine))}, {}
    power_of_two = machine.scales == POWER_OF_TWO
    make = quantiser(best_table, power_of_two=power_of_two, factors=factors)

    @cache
    def seen(host: Host) -> Mapping[str, Histogram]:
        return histograms_before_host(find, graph, samples, found, host)

    def drawn(host: Host) -> Network:
        chosen = without(integer(graph, machine), host)
        return Network(graph, chosen, seen(host), {}, make(graph, chosen, seen(host), method, given))

    def best(host: Host) -> tuple[Network, tuple[Trial, ...]]:
        zeros = None if documented else replace(IN_BIASES, power_of_two=power_of_two, pads=pads_cheaply)
        recipe = Recipe(
            lambda each: without(integer(each, machine), host),
            make,
            zero_points=zeros,
            splits=True,
            histograms=find,
            given=given,
        )
        if free_scales:
            return best_network(graph, recipe, samples, level, options.method, seen(host))
        plain = drawn(host)
        return best_weights(plain, recipe, samples, level, without_data(plain, samples, level))

    if not options.mixed:
        return best(frozenset())
    return mixed(graph, lambda host: drawn(host).quantised, best, samples)
