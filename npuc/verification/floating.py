"""Verification of floating-point programs, batch after batch: the simulator against onnxruntime.

There is no integer reference, so `bit_exact` is null. Layers are compared where the target's simulator shows their
results and the ONNX model has a tensor of that name ("entire"). "single" is a layer alone on the inputs that the
machine computed; a layer whose inputs are not shown is taken together with those before it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from npuc.frontend.model import ImportedModel
from npuc.ir import Array
from npuc.program import Program
from npuc.storage.pieces import contents_of
from npuc.storage.records import damaged, read
from npuc.target import Target, cycles_of
from npuc.verification.described import DescribedLayer, described, foreign_evidence
from npuc.verification.isolation import Alone, Isolated
from npuc.verification.layerwise import LayerwiseCheck, Sample
from npuc.verification.metrics import Difference, Tolerance


class FloatingLayers:
    """The layers of a program, each alone on the inputs that the machine computed.

    program: with its evidence. confined: whether that may come from someone else. few_runs: few samples will be
    added.
    Raises ArtefactError (E502) if npuc did not write the evidence.
    """

    def __init__(self, program: Program, *, confined: bool = True, few_runs: bool = False) -> None:
        found = described(program)
        self.layers = read(tuple[DescribedLayer, ...], found["layers"], "graph.layers", "graph.json")
        self.reference, self.precision = contents_of(program.evidence)["reference.onnx"], program.precision
        self.shapes = {name: tensor["shape"] for name, tensor in found["tensors"].items()}
        self.isolated: Isolated | None = None
        self.options = {"confined": confined, "few_runs": few_runs}

    def __call__(self, feed: Mapping[str, Array], found: Mapping[str, Array]) -> Iterator[tuple[str, Alone]]:
        """The expected result of each layer for a sample. found: the tensors that the simulator shows."""
        with foreign_evidence():
            if self.isolated is None:
                shown = self.shapes.keys() & found.keys()
                self.isolated = Isolated(self.reference, self.shapes, shown, self.precision, **self.options)
            yield from self.isolated({**feed, **found})

    def wrong(self, feed: Mapping[str, Array], found: Mapping[str, Array]) -> DescribedLayer | None:
        """The first layer of a sample whose error rounding does not explain."""
        wrong = {name for name, each in self(feed, found) if each.wrong(found[name]).any()}
        return next((layer for layer in self.layers if layer.tensor in wrong), None)


class FloatCheck(LayerwiseCheck):
    """onnxruntime and the simulator, ready to run batch after batch."""

    def __init__(
        self, model: Path, program: Program, target: Target, chip_model: str, inside: ImportedModel | None = None
    ) -> None:
        self.alone = FloatingLayers(program)
        self.layers = self.alone.layers
        tensors = [layer.tensor for layer in self.layers]
        super().__init__(model, program, target, chip_model, tensors, inside)

    def report(self, tolerance: Tolerance) -> dict[str, Any]:
        """The report as JSON; status is `mismatch` if the tolerance is exceeded."""
        return {
            **self.said.report(tolerance, sound=True),
            "bit_exact": None,
            "layers": [self._layer(layer) for layer in self.layers],
            "chip_model": self.chip_model,
            "cycles": cycles_of(self.run),
        }

    def _compare(self, sample: Sample) -> None:
        exact, shown = sample.exact, {**sample.seen, **sample.outputs}
        for layer in self.layers:
            name = layer.tensor
            if name in shown and name in exact:
                if exact[name].size != shown[name].size:
                    raise damaged(f"its shape {list(shown[name].shape)} is not the model's", tensor=name)
                self.entire.setdefault(name, Difference()).add(exact[name], shown[name])
        for name, alone in self.alone(sample.fed, shown):
            self.single.setdefault(name, Difference()).add(alone.exact, shown[name])

    def _layer(self, layer: DescribedLayer) -> dict[str, Any]:
        row = {"name": layer.tensor, "op": layer.op, "nodes": layer.nodes, "bit_exact": None}
        return {**row, **self.figures(layer.tensor)}
