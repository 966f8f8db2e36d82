"""Data files as samples of a program's inputs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from npuc.program import Program
from npuc.regions.artefact import of_host_alone
from npuc.running import program_inputs
from npuc.samples import loading as data
from npuc.samples.loading import Samples


def samples_of(program: Program, files: Sequence[Path]) -> Samples:
    """The samples of data files for a program; an input that only the host reads may be infinite, as in a mask.

    Raises DataError (E401, E402) as `data.load`.
    """
    return data.load(files, program_inputs(program), of_host_alone(program), program.images)
