"""Verification: the simulated program against onnxruntime, output by output and layer by layer.

Three computations meet: the fp32 model under onnxruntime, the integer network (reference.onnx) under onnxruntime,
and the simulator, which sees words and images only. `bit_exact` compares the last two in every element of every
layer. Errors against fp32 are accumulated ("entire": the network runs quantised up to here) and isolated
("single": this layer alone, on the exact inputs), in the ONNX model's own tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from npuc.driver import batch_of
from npuc.errors import ArtefactError
from npuc.ir import Array
from npuc.program import Program, file_sha256, load_evidence
from npuc.storage.data import Samples
from npuc.storage.records import read
from npuc.target import FLOATING, Target
from npuc.verification.metrics import Difference, Tolerance, agreement, task


class Check(Protocol):
    """A program beside its references, ready to be fed batch after batch."""

    def batch(self, samples: Samples) -> None:
        """Runs the batch every way and adds what differs."""
        ...

    def report(self, tolerance: Tolerance) -> dict[str, Any]:
        """What was found, in the command line's terms: all but the number of samples."""
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
    advance: Callable[[int], None] | None = None,
    chip_model: str = "own",
) -> dict[str, Any]:
    """The verification report of the command line's contract.

    Raises ArtefactError (E501) if the program was compiled from another model, (E502) if its evidence is damaged.
    """
    check_model(model, program, allow_modified)
    evidence = load_evidence(directory, program, allow_modified=allow_modified)
    check: Check
    if program.precision in FLOATING:
        from npuc.verification.floating import FloatCheck

        check = FloatCheck(model, evidence, program, target, chip_model)
    else:
        from npuc.verification.integer import IntegerCheck

        check = IntegerCheck(model, evidence, program, target, chip_model)
    for batch in samples.batches(batch_of(program)):
        check.batch(batch)
        if advance is not None:
            advance(len(batch))
    found = check.report(tolerance)
    return {"status": found.pop("status"), "samples": len(samples), **found}


def check_model(model: Path, program: Program, allow_modified: bool) -> None:
    """Raises ArtefactError (E501) unless the program was compiled from exactly this file."""
    try:
        found = file_sha256(model)
    except OSError:
        return  # reading the model reports it properly
    origin = read(Mapping[str, Any], program.manifest.get("model"), "model")
    if found != origin.get("sha256") and not allow_modified:
        raise ArtefactError(
            "E501",
            f"the program was compiled from another model than '{model}'",
            remedy="compile this model, or compare all the same with --allow-modified",
        )


def damaged(name: str, reason: str) -> ArtefactError:
    """The problem of evidence that npuc did not write."""
    return ArtefactError("E502", f"{name} is damaged: {reason}", remedy="compile the model again")


class Outputs:
    """What is gathered of the network's outputs: differences from fp32, and what becomes of the task."""

    def __init__(self, names: Sequence[str]) -> None:
        self.differences = {name: Difference() for name in names}
        self.first = names[0]
        self.values: dict[str, list[Array]] = {"fp32": [], "integer": [], "simulator": []}
        """The first output of every sample, by computation."""
        self.labels: list[Array] = []

    def add(self, exact: Mapping[str, Array], found: Mapping[str, Array], integer: Array | None) -> None:
        """A sample's outputs in fp32 and of the simulator; its first one of the integer network."""
        for name, difference in self.differences.items():
            difference.add(exact[name], found[name])
        values = {"fp32": exact[self.first], "simulator": found[self.first], "integer": integer}
        for name, each in values.items():
            if each is not None:
                self.values[name].append(each.ravel())

    def label(self, samples: Samples) -> None:
        """The labels of the samples that were added."""
        if samples.labels is not None:
            self.labels.append(samples.labels)

    def report(self, tolerance: Tolerance, *, sound: bool) -> dict[str, Any]:
        """Status, agreement, outputs and task; sound: whether nothing else is wrong."""
        stacked = {name: np.stack(values) if values else None for name, values in self.values.items()}
        exact, found = stacked["fp32"], stacked["simulator"]
        assert exact is not None and found is not None
        labels = np.concatenate(self.labels) if self.labels else None
        counted = {name: None if each is None else task(each, labels) for name, each in stacked.items()}
        within = all(map(tolerance.admits, self.differences.values()))
        return {
            "status": "ok" if sound and within else "mismatch",
            "argmax_agreement": agreement(exact, found) if exact.shape[1] > 1 else None,
            "task": None if labels is None or exact.shape[1] < 2 else counted,
            "outputs": [{"name": name, **each.as_json()} for name, each in self.differences.items()],
        }
