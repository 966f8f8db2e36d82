"""A scale per channel at the network's inputs and outputs, which the host converts in any case.

The host multiplies an input or output by a constant per channel, in float, and the weights beside it take the
inverse (`equalisation`). The channels inside then have similar magnitudes. This suits a machine with one scale for
all weights of a layer, above all for a depthwise convolution between two parts of the host.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from time import process_time

import numpy as np

from npuc.frozen import frozen
from npuc.ir import Array, Graph, Node
from npuc.ops import rebuild
from npuc.quantize.calibration.histograms import Histogram, tensor_values
from npuc.quantize.improvement import equalisation
from npuc.quantize.improvement.acceptance import decibels, integer_values, mean_ratio
from npuc.quantize.improvement.levels import USUAL, Level
from npuc.quantize.improvement.search import (
    Recipe,
    Trial,
    TrialNetwork,
    best_network,
    best_variant,
    divide,
    plain_network,
    teaches,
)
from npuc.quantize.network.construction import Quantised
from npuc.samples.loading import Samples

SHARE = 0.5
"""How far channels are equalised that a dense convolution reads."""
WORTH = 10**-0.05
"""The factors are kept if the noise of the outputs falls by half a dB."""
JUDGES = 8
"""The most held-out samples that decide this."""


@frozen
class _Bordered:
    """A graph with products at its borders, the products, and the tensors inside, by those of the model."""

    graph: Graph
    products: frozenset[Node]
    inner: Mapping[str, str]


def best_bordered(
    graph: Graph,
    recipe: Recipe,
    samples: Samples,
    level: Level,
    method: str | None = None,
    known: Mapping[str, Histogram] | None = None,
) -> tuple[TrialNetwork, tuple[Trial, ...]]:
    """`best_network`, with a scale per channel at the borders if that pays on the held-out samples."""
    started = process_time()
    training, held_out = divide(samples, USUAL.samples)  # at every level: a higher one is never worse
    judged = recipe.equalises and level.variants and teaches(samples) and _float_outputs(graph)
    other = equalise_borders(graph, training, recipe.given) if judged else None
    if other is None:
        return best_network(graph, recipe, samples, level, method, known)
    both = equalisation.Equalised(graph), other
    plain = [plain_network(each, recipe, samples, method or level.method, known) for each in both]
    before, after = _noises(graph, [each.quantised for each in plain], held_out[:JUDGES])
    kept = after < before * WORTH
    seconds = process_time() - started
    step = Trial("a scale per channel at the borders", kept, decibels(before), decibels(after), seconds)
    network, steps = best_variant(plain[kept], recipe, samples, level, method)
    return network, (step, *steps)


def equalise_borders(
    graph: Graph, feeds: Sequence[Mapping[str, Array]], fixed: Collection[str] = ()
) -> equalisation.Equalised | None:
    """The graph with products at its borders, equalised on the samples; None if it has no such border.

    fixed: tensors whose channels keep one scale.
    """
    images = [name for name in (*graph.inputs, *graph.outputs) if _is_image(graph, name) and name not in fixed]
    every = _with_products(graph, images)
    free = [each for each in equalisation.groups(every.graph, every.products) if not {*each.tensors} & {*fixed}]
    inside = {name for group in free for name in group.tensors}
    fitting = [name for name in images if every.inner[name] in inside]
    if not fitting:
        return None
    made = _with_products(graph, fitting)
    found = [
        group
        for group in equalisation.groups(made.graph, made.products)
        if made.products.intersection((*group.writers, *group.readers))
    ]
    equal = equalisation.equalise(made.graph, found, equalisation.sizes(made.graph, found, feeds), SHARE)
    outer = {inside: name for name, inside in made.inner.items()}
    return replace(equal, names={name: outer.get(old, old) for name, old in equal.names.items()})


def _is_image(graph: Graph, name: str) -> bool:
    of = graph.tensors[name]
    both = name in graph.inputs and name in graph.outputs
    return of.dtype == "float32" and len(of.shape) == 4 and not both and name not in graph.constants


def _with_products(graph: Graph, names: Sequence[str]) -> _Bordered:
    """The graph with a product with ones behind these inputs and before these outputs."""
    fresh = graph.names()
    inner = {name: fresh.new(f"{name}/channels") for name in names}
    factors = {new: fresh.new(f"{new}/factors") for new in inner.values()}
    ones = {factors[new]: np.ones((1, graph.shape(name)[1], 1, 1), np.float32) for name, new in inner.items()}

    def product(x: str, y: str, new: str) -> Node:
        return Node("Mul", (x, factors[new]), (y,), {}, new)

    taken = [product(name, new, new) for name, new in inner.items() if name in graph.inputs]
    given = [product(new, name, new) for name, new in inner.items() if name in graph.outputs]
    nodes = [
        replace(
            node,
            inputs=tuple(inner.get(name, name) for name in node.inputs),
            outputs=tuple(inner.get(name, name) for name in node.outputs),
        )
        for node in graph.nodes
    ]
    made = rebuild(graph, [*taken, *nodes, *given], ones)
    return _Bordered(made, frozenset((*taken, *given)), inner)


def _float_outputs(graph: Graph) -> list[str]:
    """The outputs by which networks are judged: classes and masks are too coarse."""
    return [name for name in graph.outputs if graph.tensors[name].dtype == "float32"]


def _noises(graph: Graph, networks: Sequence[Quantised], feeds: Sequence[Mapping[str, Array]]) -> list[float]:
    """Squared error over squared signal of each integer network, the mean over the outputs in float."""
    names = _float_outputs(graph)
    samples = [[values[name].copy() for name in names] for values in tensor_values(graph, feeds, names)]  # views
    exact = dict(zip(names, zip(*samples, strict=True), strict=True))
    return [mean_ratio(exact, integer_values(each, names, feeds)) for each in networks]
