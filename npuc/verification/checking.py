"""Verification: the simulated program against onnxruntime, output by output and layer by layer.

Three computations are compared: the user's file under onnxruntime, the integer network (reference.onnx) under
onnxruntime, and the simulator, which sees only instruction words and images. `bit_exact` compares the last two in
every element of every layer. Errors against fp32 are accumulated ("entire": the network runs quantised up to here)
and isolated ("single": this layer alone, on the exact inputs), in terms of the ONNX model's tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from npuc.errors import IN_FLOAT, ArtefactError
from npuc.evidence import read_graph
from npuc.frontend.reading import read_model
from npuc.ir import Array
from npuc.program import Program, file_sha256, load_evidence
from npuc.regions.artefact import Contents, is_composite, part_of
from npuc.regions.running import CompositeRunner
from npuc.running import batch_of
from npuc.samples.loading import Samples
from npuc.samples.structured import row
from npuc.storage.records import read
from npuc.target import FLOATING, Target
from npuc.text.terminal import SILENT, Progress
from npuc.verification.batches import FloatCheck, IntegerCheck
from npuc.verification.bisection import largest_loss
from npuc.verification.exact import Exact, read_network
from npuc.verification.metrics import Outputs, Tolerance


class ProgramCheck(Protocol):
    """A program with its references, ready to be fed batch after batch."""

    exact: Exact

    def batch(self, samples: Samples) -> None:
        """Runs all computations on the batch and accumulates their differences."""
        ...

    def report(self, tolerance: Tolerance) -> dict[str, Any]:
        """The results in the command line's format, without the number of samples."""
        ...


class CompositeCheck:
    """The parts of a program with their references, and the whole with onnxruntime.

    Each part is compared on the inputs that it receives in the simulation, where its integer network must agree
    bit for bit. Its errors are relative to the model's tensors, computed from the samples.
    """

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

        found = self.run.run_parts(samples.inputs, compare)
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


def verify(
    model: Path,
    directory: Path,
    program: Program,
    target: Target,
    samples: Samples,
    tolerance: Tolerance,
    *,
    allow_modified: bool = False,
    bar: Progress = SILENT,
    chip_model: str = "own",
) -> dict[str, Any]:
    """The report of `npuc verify`.

    Raises ArtefactError (E501) if the program was compiled from another model, (E502) if its evidence is damaged.
    """
    bar.begin("opening model and program")
    check_model(model, program, allow_modified)
    evidence = load_evidence(directory, program, allow_modified=allow_modified)
    check = check_of(model, replace(program, evidence=evidence), target, chip_model)
    bar.begin("comparing layers", len(samples))
    for batch in samples.batches(batch_of(program)):
        check.batch(batch)
        bar.advance(len(batch))
    found, read_as = check.report(tolerance), check.exact.read_as(next(iter(samples.feeds())))
    wrong = any(each["wrong"] for each in read_as)
    status = "mismatch" if wrong else found["status"]
    program = replace(program, evidence=evidence)
    causes = _causes(model, program, samples, found) if status == "mismatch" else ()
    return {
        **found,
        "status": status,
        "causes": [{"cause": cause, "remedy": remedy} for cause, remedy in causes],
        "ranges": asdict(program.ranges),
        "samples": len(samples),
        "read_as": read_as,
        "reference": check.exact.substitute,
    }


HOST = "--deny NODE computes layers in fp32 on the host"
BEYOND = 0.001
"""The share of an input's values beyond the calibrated range that explains a mismatch."""


def _causes(
    model: Path, program: Program, samples: Samples, report: Mapping[str, Any]
) -> Iterator[tuple[str, str]]:
    """What a mismatch may come from, the likeliest first, and what to do next. program: with its evidence."""
    if file_sha256(model) != program.model.sha256:
        yield "the program was compiled from another model", "compile this one"
    if report["bit_exact"] is False:
        yield (
            "the machine's words do not compute the integer network",
            "npuc verify --bisect names the first difference",
        )
        return
    if program.ranges.origin == "synthetic":
        yield (
            "the activation ranges come from synthetic samples",
            "compile with --calibration FILE.npz of typical samples",
        )
    graph = read_graph(program)
    shares = {} if program.precision in FLOATING else _beyond(program.precision, graph, samples)
    for name, share in shares.items():
        if share > BEYOND:
            cause = f"{100 * share:.3g} % of the values of input '{name}' lie beyond the calibrated range"
            yield cause, "compile with --calibration of samples that are prepared as these are"
    loss = largest_loss(report, graph)
    if loss is not None:
        alone = "" if loss["single_db"] is None else f", {loss['single_db']:.1f} dB alone"
        remedy = HOST if program.precision in FLOATING else f"-O2 or more samples for scales; {IN_FLOAT}"
        yield f"layer '{loss['layer']}' loses the most: {loss['entire_db']:.1f} dB{alone}", remedy


def _beyond(precision: str, graph: Mapping[str, Any], samples: Samples) -> dict[str, float]:
    """The share of each input's values that its integers cannot represent, where it is quantised."""
    found, limits = dict[str, float](), np.iinfo(precision)
    for each in graph["tensors"].values():
        if (name := each["float"]) in samples.inputs and each.get("scale"):
            values = np.concatenate([np.ravel(feed[name]) for feed in samples.feeds()])
            steps = values.astype(np.float64) / each["scale"] + each.get("zero_point", 0)
            found[name] = float(np.mean((steps < limits.min - 1) | (steps > limits.max + 1)))
    return found


def check_of(model: Path, program: Program, target: Target, chip_model: str) -> ProgramCheck:
    """The check for this kind of program. program: with its evidence."""
    if is_composite(program):
        return CompositeCheck(model, program, target, chip_model)
    if program.precision in FLOATING:
        return FloatCheck(model, program, target, chip_model)
    return IntegerCheck(model, program, target, chip_model)


def check_model(model: Path, program: Program, allow_modified: bool) -> None:
    """Raises ArtefactError (E501) unless the program was compiled from this file, ModelError if it is no model."""
    try:
        found = file_sha256(model)
    except OSError:
        return  # loading the model will report the error
    origin = read(Mapping[str, Any], program.manifest.get("model"), "model")
    if found != origin.get("sha256") and not allow_modified:
        read_model(model)
        raise ArtefactError(
            "E501",
            f"the program was compiled from another model than '{model}'",
            remedy="compile this model, or compare all the same with --allow-modified",
        )
