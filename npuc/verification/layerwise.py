"""What checks of all precisions do: the model and the simulator run side by side, batch after batch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from npuc.frontend.model import ImportedModel
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.program import Program
from npuc.samples.loading import Samples
from npuc.target import Target
from npuc.verification.exact import Exact
from npuc.verification.metrics import Difference
from npuc.verification.outputs import Outputs

Values = Mapping[str, Array]
FIELDS = ("sqnr_db", "cosine", "max_abs_error", "exact")
"""The figures of a layer; null if it was not compared."""


@frozen
class Sample:
    """One sample: the model's inputs and its tensors in fp32; the program's inputs, inner tensors and outputs."""

    feed: Values
    exact: Values
    fed: Values
    seen: Values
    """As far as the simulator shows them."""
    outputs: Values


class LayerwiseCheck(ABC):
    """The model and the simulator, ready to run; the differences of layers, by tensor.

    entire: the network runs as on the machine up to here; single: this layer alone, on exact inputs.
    """

    def __init__(
        self,
        model: Path,
        program: Program,
        target: Target,
        chip_model: str,
        tensors: Sequence[str],
        inside: ImportedModel | None,
    ) -> None:
        """tensors, inside: as those of `Exact`."""
        self.run, self.chip_model = target.runner(program, chip_model), chip_model
        self.exact = Exact(model, program, tensors, inside)
        self.said = Outputs([port.name for port in program.outputs], self.exact.jumping(program.precision))
        self.entire: dict[str, Difference] = {}
        self.single: dict[str, Difference] = {}

    def batch(self, samples: Samples) -> None:
        """Runs all computations on the batch and accumulates their differences."""
        seen: dict[str, Array] = {}
        outputs = self.run(samples.inputs, seen.__setitem__)
        self.compare(samples, samples.inputs, seen, outputs)

    def compare(self, samples: Samples, fed: Values, seen: Values, outputs: Values) -> None:
        """Accumulates the differences of a simulation; as the fields of `Sample`, (samples, ...) each."""
        self.said.label(samples)
        for index, feed in enumerate(samples.feeds()):
            parts = ({name: values[index, ...] for name, values in each.items()} for each in (fed, seen, outputs))
            sample = Sample(feed, self.exact(feed), *parts)
            self.said.add(feed, sample.exact, sample.outputs, self._compare(sample))

    @abstractmethod
    def _compare(self, sample: Sample) -> Array | None:
        """Compares the layers; returns the integer network's first output, if there is such a network."""

    def figures(self, tensor: str) -> dict[str, Any]:
        """The differences of a layer as JSON; null where it was not compared."""
        entire, single = (
            None if each is None else each.as_json() for each in (self.entire.get(tensor), self.single.get(tensor))
        )
        return {**(entire or dict.fromkeys(FIELDS)), "entire": entire, "single": single}
