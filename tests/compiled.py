"""Programs of models that a target runs whole, not proved, with what they were made of."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from npuc.frontend import load
from npuc.ir import Graph
from npuc.pipeline import run_passes
from npuc.program import Program
from npuc.regions.assembling import Lowered
from npuc.regions.compilation import compiled
from npuc.regions.planning import passes_of
from npuc.target import Request


def compilation(request: Request) -> Lowered:
    """The program of a request with its graph and calibration samples. Raises what the target refuses."""
    parts: list[Lowered] = []

    def keep(lowered: Lowered, _model: Path) -> Program:
        parts.append(lowered)
        return lowered.program

    program, _ = compiled(replace(request, options=replace(request.options, fallback="refuse")), keep)
    return replace(parts[-1], program=program)


def optimised(request: Request) -> Graph:
    """The float graph of a model after all passes of a target, whether it runs them or not."""
    passes = passes_of(request.target, request.options)
    return run_passes(load(request.model, request.shapes), passes, request.hook)
