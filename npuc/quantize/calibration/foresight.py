"""What the shapes of a network refuse already, before the samples are run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TypeVar

from npuc.errors import NpucError
from npuc.ir import Array, Graph
from npuc.quantize.calibration.histograms import Histogram, uniform
from npuc.storage.data import Samples, synthetic
from npuc.target import Options

BY_SHAPE = ("E302", "E303")
"""Refusals that no scale changes: a memory, or the scratch pads."""
BY_SCALE = ("Add",)
"""Operators that scales may fold into others."""
T = TypeVar("T")


def without_search(options: Options) -> Options:
    """The options of a network whose scales are assumed: it is planned like the real one, and nothing is run."""
    return replace(options, level="0", method=None, notify=None, stage=None, mixed=False, histograms=assumed)


def assumed(
    graph: Graph,
    samples: Iterable[Mapping[str, Array]],
    tensors: Sequence[str],
    domains: Mapping[str, tuple[float, float]] | None = None,
    gains: Mapping[str, Array] | None = None,
) -> dict[str, Histogram]:
    """A histogram for every tensor, as if its values lay within 1; no sample is run."""
    del graph, samples, domains, gains
    return {name: uniform(1.0) for name in tensors}


def one_sample(graph: Graph) -> Samples:
    """What stands for the samples of a network."""
    return synthetic({name: graph.tensors[name] for name in graph.inputs}, 1)


def expect_foreseen(trial: Callable[[], T], doubtful: Callable[[T], bool], plan: Callable[[T], object]) -> None:
    """Plans a network where that is in doubt, and raises what no scale would change (E302, E303).

    trial: makes the network. doubtful: a quick look; whatever it doubts is planned in earnest.
    """
    try:
        made = trial()
    except NpucError:  # shows again, on the real network
        return
    try:
        doubt = doubtful(made)
    except NpucError:
        doubt = True
    if not doubt:
        return
    try:
        plan(made)
    except NpucError as error:
        if all(each.code in BY_SHAPE and each.op not in BY_SCALE for each in error.problems):
            raise
