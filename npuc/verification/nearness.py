"""Whether the program of a quantised model computes about what the model does under onnxruntime.

Its integer network was made of the model's own steps, so that a simulation that agrees with it in every bit shows
nothing of steps or limits that the network lacks. Where an output has hardly a bit of the model's, the difference
is judged by what ideal rounding of every result would make: noise that rounding explains is no defect.
"""

from __future__ import annotations

from collections.abc import Mapping

from npuc.ir import Array, Graph
from npuc.ops.attributes import SCALE
from npuc.storage.data import Samples
from npuc.verification.criterion import ENOUGH, LEVELS, ideal
from npuc.verification.metrics import Difference

LEAST = 3.0
"""Signal to noise in dB below which an output says nothing of the model's."""
STEPS = 2.0
"""Of the coarsest rounding of the model: an error of so many is rounding in any case."""


class Nearness:
    """The outputs of a program beside those of the quantised model that it was made of."""

    def __init__(self, graph: Graph, precision: str) -> None:
        self.graph, self.precision = graph, precision
        scales = [SCALE(node) for node in graph.nodes if node.op == "FakeQuantize"]
        self.coarsest = max(scales) if scales and precision in LEVELS else None
        """The scale of a model that says itself how its values are rounded."""

    def far(
        self, feed: Mapping[str, Array], wanted: Mapping[str, Array], found: Mapping[str, Array]
    ) -> str | None:
        """The first output of a sample that rounding does not explain; None where all are near."""
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
    """Of floats; integers and whatever else are not compared."""
    apart = Difference()
    if wanted.dtype.kind == "f":
        apart.add(wanted, found)
    return apart
