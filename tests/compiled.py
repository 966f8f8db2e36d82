"""Programs of models: compiled, read back from their artefacts, verified, and what runs where."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx

from npuc import running
from npuc.account import FOLDED, REMOVED, account_of, groups, reasons
from npuc.driver import compile_model
from npuc.errors import NpucError
from npuc.frontend import load as load_model
from npuc.ir import Graph
from npuc.pipeline import run_passes
from npuc.program import Program, load, save
from npuc.regions.assembling import LoweredPart
from npuc.regions.compilation import compile_parts
from npuc.regions.composite import target_of
from npuc.regions.planning import passes_of
from npuc.samples.loading import Samples, synthetic
from npuc.target import FLOATING, Options, Request, target
from npuc.verification.checking import verify
from npuc.verification.metrics import Tolerance


def compilation(request: Request) -> LoweredPart:
    """The program of a request with its graph and calibration samples. Raises what the target refuses."""
    parts = Kept()
    program, _ = compile_parts(request, parts)
    left = [each.problem for each in reasons(account_of(program.manifest)) if each.problem.code[0] == "E"]
    if left:
        raise NpucError.of(left)
    return replace(parts.found[-1], program=program)


class Kept:
    """Parts as they were lowered, not proved."""

    def __init__(self) -> None:
        self.found: list[LoweredPart] = []

    def part(self, lowered: LoweredPart, model: Path) -> Program:
        self.found.append(lowered)
        return lowered.program

    def whole(self, program: Program, graphs: Sequence[Graph], samples: Samples) -> Program:
        return program

    def judge(self, program: Program, *_: object) -> tuple[Program, tuple[()]]:
        return program, ()


def optimised(request: Request) -> Graph:
    """The float graph of a model after all passes of a target, whether it runs them or not."""
    passes = passes_of(request.target, request.options)
    return run_passes(load_model(request.model, request.shapes), passes, request.hook)


def verified(
    request: Request,
    folder: Path,
    samples: Samples | tuple[int, int] | None = None,
    tolerance: Tolerance = Tolerance(0, 0),  # noqa: B008  (frozen)
) -> tuple[Program, dict[str, Any]]:
    """The program of a request, read back from a folder, and the report of its verification.

    samples: those of the calibration by default, or the count and the seed of synthetic ones.
    """
    made, directory = compilation(request), folder / "program"
    save(made.program, directory, force=True)
    loaded = load(directory)
    if isinstance(samples, tuple):
        count, seed = samples
        samples = synthetic(running.program_inputs(loaded), count, seed=seed)
    return loaded, verify(request.model, directory, loaded, request.target, samples or made.samples, tolerance)


def program_of(
    model: onnx.ModelProto,
    folder: Path,
    name: str = "easynpu",
    options: Mapping[str, Any] | None = None,
    calibration: Sequence[Path] = (),
) -> Program:
    """The program as it is read back from its artefact in folder/out.npu; the model is folder/m.onnx."""
    onnx.save(model, folder / "m.onnx")
    machine = target(name)
    asked = Options(**{"precision": machine.precisions[0], "level": "0", **(options or {})})
    program, _ = compile_model(Request(folder / "m.onnx", machine, asked, calibration))
    save(program, folder / "out.npu")
    return load(folder / "out.npu")


def checked(program: Program, folder: Path, samples: Samples | None = None) -> dict[str, Any]:
    """The verification of such a program on other samples than those of its calibration."""
    samples = samples or synthetic(running.program_inputs(program), 3, seed=5)
    limits = Tolerance(60.0, 0.9999) if program.precision in FLOATING else Tolerance(12.0, 0.95)
    return verify(folder / "m.onnx", folder / "out.npu", program, target_of(program), samples, limits)


def places(program: Program) -> list[tuple[str, tuple[str, ...]]]:
    """Where what runs: place and operators, in order."""
    entries = [each for each in account_of(program.manifest) if each.place not in (FOLDED, REMOVED)]
    told = program.manifest["report"]["partitions"]
    paths = [(each["place"], each["path"]) for each in told]
    return [
        (place, tuple(each.op for each in entries if path is None or path in each.paths)) for place, path in paths
    ]


def causes(program: Program) -> list[str]:
    """The codes for which nodes are on the host, in the model's order."""
    return [each["code"] for each in groups(reasons(account_of(program.manifest)))]
