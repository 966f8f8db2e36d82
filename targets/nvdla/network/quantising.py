"""How NVDLA quantises a network: which nodes become integer, and the accuracy levels.

Refusals and warnings for fp16 programs whose values, on the samples, are outside the range of fp16.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial

import numpy as np

from npuc.errors import DoesNotFit, Problem
from npuc.flag import POWER_OF_TWO
from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops.windows import AVERAGES
from npuc.quantize.calibration.histograms import Histogram, HistogramSource, source, tensor_values, uniform
from npuc.quantize.improvement.levels import LEVELS, Level
from npuc.quantize.improvement.mixed import Host, mix_precision, nodes_without
from npuc.quantize.improvement.search import Recipe, Trial, TrialNetwork, best_network
from npuc.quantize.network.construction import Quantised
from npuc.quantize.scales.constraints import equal_scales, integer_nodes, tensors_of
from npuc.quantize.scales.model_scales import Steps, given_steps, only_of_inputs
from npuc.quantize.scales.results import histograms_before_host, node_histograms
from npuc.quantize.scales.zero_points import ZeroPoints
from npuc.quantize.table import expect_machine
from npuc.samples.loading import Samples
from npuc.target import Options
from npuc.targets.nvdla.formats.precision import FP16_MOST, FP16_SMALLEST
from npuc.targets.nvdla.formats.weights import KERNEL, WEIGHTS
from npuc.targets.nvdla.machine.parameters import Machine
from npuc.targets.nvdla.network import support
from npuc.targets.nvdla.program import lowering
from npuc.targets.nvdla.program.frames import centre_frames, int16_steps, is_centre, offset_frames
from npuc.targets.nvdla.quantisation import in_fp16, quantise, wide_tensors, widen_nodes
from npuc.targets.nvdla.quantisation.rounding import Moments, moments
from npuc.targets.nvdla.quantisation.sums import Multiplied

FP16_LEAST = 2.0**-14
"""The smallest fp16 number with 11 significant bits."""
REMEDY = "scale the inputs, or weights and bias of the layer, or compile with --precision int16"


def expect_in_range(nodes: Sequence[Node], stored: Graph, seen: Mapping[str, Moments], *, synthetic: bool) -> None:
    """Raises DoesNotFit (E301) for every node that reads or writes a stored tensor with values beyond fp16.

    Values that are too large would saturate; a tensor of tiny values would become 0.

    stored: the graph that NVDLA computes; tensors not in it are never fp16. synthetic: there was no calibration
    data.
    """
    lost = {name for name in _stored_maps(stored, seen) if not FP16_SMALLEST <= seen[name].largest <= FP16_MOST}
    found: list[Problem] = []
    for node in nodes if lost else ():
        name = next((name for name in (*node.outputs, *node.inputs) if name in lost), None)
        if name is not None:
            reason = f"its values reach {_reach(seen[name], synthetic)}"
            limit = f"{FP16_SMALLEST:.2g}..{FP16_MOST:g} in fp16"
            found.append(Problem("E301", reason, node.source, node.op, name, limit, REMEDY))
    if found:
        raise DoesNotFit.of(found)


def short_of_bits(
    graph: Graph, stored: Graph, seen: Mapping[str, Moments], *, synthetic: bool
) -> tuple[Problem, ...]:
    """A warning for every tensor that NVDLA stores and whose values are all below the smallest 11-bit number.

    graph: the float graph; the rest as for `expect_in_range`.
    """
    found: list[Problem] = []
    for name in _stored_maps(stored, seen):
        if seen[name].largest < FP16_LEAST:
            node = graph.producers.get(name)
            reason = f"its values reach {_reach(seen[name], synthetic)}: NVDLA loses bits of them"
            limit = f"{FP16_LEAST:.2g}..{FP16_MOST:g} in fp16"
            layer = node.source if node else None
            found.append(Problem("W301", reason, layer, node.op if node else None, name, limit, REMEDY))
    return tuple(found)


def _stored_maps(stored: Graph, seen: Mapping[str, Moments]) -> list[str]:
    return [name for name, each in seen.items() if name in stored.tensors and each.largest]


def _reach(values: Moments, synthetic: bool) -> str:
    samples = (
        "synthetic samples (--calibration DATA.npz has better ones)" if synthetic else "the calibration samples"
    )
    return f"+/-{values.largest:.4g} on {samples}"


LAYERS = Multiplied()


def on_device(
    graph: Graph, machine: Machine, precision: str = "int8", wide: Collection[str] = ()
) -> tuple[Node, ...]:
    """The nodes that NVDLA computes in a precision, and those that move their tensors.

    wide: names of nodes in int16. An Interleave that NVDLA refuses, such as one of several samples, is left to the
    host as a float operator.
    """

    def is_accepted(node: Node) -> bool:
        own = "int16" if node.name in wide else precision
        known = support.row_of(node.op, machine, own) is not None
        return known and not is_centre(node) and support.refusal(graph, node, machine, own) is None

    return tuple(
        node for node in integer_nodes(graph, is_accepted) if node.op != "Interleave" or is_accepted(node)
    )


def int16_nodes(graph: Graph, options: Options) -> frozenset[str]:
    """The names of the nodes of an int8 program that `layer` wants in int16."""
    nodes = graph.nodes if options.layer else ()
    return frozenset(node.name for node in nodes if options.precision_of(node) == "int16")


def _table_steps(options: Options, machine: Machine, precision: str) -> dict[str, Steps]:
    """The scales of a table for tensors in a precision; int16 has no zero points."""
    zeros = range(-128, 128) if precision == "int8" else (0,)
    return expect_machine(options.scales_in, machine.scales, zeros, precision, options.precision)


def _reads(node: Node, anyway: bool) -> bool:
    """Whether a node accepts a zero point: CDMA pads with it, sums subtract it, averages become convolutions."""
    return node.op in ("Conv", "Add", "AveragePool") or (anyway and node.op == "GlobalAveragePool")


ZERO_POINTS = ZeroPoints(_reads, ("Conv", "Add"))


def network(
    graph: Graph, samples: Samples, machine: Machine, options: Options
) -> tuple[TrialNetwork, tuple[Trial, ...]]:
    """The integer network, and the trials that improved it; CDMA takes the means from frames if it can."""
    if options.precision == "int8" and machine.scales != POWER_OF_TWO:
        frames, steps = centre_frames(graph, partial(_counts, graph, samples))
        if frames is not graph and _reads_raw(frames, steps, machine, options):
            return _network(frames, samples, machine, options, steps)
    if options.precision == "int16":
        graph = offset_frames(graph)
        return _network(graph, samples, machine, options, int16_steps(graph))
    return _network(graph, samples, machine, options, {})


def _counts(graph: Graph, samples: Samples, frame: str, zero: int) -> Array:
    """How often each value of a pixel occurs in the samples, (channels, 256).

    frame: a tensor of (1, C, H, W) that holds pixels less `zero`.
    """
    found = np.zeros((graph.shape(frame)[1], 256))
    for values in tensor_values(graph, samples.feeds(), [frame]):
        pixels = (values[frame][0] + zero).astype(np.uint8)
        found += [np.bincount(each.reshape(-1), minlength=256) for each in pixels]
    return found


def _reads_raw(graph: Graph, frames: Mapping[str, Steps], machine: Machine, options: Options) -> bool:
    """Whether CDMA would take the means from frames: shapes decide, whatever the other scales are."""
    nodes = on_device(graph, machine)
    anything = dict.fromkeys((name for name in tensors_of(nodes) if name not in frames), uniform(1.0))
    return lowering.reads_raw(quantise(graph, nodes, anything, "minmax", frames), machine, options.flag(WEIGHTS))


def _network(
    graph: Graph, samples: Samples, machine: Machine, options: Options, frames: Mapping[str, Steps]
) -> tuple[TrialNetwork, tuple[Trial, ...]]:
    """The integer network of a graph, and the trials. frames: the steps of frames that CDMA converts.

    A model with scales of its own, beyond those of integer inputs, keeps them, and its weights. Accuracy levels
    apply to int8 only.
    """
    level, precision = LEVELS[options.level], options.precision
    find = source(options.histograms, synthetic=samples.synthetic)
    nodes = on_device(graph, machine, precision)
    tensors = tensors_of(nodes)
    given = given_steps(graph, tensors, equal_scales(graph, nodes), _table_steps(options, machine, precision))
    given.update(frames)
    free = [name for name in tensors if name not in given]
    if precision == "int8":  # limited to the inputs that 8 bits can tell apart
        found = node_histograms(find, graph, samples, free, nodes, given)
    else:
        found = find(graph, samples.feeds(), free)
    power_of_two = machine.scales == POWER_OF_TWO
    winograd = frozenset[str]()
    if options.flag(WEIGHTS) == "winograd" or "winograd" in options.allow:
        plain = partial(quantise, graph, nodes, found, "minmax", given, precision)
        winograd = _winograd_convolutions(graph, nodes, plain, machine, options)
    make = partial(quantise, winograd=winograd, power_of_two=power_of_two)
    if (not given or only_of_inputs(graph)) and precision == "int8":
        return _improve(_Improvement(graph, samples, machine, options, make, found, given, frames))
    made = make(graph, nodes, found, options.method or level.method, given, precision)
    return TrialNetwork(graph, nodes, found, {}, made, LAYERS), ()


def floats(
    graph: Graph, samples: Samples, machine: Machine, options: Options
) -> tuple[Quantised, tuple[Problem, ...]]:
    """The network in fp16 with weights rounded to suit the samples, and warnings for tensors that lose bits.

    Raises DoesNotFit (E301) for values out of range.
    """
    graph = offset_frames(graph)
    nodes = on_device(graph, machine, "fp16")
    seen = moments(graph, samples.feeds(), tensors_of(nodes))
    winograd = _winograd_convolutions(graph, nodes, partial(in_fp16, graph, nodes), machine, options)
    made = in_fp16(graph, nodes, seen, winograd)
    expect_in_range(nodes, made.graph, seen, synthetic=samples.synthetic)
    return made, short_of_bits(graph, made.graph, seen, synthetic=samples.synthetic)


def _winograd_convolutions(
    graph: Graph, nodes: Sequence[Node], plain: Callable[[], Quantised], machine: Machine, options: Options
) -> frozenset[str]:
    """Names of the convolutions whose weights Winograd should transform before they are rounded.

    plain: writes the network without Winograd. Averages may become convolutions.
    """
    wide = (node.op in AVERAGES or (node.op == "Conv" and _extent(graph, node) >= KERNEL) for node in nodes)
    if not any(wide):
        return frozenset()
    count = Counter(node.name for node in graph.nodes)
    found = lowering.winograd_candidates(plain(), machine, options.flag(WEIGHTS))
    names = (graph.producers[result].name for result in found)
    return frozenset(name for name in names if count[name] == 1)


def _extent(graph: Graph, conv: Node) -> int:
    """The larger extent of a kernel."""
    return max(graph.shape(conv.inputs[1])[2:])


@frozen
class _Mixture:
    """A float graph with borders around its nodes in int16, those on the host, and the origin of each border."""

    graph: Graph
    wide: frozenset[str]
    host: Host
    copied: Mapping[str, str]


@frozen
class _Improvement:
    """The search for the best int8 network with free scales, in which some nodes are in int16 or on the host."""

    graph: Graph
    samples: Samples
    machine: Machine
    options: Options
    make: Callable[..., Quantised]
    found: Mapping[str, Histogram]
    given: Mapping[str, Steps]
    frames: Mapping[str, Steps]

    @cached_property
    def level(self) -> Level:
        """The accuracy level."""
        return LEVELS[self.options.level]

    @cached_property
    def find(self) -> HistogramSource:
        """The source of histograms."""
        return source(self.options.histograms, synthetic=self.samples.synthetic)

    @cached_property
    def widenable(self) -> frozenset[str]:
        """The names of the convolutions that could be in int16; functions at the ends keep more on the host."""
        if not self.machine.int16:
            return frozenset()
        count = Counter(node.name for node in self.graph.nodes)
        computed = (node for node in self.graph.nodes if node.op == "Conv")
        fits = (node for node in computed if not support.refusal(self.graph, node, self.machine, "int16"))
        return frozenset(node.name for node in fits if count[node.name] == 1)

    @cached_property
    def full_histograms(self) -> Mapping[str, Histogram]:
        """The histograms of all values, for what is not limited to what 8 bits can tell apart."""
        return self.find(self.graph, self.samples.feeds(), tensors_of(on_device(self.graph, self.machine)))

    def steps(self, mixed: _Mixture) -> dict[str, Steps]:
        """The scales that the model or a table gives tensors of a mixture, each in its own format."""
        if not mixed.wide:
            return {**self.given}
        graph, nodes = mixed.graph, self.nodes(mixed)(mixed.graph)
        wide, found = wide_tensors(graph, mixed.wide), dict[str, Steps]()
        for precision, inside in (("int8", {*tensors_of(nodes)} - wide), ("int16", wide)):
            table = _table_steps(self.options, self.machine, precision)
            equal = [pair for pair in equal_scales(graph, nodes) if inside.issuperset(pair)]
            if table or precision == "int8":
                found |= given_steps(graph, sorted(inside), equal, table)
        return {**found, **self.frames}

    def mixture(self, moved: Host) -> _Mixture:
        """These nodes in int16, or on the host if they have no such form, beside those that the user wants."""
        wide = (moved & self.widenable) | int16_nodes(self.graph, self.options)
        nodes = nodes_without(on_device(self.graph, self.machine, wide=wide), moved - wide)
        graph, wide, copied = widen_nodes(self.graph, nodes, wide)
        return _Mixture(graph, wide, moved - wide, copied)

    def mixture_histograms(self, mixed: _Mixture) -> dict[str, Histogram]:
        """The histograms of a mixture's tensors."""
        fine = mixed.host | mixed.wide  # they tell large inputs of functions apart
        before = histograms_before_host(self.find, self.graph, self.samples, self.found, fine)
        wide = wide_tensors(mixed.graph, mixed.wide)
        names = tensors_of(self.nodes(mixed)(mixed.graph))
        given = self.steps(mixed)
        origins = {name: mixed.copied.get(name, name) for name in names if name not in given}
        return {
            name: (self.full_histograms if name in wide or origin not in before else before)[origin]
            for name, origin in origins.items()
        }

    def nodes(self, mixed: _Mixture) -> Callable[[Graph], tuple[Node, ...]]:
        """Selects the nodes that NVDLA computes."""
        return lambda each: nodes_without(on_device(each, self.machine, wide=mixed.wide), mixed.host)

    def recipe(self, mixed: _Mixture) -> Recipe:
        """How a mixture becomes integers."""

        def reads(node: Node, anyway: bool) -> bool:
            return node.name not in mixed.wide and _reads(node, anyway)

        narrow = replace(
            ZERO_POINTS,
            power_of_two=self.machine.scales == POWER_OF_TWO,
            reads=reads,
        )
        given = self.steps(mixed)
        make, one = partial(self.make, wide=mixed.wide), self.options.one_scale
        return Recipe(
            self.nodes(mixed), make, LAYERS, narrow, equalises=not one, histograms=self.find, given=given
        )

    def quantise(self, moved: Host) -> Quantised:
        """The integer network, not improved."""
        mixed = self.mixture(moved)
        recipe, method = self.recipe(mixed), self.options.method or self.level.method
        return recipe.quantise(
            mixed.graph, recipe.select(mixed.graph), self.mixture_histograms(mixed), method, recipe.given
        )

    def improve(self, moved: Host) -> tuple[TrialNetwork, tuple[Trial, ...]]:
        """The integer network, improved."""
        mixed = self.mixture(moved)
        known = self.mixture_histograms(mixed)
        return best_network(mixed.graph, self.recipe(mixed), self.samples, self.level, self.options.method, known)


WIDE_MACS = 0.25
"""Share of the multiply-accumulates that --precision mixed may compute in int16, at a quarter of int8's rate."""


def _improve(search: _Improvement) -> tuple[TrialNetwork, tuple[Trial, ...]]:
    """The best int8 network; with `mixed`, a few layers may be in int16, or run on the host, if that pays off."""
    if not search.options.mixed:
        return search.improve(frozenset())
    graph, samples = search.graph, search.samples
    if not search.widenable:
        return mix_precision(graph, search.quantise, search.improve, samples, LAYERS)
    return mix_precision(graph, search.quantise, search.improve, samples, LAYERS, search.widenable, WIDE_MACS)
