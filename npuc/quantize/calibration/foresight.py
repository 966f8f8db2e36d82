"""Early refusal of networks whose shapes cannot fit, before any samples are run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TypeVar

from npuc.errors import NpucError
from npuc.ir import Graph
from npuc.quantize.calibration.histograms import Histogram, uniform
from npuc.samples.loading import Samples, synthetic
from npuc.target import Options

BY_SHAPE = ("E302", "E303")
"""Errors that no scale changes: a memory or the scratch pads are too small."""
BY_SCALE = ("Add",)
"""Operators that may be fused into others, depending on scales."""
T = TypeVar("T")


def without_search(options: Options) -> Options:
    """The options for a network with assumed scales: it is planned like the real one, and no sample is run."""
    return replace(options, level="0", method=None, notify=None, stage=None, mixed=False, histograms=assumed)


def assumed(_graph: Graph, _samples: object, tensors: Sequence[str], *_: object) -> dict[str, Histogram]:
    """A histogram for every tensor, as if its values were within 1; no sample is run."""
    return {name: uniform(1.0) for name in tensors}


def one_sample(graph: Graph) -> Samples:
    """One synthetic sample in place of the network's data."""
    return synthetic({name: graph.tensors[name] for name in graph.inputs}, 1)


def expect_foreseen(trial: Callable[[], T], doubtful: Callable[[T], bool], plan: Callable[[T], object]) -> None:
    """Plans a network if it may not fit, and raises errors that no scale would change (E302, E303).

    trial: makes the network. doubtful: a quick check; if it is in doubt, the network is planned in full.
    """
    try:
        made = trial()
    except NpucError:  # the same error occurs again on the real network
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
