"""Verification of floating-point programs, batch after batch: the simulator against onnxruntime.

There is no integer reference, so `bit_exact` is null. Layers are compared where the target's simulator shows their
results and the ONNX model has a tensor of that name ("entire"). "single" is a layer alone on the inputs that the
machine computed; a layer whose inputs are not shown is taken together with those before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from npuc.external_weights import without_weights
from npuc.frontend.binding import with_bound
from npuc.ir import Array
from npuc.program import Program
from npuc.reference import present, session, with_outputs
from npuc.storage.data import Samples
from npuc.storage.pieces import contents_of
from npuc.storage.records import read
from npuc.target import Counting, Target
from npuc.verification.described import Layer, described
from npuc.verification.described import evidence as foreign
from npuc.verification.isolation import Alone, Isolated
from npuc.verification.metrics import Difference, Tolerance
from npuc.verification.outputs import Outputs
from npuc.verification.padding import model_of


class Layers:
    """The layers of a program, each alone on the inputs that the machine computed.

    confined: whether the evidence may come from someone else. few_runs: few samples will be added.
    Raises ArtefactError (E502) if npuc did not write the evidence.
    """

    def __init__(
        self, evidence: Mapping[str, bytes], precision: str, *, confined: bool = True, few_runs: bool = False
    ) -> None:
        found = described(evidence["graph.json"], precision)
        self.layers = read(tuple[Layer, ...], found["layers"], "graph.layers", "graph.json")
        self.reference, self.precision = contents_of(evidence)["reference.onnx"], precision
        self.shapes = {name: tensor["shape"] for name, tensor in found["tensors"].items()}
        self.isolated: Isolated | None = None
        self.options = {"confined": confined, "few_runs": few_runs}

    def __call__(self, feed: Mapping[str, Array], found: Mapping[str, Array]) -> Iterator[tuple[str, Alone]]:
        """The expected result of each layer for a sample. found: the tensors that the simulator shows."""
        with foreign():
            if self.isolated is None:
                shown = self.shapes.keys() & found.keys()
                self.isolated = Isolated(self.reference, self.shapes, shown, self.precision, **self.options)
            yield from self.isolated({**feed, **found})

    def wrong(self, feed: Mapping[str, Array], found: Mapping[str, Array]) -> Layer | None:
        """The first layer of a sample whose error rounding does not explain."""
        wrong = {name for name, each in self(feed, found) if each.wrong(found[name]).any()}
        return next((layer for layer in self.layers if layer.tensor in wrong), None)


class FloatCheck:
    """onnxruntime and the simulator, ready to run batch after batch."""

    def __init__(
        self, model: Path, evidence: Mapping[str, bytes], program: Program, target: Target, chip_model: str
    ) -> None:
        self.alone = Layers(evidence, program.precision)
        self.layers = self.alone.layers
        self.run, self.chip_model = target.runner(program, chip_model), chip_model
        outputs = [port.name for port in program.outputs]
        shapes = {port.name: port.shape for port in program.inputs}
        fp32 = with_bound(model_of(model, shapes), program.bound)
        self.names = list(dict.fromkeys([*outputs, *present(fp32, [layer.tensor for layer in self.layers])]))
        self.fp32 = session(*without_weights(with_outputs(fp32, self.names)), confined=True)
        self.said = Outputs(outputs)
        self.entire: dict[str, Difference] = {}
        self.single: dict[str, Difference] = {}

    def batch(self, samples: Samples) -> None:
        """Runs both on the batch and accumulates their differences."""
        shown: dict[str, Array] = {}
        outputs = self.run(samples.inputs, shown.__setitem__)
        self.compare(samples, samples.inputs, shown, outputs)

    def compare(
        self,
        samples: Samples,
        fed: Mapping[str, Array],
        simulated: Mapping[str, Array],
        outputs: Mapping[str, Array],
    ) -> None:
        """Accumulates the differences of a simulation. samples: the model's inputs; fed: the program's inputs."""
        self.said.label(samples)
        shown = {**simulated, **outputs}
        for index, feed in enumerate(samples.feeds()):
            exact = dict(zip(self.names, self.fp32.run(self.names, feed), strict=True))
            own, found = ({name: values[index, ...] for name, values in each.items()} for each in (fed, shown))
            self.said.add(exact, found, None)
            self._compare(exact, own, found)

    def report(self, tolerance: Tolerance) -> dict[str, Any]:
        """The report as JSON; status is `mismatch` if the tolerance is exceeded."""
        return {
            **self.said.report(tolerance, sound=True),
            "bit_exact": None,
            "layers": [self._layer(layer) for layer in self.layers],
            "chip_model": self.chip_model,
            "cycles": self.run.cycles if isinstance(self.run, Counting) else None,
        }

    def _compare(self, exact: Mapping[str, Array], feed: Mapping[str, Array], found: Mapping[str, Array]) -> None:
        """Compares a sample's layers with fp32, and each layer alone."""
        for layer in self.layers:
            name = layer.tensor
            if name in found and name in exact:
                self.entire.setdefault(name, Difference()).add(exact[name], found[name])
        for name, alone in self.alone(feed, found):
            self.single.setdefault(name, Difference()).add(alone.exact, found[name])

    def _layer(self, layer: Layer) -> dict[str, Any]:
        entire, single = (
            None if each is None else each.as_json()
            for each in (self.entire.get(layer.tensor), self.single.get(layer.tensor))
        )
        return {
            "name": layer.tensor,
            "op": layer.op,
            "nodes": layer.nodes,
            "bit_exact": None,
            **(entire or dict.fromkeys(("sqnr_db", "cosine", "max_abs_error", "exact"))),
            "entire": entire,
            "single": single,
        }
