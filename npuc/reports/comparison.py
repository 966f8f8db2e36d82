"""One model on several machines: the cost and the accuracy of each program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from npuc import running
from npuc.driver import compile_model
from npuc.errors import DataError, ModelError, NpucError
from npuc.frozen import frozen
from npuc.ir import Array
from npuc.program import Program, as_loaded
from npuc.regions.composite import target_of
from npuc.registry import target
from npuc.samples.loading import Samples
from npuc.samples.loading import load as load_samples
from npuc.target import Options, Request, Shapes
from npuc.text.progress import SILENT, Progress
from npuc.verification import metrics
from npuc.verification.equivalence import expected

Report = Mapping[str, Any]
FIGURES = ("cycles", "utilization", "traffic_bytes", "instructions", "npu_macs_share")
"""Figures copied from the compile report into a row; null if a target from another package lacks them."""


@frozen
class Candidate:
    """A target and one of its machines: a shipped one by name, or a TOML file."""

    target: str
    machine: str | None = None


@frozen
class Subject:
    """The model to compile, its input shapes, calibration data and test data."""

    model: Path
    shapes: Shapes
    calibration: tuple[Path, ...] = ()
    data: tuple[Path, ...] = ()


def compare(
    subject: Subject, candidates: Sequence[Candidate], options: Options, bar: Progress = SILENT
) -> dict[str, Any]:
    """The report of `npuc compare`: one row per candidate, in order; a refusing target's row has its problems.

    Raises ModelError and DataError, which concern all targets.
    """
    rows: list[dict[str, Any]] = []
    exact: dict[str, Array] | None = None
    samples: Samples | None = None
    bar.begin("compiling for every machine", len(candidates))
    for each in candidates:
        program, row = compiled(subject, each, options)
        if program is not None and subject.data:
            samples = samples or load_samples(subject.data, running.program_inputs(program), images=program.images)
            exact = exact or expected(subject.model, samples, program.images)
            row |= _scores(program, samples, exact)
        rows.append(row)
        bar.advance(1)
    refused = all(row["status"] == "refused" for row in rows)
    return {
        "status": "error" if refused else "ok",
        "model": subject.model.name,
        "samples": None if samples is None else len(samples),
        "fp32_top1": None
        if samples is None or exact is None
        else metrics.task(next(iter(exact.values())), samples.labels)["top1"],
        "rows": rows,
        "errors": [problem for row in rows for problem in row["errors"]] if refused else [],
    }


def compiled(subject: Subject, each: Candidate, options: Options) -> tuple[Program | None, dict[str, Any]]:
    """The program of a candidate and its row, without accuracy; no program if the target refuses.

    Raises ModelError and DataError.
    """
    machine = target(each.target)
    options = replace(options, machine=each.machine, precision=machine.precisions[0])
    try:
        program, _ = compile_model(Request(subject.model, machine, options, subject.calibration, subject.shapes))
    except (ModelError, DataError):
        raise
    except NpucError as error:
        return None, _refused(each, error)
    program = as_loaded(program)
    return program, _row(program, program.manifest["report"])


def _row(program: Program, report: Report) -> dict[str, Any]:
    """The costs of a program. Bytes: the sum of its peaks in all memories."""
    clock = report.get("clock_mhz")
    return {
        "target": report["target"],
        "machine": report["machine"],
        "status": "ok",
        "precision": program.precision,
        **{key: report.get(key) for key in FIGURES},
        "clock_mhz": clock,
        "milliseconds": None if clock is None else report["cycles"] / clock / 1e3,
        "peak_bytes": sum(use["peak_bytes"] for use in report["memory"].values()),
        "memory": report["memory"],
        "host_steps": len(report["host_steps"]),
        **metrics.UNKNOWN,
        "errors": [],
    }


def _refused(each: Candidate, error: NpucError) -> dict[str, Any]:
    known = ("precision", *FIGURES, "clock_mhz", "milliseconds", "peak_bytes", "memory", "host_steps")
    problems = [problem.as_json() for problem in error.problems]
    place = {"target": each.target, "machine": each.machine or "default", "status": "refused"}
    return {**place, **dict.fromkeys(known), **metrics.UNKNOWN, "errors": problems}


def _scores(program: Program, samples: Samples, exact: Mapping[str, Array]) -> dict[str, Any]:
    """Scores of the simulated outputs; the problem if the program cannot be simulated here."""
    try:
        outputs = running.run_program(program, target_of(program), samples)
    except NpucError as error:
        return {"errors": [problem.as_json() for problem in error.problems]}
    return metrics.scores(exact, outputs, samples.labels)
