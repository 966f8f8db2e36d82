"""Small ONNX networks, compiled for a target and verified, for the tests of whole programs."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from npuc import program, running
from npuc.samples import loading as data
from npuc.target import Options, Request, target
from npuc.verification.checking import check_of
from npuc.verification.metrics import Tolerance
from tests.compiled import compilation


def compiled(
    model: onnx.ModelProto, folder: Path, name: str = "nvdla-small", **options: Any
) -> tuple[Path, Path, program.Program]:
    """The model file, the program's directory, and the program as loaded from it."""
    path, directory = folder / "network.onnx", folder / "network.npu"
    onnx.save(model, path)
    made = compilation(Request(path, target(name), Options(**options))).program
    program.save(made, directory)
    return path, directory, program.load(directory)


def verified(
    model: onnx.ModelProto,
    folder: Path,
    name: str = "nvdla-small",
    samples: int = 2,
    tolerance: Tolerance | None = None,
    **options: Any,
) -> dict[str, Any]:
    """The verification report of the compiled model (`judged`)."""
    return judged(compiled(model, folder, name, **options), name, samples, tolerance)


def judged(
    made: tuple[Path, Path, program.Program],
    name: str = "nvdla-small",
    samples: int = 2,
    tolerance: Tolerance | None = None,
) -> dict[str, Any]:
    """The verification report of a program on noise, with the compile report under `compiled`.

    Whether every bit is right says `bit_exact`: on samples of every other kind, too. A network in fp16, of which
    no bits are compared, runs on the noise alone if it is so large that one sample is asked for.
    """
    path, directory, loaded = made
    inputs, admitted = running.program_inputs(loaded), tolerance or Tolerance()
    whole = replace(loaded, evidence=program.load_evidence(directory, loaded))
    check = check_of(path, whole, target(name), "own")
    check.batch(data.synthetic(inputs, samples, seed=1))
    report = {**check.report(admitted), "compiled": loaded.manifest["report"]}
    if report["bit_exact"] is None and samples == 1:
        return report
    check.batch(data.varied_samples(inputs, 4))
    return {**report, "bit_exact": check.report(admitted)["bit_exact"]}


def expect_exact(report: dict[str, Any], sqnr_db: float = 20.0) -> None:
    """The program agrees with the integer network in every bit, and with fp32 as int8 may."""
    assert report["bit_exact"] is True
    for output in report["outputs"]:
        assert output["sqnr_db"] is None or output["sqnr_db"] >= sqnr_db, output


def expect_close(report: dict[str, Any], sqnr_db: float = 60.0) -> None:
    """The outputs of a program in fp16 differ from fp32 by roundings."""
    assert report["bit_exact"] is None
    for output in report["outputs"]:
        assert output["cosine"] >= 0.9999, output
        assert output["sqnr_db"] is None or output["sqnr_db"] >= sqnr_db, output
