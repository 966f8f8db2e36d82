"""Verification: the simulated program against onnxruntime, output by output and layer by layer.

Three computations are compared: the user's file under onnxruntime, the integer network (reference.onnx) under
onnxruntime, and the simulator, which sees only instruction words and images. `bit_exact` compares the last two in
every element of every layer. Errors against fp32 are accumulated ("entire": the network runs quantised up to here)
and isolated ("single": this layer alone, on the exact inputs), in terms of the ONNX model's tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from npuc.errors import ArtefactError
from npuc.frontend.reading import read_model
from npuc.program import Program, file_sha256, load_evidence
from npuc.regions.artefact import is_composite
from npuc.running import batch_of
from npuc.samples.loading import Samples
from npuc.storage.records import read
from npuc.target import FLOATING, Target
from npuc.text.progress import SILENT, Progress
from npuc.verification.composite import CompositeCheck
from npuc.verification.exact import Exact
from npuc.verification.floating import FloatCheck
from npuc.verification.integer import IntegerCheck
from npuc.verification.metrics import Tolerance


class Check(Protocol):
    """A program with its references, ready to be fed batch after batch."""

    exact: Exact

    def batch(self, samples: Samples) -> None:
        """Runs all computations on the batch and accumulates their differences."""
        ...

    def report(self, tolerance: Tolerance) -> dict[str, Any]:
        """The results in the command line's format, without the number of samples."""
        ...


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
    return {
        **found,
        "status": status,
        "samples": len(samples),
        "read_as": read_as,
        "reference": check.exact.substitute,
    }


def check_of(model: Path, program: Program, target: Target, chip_model: str) -> Check:
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
