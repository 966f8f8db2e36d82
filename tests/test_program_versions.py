"""A program of every format version: the current one runs, those before are refused by both versions.

`tests/programs/version-N` is digits on EasyNPU as an npuc of that version wrote it, without the evidence.
Whoever raises the version adds a folder: `npuc compile models/digits.onnx --target easynpu --calibration ...`.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from npuc import running
from npuc.errors import ArtefactError
from npuc.models.digits import FOLDER
from npuc.program import VERSION, load
from npuc.reference import session
from npuc.samples import loading as data
from npuc.target import target

PROGRAMS = Path(__file__).parent / "programs"
OLDER = range(1, VERSION)


def _folder(version: int) -> Path:
    return PROGRAMS / f"version-{version}"


def test_there_is_a_program_of_every_version() -> None:
    found = {
        path.name: json.loads((path / "manifest.json").read_text("utf-8"))["version"]
        for path in PROGRAMS.iterdir()
    }
    assert found == {f"version-{version}": version for version in range(1, VERSION + 1)}


def test_a_program_of_the_current_version_runs_as_the_model_does() -> None:
    program = load(_folder(VERSION))
    samples = data.load([FOLDER / "digits_test.npz"], running.program_inputs(program)).first(40)
    (found,) = running.run_program(program, target("easynpu"), samples).values()
    model = session(FOLDER / "digits.onnx")
    exact = np.stack([model.run(None, feed)[0].ravel() for feed in samples.feeds()])
    error = np.square(found.reshape(exact.shape) - exact).sum()
    assert 10 * np.log10(np.square(exact).sum() / error) > 30


@pytest.mark.parametrize("version", OLDER)
def test_a_program_of_an_older_version_is_refused_by_both_versions(version: int) -> None:
    with pytest.raises(ArtefactError) as caught:
        load(_folder(version))
    (problem,) = caught.value.problems
    assert problem.code == "E501" and f"format version {version}" in problem.reason
    assert problem.limit is not None and f"version {VERSION}" in problem.limit
    assert problem.help is not None and "npuc compile" in problem.help
