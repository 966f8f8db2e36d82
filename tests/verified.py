"""Programs compiled, written, read back and verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from npuc import program, running
from npuc.samples.loading import Samples, synthetic
from npuc.target import Request
from npuc.verification.checking import verify
from npuc.verification.metrics import Tolerance
from tests.compiled import compilation


def verified(
    request: Request,
    folder: Path,
    samples: Samples | tuple[int, int] | None = None,
    tolerance: Tolerance = Tolerance(0, 0),  # noqa: B008  (frozen)
) -> tuple[program.Program, dict[str, Any]]:
    """The program of a request, read back from a folder, and the report of its verification.

    samples: those of the calibration by default, or the count and the seed of synthetic ones.
    """
    made, directory = compilation(request), folder / "program"
    program.save(made.program, directory, force=True)
    loaded = program.load(directory)
    if isinstance(samples, tuple):
        count, seed = samples
        samples = synthetic(running.program_inputs(loaded), count, seed=seed)
    return loaded, verify(request.model, directory, loaded, request.target, samples or made.samples, tolerance)
