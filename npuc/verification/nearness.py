"""Whether the program of a quantised model computes roughly what the model computes under onnxruntime.

The integer network was built with the model's own scales and zero points, so a simulation that agrees with it bit
for bit does not show what the network itself got wrong. An output with less than about one bit of the model's is
judged against ideal rounding of every result: noise that rounding explains is no defect.
"""

from __future__ import annotations

from collections.abc import Mapping

from npuc.ir import Array, Graph
from npuc.ops.attributes import SCALE
from npuc.storage.data import Samples
from npuc.verification.criterion import ENOUGH, LEVELS, ideal
from npuc.verification.metrics import Difference

LEAST = 3.0
"""Signal to noise in dB below which an output carries nothing of the model's."""
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

    def _strange(self, difference: Difference) -> bool:
        sqnr = difference.sqnr_db
        if sqnr is None or self.coarsest is None:
            return False
        return sqnr < LEAST and difference.largest > STEPS * self.coarsest


def _difference(wanted: Array, found: Array) -> Difference:
    """The difference of floats; other types are not compared."""
    apart = Difference()
    if wanted.dtype.kind == "f":
        apart.add(wanted, found)
    return apart
