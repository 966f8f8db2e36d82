"""From a float graph and calibration samples to the best integer network within a level's budget.

Every step makes another network, which is kept only if it has less noise on held-out calibration samples.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import field, replace
from functools import cache, reduce
from hashlib import blake2b
from time import process_time

import numpy as np

from npuc.errors import UnsupportedOperator
from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.quantize.arithmetic.steadiness import better
from npuc.quantize.calibration.histograms import (
    Count,
    Histogram,
    HistogramSource,
    histograms,
    output_gains,
    tensor_values,
)
from npuc.quantize.improvement import equalisation, proposals
from npuc.quantize.improvement.acceptance import Acceptance, Remainder, acceptance, decibels, ends
from npuc.quantize.improvement.equalisation import Equalised, split
from npuc.quantize.improvement.evidence import Sampled, Watch, sample_windows
from npuc.quantize.improvement.levels import Level, SearchVariant
from npuc.quantize.improvement.lockstep import improve_layers, weighted_nodes
from npuc.quantize.network.construction import SHIFTED, LayerEncoding, Quantise, Quantised
from npuc.quantize.network.renaming import integers_renamed
from npuc.quantize.scales.constraints import tensors_of
from npuc.quantize.scales.model_scales import Steps
from npuc.quantize.scales.results import node_histograms
from npuc.quantize.scales.zero_points import IN_BIASES, Sides, ZeroPoints, offset_inputs, offset_results, one_sided
from npuc.samples.loading import Samples

FEWEST_SAMPLES = 4
"""With fewer samples, none can be held out."""
MOST_JUDGES = 32
"""The most held-out samples that are used for judging: the same at every level."""
MOST_OF_MODEL = 8
"""The most of them on which the whole model judges its parts."""
CLEARLY = 10**-0.1
"""Unless a level is thorough, it improves its last variant first, and tries no other if that gains 1 dB."""

COARSER = 1.5
"""Unless a level is thorough, a lower level's scales are not judged if they add more than this times the error.

In 14 searches they lost 1.2 to 5.2 dB where they added 1.65 times the error or more, and won only up to 1.1 times.
"""


def teaches(samples: Samples) -> bool:
    """Whether more than scales is learned from samples: they are real, and some can be held out."""
    return not samples.synthetic and len(samples) >= FEWEST_SAMPLES


@frozen
class Trial:
    """A step of the search: whether it was kept, the held-out noise before and after (dB), its CPU seconds."""

    name: str
    kept: bool
    before_db: float | None
    after_db: float | None
    seconds: float


def as_json(steps: Sequence[Trial]) -> list[dict[str, str | bool | float | None]]:
    """The steps for a report, without their times, which vary between runs."""
    return [
        {
            "name": step.name,
            "kept": step.kept,
            "before_db": _round(step.before_db),
            "after_db": _round(step.after_db),
        }
        for step in steps
    ]


def _round(value: float | None) -> float | None:
    return None if value is None else round(value, 2)


@frozen
class Recipe:
    """How a target quantises: which nodes of a float graph, and into what.

    layers: how the convolutions of the integer graph are read. zero_points: None if the target has none. splits:
    whether outlier channels may be split, which requires that clipping at any value is free. equalises: whether
    channels may have factors. one_step: whether all weights of a layer have one scale.
    """

    select: Callable[[Graph], tuple[Node, ...]]
    quantise: Quantise
    layers: LayerEncoding = SHIFTED
    zero_points: ZeroPoints | None = IN_BIASES
    splits: bool = False
    equalises: bool = True
    one_step: bool = False
    histograms: HistogramSource = histograms
    given: Mapping[str, Steps] = field(default_factory=dict[str, Steps])
    """Fixed scales and zero points: of what frames hold, and those of a table."""


@frozen
class TrialNetwork:
    """A float graph, the histograms of its tensors, the factors of its channels, and, once made, its integer form.

    layers: how the convolutions of the integer form are read. names: the model's tensor of each that has a factor.
    """

    graph: Graph
    nodes: tuple[Node, ...]
    histograms: Mapping[str, Histogram]
    factors: Mapping[str, Array]
    integer: Quantised | None = None
    layers: LayerEncoding = SHIFTED
    names: Mapping[str, str] = field(default_factory=dict[str, str])

    @property
    def equal(self) -> Equalised:
        """The float graph with its factors."""
        return Equalised(self.graph, self.factors, self.names)

    @property
    def quantised(self) -> Quantised:
        """The integer form."""
        assert self.integer is not None
        return self.integer


def total_error(network: TrialNetwork) -> float:
    """The expected squared error of int8 tensors by their histograms, each relative to its energy: the sum."""
    scales, forms = network.quantised.scales, network.quantised.forms
    known = ((each, scales.get(forms.get(name, name))) for name, each in network.histograms.items())
    return sum(
        float(each.error(np.array([scale]))[0]) / each.energy for each, scale in known if scale and each.energy
    )


def best_network(
    graph: Graph,
    recipe: Recipe,
    samples: Samples,
    level: Level,
    method: str | None = None,
    known: Mapping[str, Histogram] | None = None,
) -> tuple[TrialNetwork, tuple[Trial, ...]]:
    """The best integer network of a float graph within the level, and the steps tried.

    method: of calibration, instead of the level's. known: the histograms of the graph's tensors, if found before.
    Synthetic samples only determine scales: nothing else is learned from them.
    """
    plain = plain_network(Equalised(graph), recipe, samples, method or level.method, known)
    return best_variant(plain, recipe, samples, level, method)


def plain_network(
    equal: Equalised, recipe: Recipe, samples: Samples, method: str, known: Mapping[str, Histogram] | None = None
) -> TrialNetwork:
    """The integer network of a float graph with scales by this method of calibration, and nothing else."""
    return _Maker(recipe, samples).plain_network(equal, method, known)


def best_variant(
    plain: TrialNetwork, recipe: Recipe, samples: Samples, level: Level, method: str | None = None
) -> tuple[TrialNetwork, tuple[Trial, ...]]:
    """`best_network` of the float graph of a network that is already drawn by the level's method."""
    judged = bool(ends(plain.quantised.graph)) and teaches(samples)
    if not level.variants or not judged:
        return plain, ()
    network, steps = _Climb(_Maker(recipe, samples), level, method, plain).climb()
    return replace(network, integer=integers_renamed(network.graph, network.quantised, network.names)), steps


def best_weights(
    network: TrialNetwork, recipe: Recipe, samples: Samples, level: Level, balanced: TrialNetwork | None = None
) -> tuple[TrialNetwork, tuple[Trial, ...]]:
    """A network with fixed scales and the weights and biases that suit them best, and the steps tried.

    balanced: the network with weights that need no samples: tried first, and the result where nothing is learned
    from samples.
    """
    judged = bool(ends(network.quantised.graph)) and teaches(samples)
    if not level.proposals or not judged:
        return balanced or network, ()
    more = [replace(each, samples=WEIGHT_SAMPLES, below=None) for each in level.rungs if each.proposals]
    top = reduce(lambda below, each: replace(each, below=below), more)
    return _Climb(_Maker(recipe, samples), top, None, network).improve_plain(balanced)


WEIGHT_SAMPLES = 64
"""With fixed scales there is only one network to improve, which leaves time for more samples."""


@frozen
class _Maker:
    """Makes networks with the same recipe and samples."""

    recipe: Recipe
    samples: Samples

    def plain_network(self, equal: Equalised, method: str, known: Mapping[str, Histogram] | None) -> TrialNetwork:
        """The integer network of a float graph, calibrated on the samples; known: as in `calibrate`."""
        return self.quantise(self.calibrate(equal, method, known), method, {})

    def calibrate(self, equal: Equalised, method: str, known: Mapping[str, Histogram] | None) -> TrialNetwork:
        """A float graph with the histograms of its tensors on the samples, of which some may be known."""
        graph = equal.graph
        nodes = self.recipe.select(graph)
        tensors = tensors_of(nodes)
        gains = output_gains(graph, nodes) if method == "output" else None
        found = dict(known or {}) if gains is None else {}
        tensors = [name for name in tensors if name not in self.recipe.given]
        missing = [name for name in tensors if name not in found]
        if missing:
            find = self.recipe.histograms
            fixed = self.recipe.given
            found |= node_histograms(find, graph, self.samples, missing, nodes, fixed, known=found, gains=gains)
        ordered = {name: found[name] for name in tensors}
        return TrialNetwork(graph, nodes, ordered, equal.factors, layers=self.recipe.layers, names=equal.names)

    def quantise(self, network: TrialNetwork, method: str, given: Mapping[str, Steps]) -> TrialNetwork:
        """The network with scales by a method, and these scales and zero points fixed."""
        made = self.recipe.quantise(
            network.graph, network.nodes, network.histograms, method, {**given, **self.recipe.given}
        )
        return replace(network, integer=_with_factors(made, network.factors))


def _with_factors(quantised: Quantised, factors: Mapping[str, Array]) -> Quantised:
    """The network with the factors of its equalised tensors."""
    forms = {quantised.forms[name]: each for name, each in factors.items() if name in quantised.forms}
    return replace(quantised, factors=forms)


class _Climb:
    """Climbs the levels: tries every variant of the network, and improves them in lockstep.

    All levels judge by the same samples, so that by them a higher level is never worse.
    """

    def __init__(self, maker: _Maker, top: Level, method: str | None, plain: TrialNetwork) -> None:
        self.maker = maker
        self.top = self.level = top
        self.method = method
        self.numbers = numbers(maker.samples, top.samples)
        self.learned, self.held_out = pick_feeds(maker.samples, *self.numbers)
        self.training = self.learned
        self.plain = self.best = plain
        self.acceptance = judge_of(plain.graph, plain.quantised, maker.samples, self.held_out, self.numbers[1])
        self.plain_noise = self.noise = self.acceptance.noise(plain.quantised)
        self.steps: list[Trial] = []
        self.equal: dict[tuple[bool, float | None, int], TrialNetwork] = {}
        """Equalised networks with their histograms, shared by every method except "output"."""
        self.sides: Sides = {}
        """Histograms on both sides of 0, of the level's samples. What a variant changes has another name."""
        self.seen: tuple[Graph, Sampled] | None = None
        """A graph whose histograms were found in the same run as the evidence for its layers."""

    def climb(self) -> tuple[TrialNetwork, tuple[Trial, ...]]:
        """The best network and the steps."""
        foremost = {} if self.top.thorough else self._foremost()
        if self.noise < self.plain_noise * CLEARLY:
            return self.best, tuple(self.steps)
        for level in self.top.rungs:
            self._enter(level)
            if self._method(level.method) != self._method(self.top.method):
                self._try(level.method, lambda level=level: self._plain(level.method))
            made = [
                (each.alone, self._try(str(each), lambda each=each: foremost.get(each) or self._variant(each)))
                for each in self._variants()
            ]
            found = [each for alone, each in made if each is not None and not alone and not foremost]
            for network, _ in sorted(found, key=lambda each: each[1])[: level.improved]:
                self._improve(network)
        return self.best, tuple(self.steps)

    def _foremost(self) -> dict[SearchVariant, TrialNetwork]:
        """Improves the last variant of the top level, unjudged, and returns it, unless its scales refuse that."""
        self._enter(self.top)
        variant = [*self._variants()][-1]
        try:
            network = self._variant(variant)
        except UnsupportedOperator:
            return {}
        self._improve(network, str(variant))
        return {variant: network}

    def improve_plain(self, other: TrialNetwork | None) -> tuple[TrialNetwork, tuple[Trial, ...]]:
        """The plain network with better weights and biases, or the other one, and the steps."""
        if other is not None:
            self._try("weights balanced", lambda: other)
        for level in self.top.rungs:
            self._enter(level)
            self._improve(self.plain)
        return self.best, tuple(self.steps)

    def _enter(self, level: Level) -> None:
        self.level = level
        self.training = self.learned[: level.samples]
        self.sides = {}

    def _variants(self) -> Collection[SearchVariant]:
        """The level's variants. Without channels to equalise, of those that differ only in that the last one."""
        if self._groups(self.plain.graph):
            return self.level.variants
        plain = [replace(each, share=None) for each in self.level.variants]
        return {replace(each, alone=False): each for each in plain}.values()

    def _groups(self, graph: Graph) -> tuple[equalisation.EqualisationGroup, ...]:
        """What can be equalised without a change of tensors that judge networks, or whose scale is fixed."""
        recipe = self.maker.recipe
        fixed = self.acceptance.exact.keys() | recipe.given.keys()
        found = equalisation.groups(graph) if recipe.equalises else ()
        return tuple(each for each in found if not fixed & set(each.tensors))

    def _method(self, of_level: str) -> str:
        """The requested calibration method, otherwise the level's."""
        return self.method or of_level

    def _plain(self, method: str) -> TrialNetwork:
        """The plain network with scales by another method, unless they are much coarser (UnsupportedOperator)."""
        found = self.maker.plain_network(self.plain.equal, method, self.plain.histograms)
        if not self.top.thorough and total_error(found) > COARSER * total_error(self.plain):
            raise UnsupportedOperator("E205", f"scales by {method} add too much noise to every tensor")
        return found

    def _improve(self, network: TrialNetwork, *title: str) -> None:
        """Tries the level's sets of proposals; unless it is thorough, only until one is kept.

        title: of a network that was not judged before.
        """

        @cache
        def evidence() -> Sampled:
            if self.seen is not None and self.seen[0] is network.graph:
                return self.seen[1]
            return sample_windows(network.graph, weighted_nodes(network.nodes), *self._shown)

        for names in self.level.proposals:
            before = self.best
            name = ", ".join((*title, *names))
            self._try(name, lambda names=names: self._in_lockstep(network, evidence(), names))
            if self.best is not before and not self.level.thorough:
                return

    @property
    def _shown(self) -> tuple[list[Mapping[str, Array]], Array]:
        """The samples by which layers are improved, and which of them are held out."""
        checks = self.held_out[: len(self.training) // 3 + 1]
        return [*self.training, *checks], np.arange(len(self.training) + len(checks)) >= len(self.training)

    def _try(self, name: str, make: Callable[[], TrialNetwork]) -> tuple[TrialNetwork, float] | None:
        """Makes another network, if possible, and keeps it if it has less noise than the best so far.

        Returns the network and its noise.
        """
        started = process_time()
        try:
            candidate = make()
        except UnsupportedOperator:  # for example weights that these scales do not allow: the variant is skipped
            return None
        same = candidate is self.plain  # for example if zero points help no tensor
        noise = self.plain_noise if same else self.acceptance.noise(candidate.quantised)
        kept = better(noise, self.noise)
        before, after = decibels(self.noise), decibels(noise)
        self.steps.append(Trial(name, kept, before, after, process_time() - started))
        if kept:
            self.best, self.noise = candidate, noise
        return candidate, noise

    def _variant(self, variant: SearchVariant) -> TrialNetwork:
        method, graph = self._method(variant.method), self.plain.graph
        if variant.split:
            recipe = self.maker.recipe
            graph = split(graph, self.maker.samples.feeds(), recipe.given) if recipe.splits else graph
            if graph is self.plain.graph:
                raise UnsupportedOperator("E205", "there is no outlier channel to split")
        network = self._equalise(graph, method, variant.share)
        given: dict[str, Steps] = {}
        taken = self.maker.recipe.zero_points
        if taken is not None and variant.offsets:
            anyway = self.level.thorough
            given = offset_inputs(network.graph, network.nodes, self.training, taken, anyway=anyway)
            given |= offset_results(network.graph, network.nodes, network.histograms, taken, anyway=anyway)
            known = network.histograms
            given |= one_sided(
                network.graph, network.nodes, self.training, known, taken, self.sides, anyway=anyway
            )
        return network if network is self.plain and not given else self.maker.quantise(network, method, given)

    def _equalise(self, graph: Graph, method: str, share: float | None) -> TrialNetwork:
        """The graph calibrated by another method, equalised if there is anything to equalise."""
        groups = self._groups(graph) if share is not None else ()
        known = self.plain.histograms if graph is self.plain.graph else None
        before = self.plain.equal
        if not groups:
            same = graph is self.plain.graph and method == self._method(self.top.method)
            return self.plain if same else self.maker.calibrate(replace(before, graph=graph), method, known)
        key = graph is self.plain.graph, share, len(self.training)
        if key in self.equal and method != "output":
            return self.equal[key]
        sizes = equalisation.sizes(graph, groups, self.training)
        equal = equalisation.equalise(graph, groups, sizes, share or 0.0, one_step=self.maker.recipe.one_step)
        if known is not None and not self.level.thorough:
            known = {**known, **self._watch(equal)}
        found = self.maker.calibrate(equal.after(before), method, known)
        if method != "output":
            self.equal[key] = found
        return found

    def _watch(self, equal: Equalised) -> dict[str, Histogram]:
        """The histograms of the tensors that were equalised; the same run gives the evidence for its layers."""
        feeds, held_out = self._shown
        learned, others = self.numbers
        shown = (*learned[: len(self.training)], *others)[: len(feeds)]
        places = {number: place for place, number in enumerate(shown)}
        count = Count(equal.factors)
        watch = Watch(equal.graph, weighted_nodes(self.maker.recipe.select(equal.graph)), held_out)
        run = tensor_values(
            equal.graph, self.maker.samples.feeds(), tuple(dict.fromkeys((*count.found, *watch.read)))
        )
        for number, values in enumerate(run):
            count.add(values)
            if number in places:
                watch.add(places[number], values)
        self.seen = equal.graph, watch.collect(feeds)
        return count.found

    def _in_lockstep(self, network: TrialNetwork, evidence: Sampled, names: Sequence[str]) -> TrialNetwork:
        wanted = [proposals.PROPOSALS[name] for name in names]
        layers = network.layers
        better = improve_layers(network.graph, network.quantised, layers, evidence, wanted, self.level.depth)
        return replace(network, integer=better)


def judge_of(
    graph: Graph,
    quantised: Quantised,
    samples: Samples,
    feeds: Sequence[Mapping[str, Array]],
    places: Sequence[int],
) -> Acceptance:
    """The judge of integer networks of a float graph, on held-out samples: those in these places."""
    whole = samples.whole

    def remainder() -> Remainder:
        assert whole is not None
        (found,) = pick_feeds(whole.samples, places[:MOST_OF_MODEL])
        return Remainder(whole.open(), whole.outputs, tuple(found))

    return acceptance(graph, quantised, feeds, remainder if whole is not None else None)


def divide(samples: Samples, most: int) -> tuple[list[Mapping[str, Array]], list[Mapping[str, Array]]]:
    """At most `most` samples to learn from, and some to judge by, from a third of all; in pseudo-random order."""
    learned, held_out = pick_feeds(samples, *numbers(samples, most))
    return learned, held_out


def numbers(samples: Samples, most: int) -> tuple[list[int], list[int]]:
    """The places of the same among the samples; of a part of a model, by the samples of the model."""
    given = samples if samples.whole is None else samples.whole.samples
    digests = [_digest(feed) for feed in given.feeds()]
    order = sorted(range(len(digests)), key=digests.__getitem__)
    third = max(len(order) // 3, 1)
    return order[third:][:most], order[:third][:MOST_JUDGES]


def pick_feeds(samples: Samples, *wanted: Sequence[int]) -> list[list[Mapping[str, Array]]]:
    """The samples in these places, list by list."""
    places = {number for each in wanted for number in each}
    found = {number: feed for number, feed in enumerate(samples.feeds()) if number in places}
    return [[found[number] for number in each] for each in wanted]


def _digest(feed: Mapping[str, Array]) -> bytes:
    """The sort key of a sample, which depends only on its values: the order of files does not matter."""
    return b"".join(blake2b(np.ascontiguousarray(value).data, digest_size=8).digest() for value in feed.values())
