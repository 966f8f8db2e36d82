"""Programs of models that a target runs whole, not proved, with what they were made of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from npuc.account import account_of, reasons
from npuc.errors import NpucError
from npuc.frontend import load
from npuc.ir import Graph
from npuc.pipeline import run_passes
from npuc.program import Program
from npuc.regions.assembling import Lowered
from npuc.regions.compilation import compiled
from npuc.regions.planning import passes_of
from npuc.samples.loading import Samples
from npuc.target import Request


def compilation(request: Request) -> Lowered:
    """The program of a request with its graph and calibration samples. Raises what the target refuses."""
    parts = Kept()
    program, _ = compiled(request, parts)
    left = [each.problem for each in reasons(account_of(program.manifest)) if each.problem.code[0] == "E"]
    if left:
        raise NpucError.of(left)
    return replace(parts.found[-1], program=program)


class Kept:
    """Parts as they were lowered, not proved."""

    def __init__(self) -> None:
        self.found: list[Lowered] = []

    def part(self, lowered: Lowered, model: Path) -> Program:
        self.found.append(lowered)
        return lowered.program

    def whole(self, program: Program, graphs: Sequence[Graph], samples: Samples) -> Program:
        return program


def optimised(request: Request) -> Graph:
    """The float graph of a model after all passes of a target, whether it runs them or not."""
    passes = passes_of(request.target, request.options)
    return run_passes(load(request.model, request.shapes), passes, request.hook)
