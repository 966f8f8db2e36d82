"""What each NPU part of a program costs the outputs of the whole model, on held-out samples.

The steps of the program run one after the other, host regions included; an NPU part computes in its integer
network or in float. Noise is squared error over squared signal against float, the mean over the model's outputs.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import cached_property
from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from npuc.account import PartLoss, WholeLoss
from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.program import Program, as_loaded
from npuc.quantize.improvement.acceptance import HOPELESS, decibels, mean_ratio, ratio
from npuc.quantize.improvement.mixed import MOST_MACS, WORTH
from npuc.quantize.improvement.search import numbers, pick_feeds
from npuc.reference import graph_session
from npuc.regions.assembling import LoweredPart
from npuc.regions.running import CompositeRunner, sample_by_sample, stack_samples
from npuc.regions.witnesses import foreign_session
from npuc.samples.loading import Samples
from npuc.target import Observer, Runner
from npuc.verification.batches import integer_runner, tensor_scale

if TYPE_CHECKING:
    import onnx

MOST_SAMPLES = 8
MOST_PARTS = 8
"""The most parts that are measured alone: those with the most noise at their own outputs."""


class WholeJudge:
    """A program of several parts, each of which computes in integers or in float.

    lowered, models: its NPU parts in order, and their ONNX models in float.
    """

    def __init__(
        self, program: Program, lowered: Sequence[LoweredPart], models: Iterable[onnx.ModelProto], samples: Samples
    ) -> None:
        self.lowered, self.every = lowered, frozenset(range(len(lowered)))
        self.integers = [integer_runner(each.program) for each in lowered]
        outputs = ([port.name for port in each.program.outputs] for each in lowered)
        self.floats = [
            sample_by_sample(foreign_session(model), names) for model, names in zip(models, outputs, strict=True)
        ]
        (feeds,) = pick_feeds(samples, numbers(samples, 0)[1][:MOST_SAMPLES])
        self.samples = len(feeds)
        self.feeds = {name: stack_samples([feed[name] for feed in feeds]) for name in feeds[0]}
        self.chosen: Collection[int] = ()
        waiting = iter(range(len(lowered)))
        self.run = CompositeRunner(as_loaded(program), lambda _part: self._either(next(waiting)))
        self.crossing: list[tuple[Mapping[str, Array], Mapping[str, Array]]] = []
        self.wanted = self.run.run_parts(
            self.feeds, lambda _at, fed, _seen, given: self.crossing.append((fed, given))
        )
        self.judged = [name for name, each in self.wanted.items() if _is_judged(each)]

    def _either(self, number: int) -> Runner:
        """A part as it is chosen; what it gives on exact inputs is computed once."""

        def run(feeds: Mapping[str, Array], observe: Observer | None = None) -> dict[str, Array]:
            known = self.crossing[number : number + 1]
            if known and all(np.array_equal(feeds[name], values) for name, values in known[0][0].items()):
                return self.given[number] if number in self.chosen else {**known[0][1]}
            return (self.integers if number in self.chosen else self.floats)[number](feeds, observe)

        return run

    @cached_property
    def given(self) -> list[dict[str, Array]]:
        """The results of the parts' integers on exact inputs."""
        return [run(fed) for run, (fed, _) in zip(self.integers, self.crossing, strict=True)]

    def noise(self, integers: Collection[int]) -> float:
        """The noise of the outputs with these parts in integers, and the others in float.

        HOPELESS for outputs of other shapes, and if the host does not compute what the integers give.
        """
        self.chosen = integers
        try:
            found = self.run.run_parts(self.feeds, None)
        except ArtefactError as error:
            if error.problems[0].code != "E502":
                raise
            return HOPELESS
        pairs = [(self.wanted[name], found[name]) for name in self.judged]
        return fmean(ratio(*each) if each[0].shape == each[1].shape else HOPELESS for each in pairs)

    def noisiest(self) -> list[int]:
        """The parts with the most noise at their own outputs on exact inputs."""

        own = [mean_ratio(exact, found) for (_, exact), found in zip(self.crossing, self.given, strict=True)]
        return sorted(self.every, key=own.__getitem__, reverse=True)[:MOST_PARTS]

    def losses(self, paths: Sequence[str]) -> WholeLoss:
        """What the parts, whose paths are given, cost the outputs."""
        alone = {number: self.noise({number}) for number in self.noisiest()}
        worst = sorted(alone, key=alone.__getitem__, reverse=True)
        found = (PartLoss(paths[each], decibels(alone[each]), self._noisiest_node(each)) for each in worst)
        return WholeLoss(self.samples, decibels(self.noise(self.every)), tuple(found))

    def spared(self, shares: Sequence[float]) -> list[int]:
        """The parts to be computed in float for the sake of the outputs; shares: of the model's MACs, by part."""
        kept, moved = {*self.every}, list[int]()
        least = self.noise(kept)
        for number in self.noisiest():
            if sum(shares[each] for each in (*moved, number)) > MOST_MACS:
                continue
            noise = self.noise(kept - {number})
            if noise < least * WORTH:
                kept, least = kept - {number}, noise
                moved.append(number)
        return moved

    def _noisiest_node(self, number: int) -> str:
        """The node whose layer adds the most to the noise of its noisiest input, on exact inputs of the part."""
        part, (fed, _) = self.lowered[number], self.crossing[number]
        described = json.loads(part.program.evidence["graph.json"])
        known = part.graph.tensors.keys() - part.graph.constants.keys() - {*part.graph.inputs}
        tensors = {name: each for name, each in described["tensors"].items() if each["float"] in known}
        wanted = list(dict.fromkeys(each["float"] for each in tensors.values()))
        exactly = sample_by_sample(graph_session(part.graph, wanted), wanted)
        integers, noise = integer_runner(part.program, [*tensors]), dict.fromkeys(tensors, 0.0)
        for at in range(self.samples):  # all tensors of one sample have room, those of several may have none
            one = {name: rows[at : at + 1] for name, rows in fed.items()}
            exact, found = exactly(one), integers(one)
            for name, each in [*tensors.items()]:
                if exact[each["float"]].size != found[name].size:
                    del tensors[name], noise[name]
                    continue
                values = (found[name].astype(np.float64) - each.get("zero_point", 0)) * tensor_scale(each)
                noise[name] += ratio(exact[each["float"]].reshape(values.shape), values)

        def added(layer: Mapping[str, Any]) -> float:
            return noise[layer["tensor"]] - max((noise.get(name, 0.0) for name in layer["inputs"]), default=0.0)

        layers = [each for each in described["layers"] if each["tensor"] in noise and each["nodes"]]
        return max(layers, key=added)["nodes"][0] if layers else ""


def _is_judged(values: Array) -> bool:
    """Whether these are finite numbers."""
    return values.dtype == np.float32 and values.size > 0 and bool(np.isfinite(values).all())
