"""Where the ranges of a program's activations come from: nobody gets synthetic ones without asking for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from hashlib import sha256

from npuc.errors import DataError
from npuc.ir import Graph
from npuc.program import RANGES, Program, Ranges, file_sha256
from npuc.quantize.scales.model_scales import only_of_inputs
from npuc.samples.loading import Samples
from npuc.samples.sources import files_of
from npuc.target import FLOATING, Request


def only_models(request: Request) -> bool:
    """Whether only the model can give ranges: the program needs them, and nobody gave or asked for samples."""
    return not (request.synthetic or request.calibration or request.options.precision in FLOATING)


def expect_ranges(request: Request, graphs: Sequence[Graph]) -> None:
    """Raises DataError (E404) if ranges have to be chosen for one of these graphs, and nobody said from what.

    graphs: before quantisation. A model that is quantised already has ranges of its own.
    """
    bare = [graph for graph in graphs if only_of_inputs(graph)]
    if bare and only_models(request):
        needed, first = f"{request.options.precision} needs the ranges of ", bare[0].nodes[0]
        if len(bare) == len(graphs):
            raise DataError("E404", f"{needed}the model's activations")
        raise DataError("E404", f"{needed}what comes from here on", node=first.source, op=first.op)


def with_ranges(program: Program, request: Request, samples: Samples, graphs: Sequence[Graph]) -> Program:
    """The program of a request with the origin of its ranges in the manifest.

    samples: of the calibration. graphs: of its parts, before quantisation.
    """
    files = files_of(request.calibration)
    if not graphs:
        found = Ranges("none")
    elif files and samples.inputs:
        digest = sha256("".join(sorted(map(file_sha256, files))).encode()).hexdigest()
        found = Ranges("samples", tuple(sorted(each.name for each in request.calibration)), len(samples), digest)
    elif program.precision in FLOATING:
        found = Ranges("none")
    else:
        found = Ranges("synthetic", samples=len(samples)) if any(map(only_of_inputs, graphs)) else Ranges("model")
    told = {**asdict(found), "files": [*found.files]}  # as JSON has it
    return replace(program, manifest={**program.manifest, RANGES: told})
