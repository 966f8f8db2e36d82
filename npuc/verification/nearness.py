"""Whether the program of a quantised model computes roughly what the model computes under onnxruntime.

The integer network was built with the model's own scales and zero points, so a simulation that agrees with it bit
for bit does not show what the network itself got wrong. An output with less than about one bit of the model's is
judged against ideal rounding of every result: noise that rounding explains is no defect.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import inf

from npuc.ir import Array, Graph
from npuc.ops.attributes import SCALE
from npuc.samples.loading import Samples
from npuc.verification.criterion import ENOUGH, LEAST, LEVELS, ideal
from npuc.verification.metrics import Difference

STEPS = 2.0
"""An error of this many of the model's coarsest steps is always attributed to rounding."""


class Nearness:
    """Comparison of a program's outputs with those of its quantised model."""

    def __init__(self, graph: Graph, precision: str) -> None:
        self.graph, self.precision = graph, precision
        scales = [SCALE(node) for node in graph.nodes if node.op == "FakeQuantize"]
        self.coarsest = max(scales) if scales and precision in LEVELS else None
        """The coarsest scale of a model that brings its own quantisation; None without one."""

    def far(
        self, feed: Mapping[str, Array], wanted: Mapping[str, Array], found: Mapping[str, Array]
    ) -> str | None:
        """The first output of a sample whose error rounding does not explain; None if all are near."""
        apart = {name: _difference(wanted[name], found[name]) for name in self.graph.outputs}
        strange = [name for name, each in apart.items() if self._strange(each)]
        if not strange:
            return None
        best = ideal(self.graph, self.precision, Samples({name: value[None] for name, value in feed.items()}))
        return next((name for name in strange if best.get(name, LEVELS["int16"]) >= ENOUGH["int8"]), None)

    def lost(self, wanted: Mapping[str, Array], found: Mapping[str, Array]) -> set[str]:
        """The outputs of a sample that are hardly more than noise."""
        apart = {name: _difference(wanted[name], found[name]) for name in self.graph.outputs}
        least = LEAST.get(self.precision, -inf)
        return {name for name, each in apart.items() if each.signal and _sqnr(each) < least}

    def _strange(self, difference: Difference) -> bool:
        if self.coarsest is None:
            return False
        return _sqnr(difference) < LEAST["int8"] and difference.largest > STEPS * self.coarsest


def _sqnr(difference: Difference) -> float:
    """Signal to noise in dB."""
    found = difference.sqnr_db
    return inf if found is None else found


def _difference(wanted: Array, found: Array) -> Difference:
    """The difference of floats; other types are not compared."""
    apart = Difference()
    if wanted.dtype.kind == "f":
        apart.add(wanted, found)
    return apart
