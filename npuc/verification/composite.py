"""Verification of programs of several parts: the whole against onnxruntime, every part against its own references.

Each part is compared on the inputs that it receives in the simulation; there its integer network must agree bit
for bit. Its errors are relative to the model's tensors, computed from the samples.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from npuc.ir import Array
from npuc.program import Program
from npuc.regions.artefact import Contents, part_of
from npuc.regions.running import CompositeRunner
from npuc.samples.loading import Samples
from npuc.samples.structured import row
from npuc.target import FLOATING, Target
from npuc.verification.exact import Exact, read_network
from npuc.verification.floating import FloatCheck
from npuc.verification.integer import IntegerCheck
from npuc.verification.metrics import Tolerance
from npuc.verification.outputs import Outputs


class CompositeCheck:
    """The parts of a program with their references, and the whole with onnxruntime."""

    def __init__(self, model: Path, program: Program, target: Target, chip_model: str) -> None:
        from npuc.regions.composite import Composite

        inner = target.inner if isinstance(target, Composite) else target
        self.paths = [step.path for step in Contents.of(program.manifest).parts]
        programs = [part_of(program, path) for path in self.paths]
        kind = FloatCheck if program.precision in FLOATING else IntegerCheck
        network = read_network(model, program)
        self.parts = [kind(model, part, inner, chip_model, network) for part in programs]
        self.run = CompositeRunner(program, lambda part: inner.runner(part, chip_model))
        self.outputs = [port.name for port in program.outputs]
        self.exact = Exact(model, program, ())
        self.said = Outputs(self.outputs, self.exact.jumping(program.precision))
        self.integer, self.chip_model = program.precision not in FLOATING, chip_model

    def batch(self, samples: Samples) -> None:
        """Runs all computations on the batch and accumulates their differences."""

        def compare(
            number: int, fed: Mapping[str, Array], shown: Mapping[str, Array], given: Mapping[str, Array]
        ) -> None:
            self.parts[number].compare(samples, fed, shown, given)

        found = self.run.watched(samples.inputs, compare)
        self.said.label(samples)
        for index, feed in enumerate(samples.feeds()):
            given = {name: row(values, index) for name, values in found.items()}
            self.said.add(feed, self.exact(feed), given, None)

    def report(self, tolerance: Tolerance) -> dict[str, Any]:
        """The report as JSON; status is `mismatch` if the tolerance is exceeded or a bit differs."""
        found = [part.report(tolerance) for part in self.parts]
        bit_exact = all(each["bit_exact"] for each in found) if self.integer else None
        said = self.said.report(tolerance, sound=bit_exact is not False)
        layers = [layer for each in found for layer in each["layers"]]
        counted = {"chip_model": self.chip_model, "cycles": self.run.cycles}
        parts = [
            {"path": path, **{key: part[key] for key in ("status", "bit_exact", "outputs")}}
            for path, part in zip(self.paths, found, strict=True)
        ]
        return {**said, "bit_exact": bit_exact, "layers": layers, "parts": parts, **counted}
