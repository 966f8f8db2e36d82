"""How often a network's largest output is the labelled class: in fp32, as QDQ, as integers, on the machine.

All four see the same samples, so the difference from fp32 is that of pairs: what counts is the samples on which
only one of both is right.
"""

from __future__ import annotations

from math import sqrt
from pathlib import Path
from typing import Any

import numpy as np

from npuc.driver import run_program
from npuc.errors import DataError
from npuc.frontend.reading import read_model
from npuc.ir import Array
from npuc.program import Program, load_evidence
from npuc.progress import SILENT, Progress
from npuc.reference import session
from npuc.storage.data import Samples
from npuc.target import FLOATING, Target, quickest
from npuc.verification.checking import check_model
from npuc.verification.metrics import agreement, ranks, task

NORMAL_95 = 1.959964
"""Of a normal variable's values 95 % are within so many deviations."""


def interval(right: int, count: int) -> tuple[float, float]:
    """The 95 % confidence interval of a share: right of count. Source: Wilson, 1927.

    >>> low, high = interval(8, 10)
    >>> round(low, 3), round(high, 3)
    (0.49, 0.943)
    """
    share, z2 = right / count, NORMAL_95**2
    centre = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = NORMAL_95 / (1 + z2 / count) * sqrt(share * (1 - share) / count + z2 / (4 * count**2))
    return max(min(centre - half, share), 0.0), min(max(centre + half, share), 1.0)


def paired_difference(first: Array, second: Array) -> tuple[float, float, float]:
    """The mean of second - first, both (samples,) bool, and its 95 % confidence interval.

    Source: Agresti and Min, 2005: half a sample is added to each of the four cells of the table of pairs.
    """
    count = len(first) + 2
    gained, lost = (float((a & ~b).sum()) + 0.5 for a, b in ((second, first), (first, second)))
    mean = (gained - lost) / count
    half = NORMAL_95 * sqrt(max((gained + lost) / count - mean**2, 0.0) / count)
    return float(second.mean() - first.mean()), max(mean - half, -1.0), min(mean + half, 1.0)


def accuracy(
    model: Path,
    directory: Path,
    program: Program,
    target: Target,
    samples: Samples,
    *,
    qdq: Path | None = None,
    allow_modified: bool = False,
    bar: Progress = SILENT,
) -> dict[str, Any]:
    """The report of `npuc accuracy`; the first output of the model counts.

    `integer` is None for floats, and for programs with host regions, which have no integer network of the whole.

    qdq: the network as `npuc quantize` wrote it. Raises DataError (E401) where the samples have no labels.
    """
    check_model(model, program, allow_modified)
    labels = _labels(samples)
    evidence = load_evidence(directory, program, allow_modified=allow_modified)
    output = program.outputs[0].name
    integer = program.precision not in FLOATING
    models: dict[str, Any] = {
        "fp32": read_model(model),
        "qdq": None if qdq is None else read_model(qdq),
        "integer": evidence.get("reference.onnx") if integer else None,
    }
    bar.begin("running the models")
    found: dict[str, Array | None] = {
        name: None if each is None else _by_onnxruntime(each, samples, output) for name, each in models.items()
    }
    bar.begin("simulating", len(samples))
    simulated = run_program(program, target, samples, bar.advance, chip_model=quickest(target))[output]
    found["simulator"] = simulated.reshape(len(samples), -1)
    exact = found["fp32"]
    assert exact is not None
    if exact.shape[1] < 2:
        raise DataError("E402", "the output has one element: there are no classes to count", tensor=output)
    rows = {name: None if each is None else _row(each, exact, labels) for name, each in found.items()}
    return {"status": "ok", "samples": len(samples), "classes": exact.shape[1], **rows}


def _labels(samples: Samples) -> Array:
    if samples.labels is None:
        reason = samples.left_out or "the data has no labels: an array 'y' with a class for every sample"
        raise DataError("E401", reason, tensor="y", remedy="save them with numpy.savez(..., y=labels)")
    return samples.labels


def _by_onnxruntime(model: Any, samples: Samples, output: str) -> Array:
    """(samples, elements) of one output."""
    run = session(model, confined=True)
    return np.stack([run.run([output], feed)[0].ravel() for feed in samples.feeds()])


def _row(found: Array, exact: Array, labels: Array) -> dict[str, Any]:
    """The result of one computation."""
    right, reference = (ranks(values, labels) == 0 for values in (found, exact))
    difference, low, high = paired_difference(reference, right)
    return {
        **task(found, labels),
        "interval": list(interval(int(right.sum()), len(right))),
        "agreement": agreement(exact, found),
        "difference": difference,
        "difference_interval": [low, high],
    }
