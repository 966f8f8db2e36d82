"""Manifests that were changed and sealed again: they run or are refused, never a traceback."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from npuc import running
from npuc.errors import ArtefactError, NpucError
from npuc.models.digits import FOLDER
from npuc.program import Program
from npuc.samples.loading import Samples, synthetic
from npuc.target import Options, Request, target
from tests.compiled import compilation

WRONG: tuple[Any, ...] = (None, -1, 0, 10**7, 1.5, True, "", "other", [], [1, 2, 3, 4, 5], {}, {"a": 1}, [[]])


@pytest.fixture(scope="module")
def program() -> Program:
    """The digits network, whose manifest has host steps, a segment, loads and stores."""
    compiled = compilation(
        Request(FOLDER / "digits.onnx", target("easynpu"), Options(level="0"), [FOLDER / "digits_calibration.npz"])
    ).program
    return Program(json.loads(json.dumps(compiled.manifest)), compiled.files)


@pytest.fixture(scope="module")
def samples(program: Program) -> Samples:
    return synthetic(running.program_inputs(program), 2)


def _paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where every part of a JSON value stands; of longer lists the first and the last entry."""
    yield path
    if isinstance(value, dict):
        for key, each in value.items():
            yield from _paths(each, (*path, key))
    if isinstance(value, list):
        for index in {0, len(value) - 1} if value else ():
            yield from _paths(value[index], (*path, index))


def _changed(manifest: Any, path: tuple[Any, ...], value: Any, *, remove: bool = False) -> Any:
    found = copy.deepcopy(manifest)
    *parents, last = path
    at = found
    for key in parents:
        at = at[key]
    if remove:
        del at[last]
    else:
        at[last] = value
    return found


def _outcome(program: Program, manifest: Any, samples: Samples) -> str:
    changed, easynpu = Program(manifest, program.files), target("easynpu")
    for use in (
        lambda: running.program_inputs(changed),
        lambda: easynpu.listing(changed),
        lambda: running.run_program(changed, easynpu, samples),
    ):
        try:
            use()
        except ArtefactError as error:
            return str(error)
    return ""


@pytest.mark.parametrize("part", ["target", "machine", "init", "steps", "inputs", "outputs", "instructions"])
def test_no_change_to_a_part_of_the_manifest_gives_a_traceback(
    program: Program, samples: Samples, part: str
) -> None:
    refused = 0
    for path in _paths(program.manifest[part], (part,)):
        removed = _outcome(program, _changed(program.manifest, path, None, remove=True), samples)
        outcomes = [_outcome(program, _changed(program.manifest, path, value), samples) for value in WRONG]
        refused += sum(map(bool, [removed, *outcomes]))
    assert refused or part == "target"


@pytest.mark.parametrize(("path", "value", "reason"), [
    (("steps",), None, "steps is None"), (("steps", 1), 5, "steps[1] is 5"),
    (("steps", 1, "kind"), "fpga", "steps[1] is of kind 'fpga'"),
    (("steps", 1, "count"), "8", "steps[1].count is '8'"),
    (("steps", 1, "count"), 9, "9 words are run, 8 are loaded"),
    (("steps", 1, "count"), -1, "-1 words are run"), (("init", 0, "words"), -8, "damaged"),
    (("init", 0, "start"), 1, "do not fit"), (("init", 0, "memory"), "fmap", "damaged"),
    (("init", 0, "file"), "../itcm.bin", "damaged"), (("init", 1, "address"), 10**6, "do not fit"),
    (("steps", 1, "loads", 0, "tensor"), "nowhere", "nowhere"),
    (("steps", 1, "loads", 0, "channels"), 0, "damaged"), (("steps", 1, "loads", 0, "channels"), 2, "damaged"),
    (("steps", 1, "loads", 0, "start"), [0, 0, 1], "damaged"),
    (("steps", 1, "loads", 0, "start"), [0, 0], "start is [0, 0]"),
    (("steps", 1, "loads", 0, "place", "base"), -1, "words -1"),
    (("steps", 1, "loads", 0, "place", "memory"), "weight", "damaged"),
    (("steps", 1, "stores", 0, "shape"), [1, 11], "cannot reshape"),
    (("steps", 0, "op"), "NoSuchOperator", "cannot be computed"),
    (("steps", 0, "attrs"), {}, "cannot be computed"),
    (("steps", 0, "inputs"), ["nowhere"], "cannot be computed"),
    (("steps", 0, "outputs"), [], "cannot be computed"),
    (("machine", "pes"), 4, "machine of the artefact: pes = 4"),
    (("machine", "fmap_words"), 1, "of the fmap DTCM"),
    (("outputs", 0, "name"), "nowhere", "no step gives this output"),
])  # fmt: skip
def test_a_contradiction_is_named(
    program: Program, samples: Samples, path: tuple[Any, ...], value: Any, reason: str
) -> None:
    assert reason in _outcome(program, _changed(program.manifest, path, value), samples)


@pytest.mark.parametrize("name", ["itcm.bin", "weight.bin"])
@pytest.mark.parametrize("size", [0, 1, 16, 100])
def test_images_that_are_too_short_are_refused(program: Program, samples: Samples, name: str, size: int) -> None:
    changed = Program(program.manifest, {**program.files, name: program.files[name][:size]})
    with pytest.raises(ArtefactError):
        running.run_program(changed, target("easynpu"), samples)


@pytest.mark.parametrize("seed", range(60))
def test_random_bits_in_the_images_give_results_or_an_error_by_number(
    program: Program, samples: Samples, seed: int
) -> None:
    random = np.random.default_rng(seed)
    name = ("itcm.bin", "weight.bin")[seed % 2]
    data = np.frombuffer(program.files[name], np.uint8).copy()
    for at in random.integers(0, len(data), 3):
        data[at] ^= 1 << int(random.integers(0, 8))
    try:
        running.run_program(
            Program(program.manifest, {**program.files, name: data.tobytes()}), target("easynpu"), samples
        )
    except NpucError as error:
        assert "instruction" in str(error)  # noqa: PT017


def test_the_unchanged_manifest_runs(program: Program, samples: Samples) -> None:
    assert _outcome(program, program.manifest, samples) == ""


def test_the_program_runs_without_its_evidence(tmp_path: Path) -> None:
    from npuc.program import EVIDENCE, load, save

    compiled = compilation(Request(FOLDER / "digits.onnx", target("easynpu"), Options())).program
    save(compiled, tmp_path / "digits.npu")
    data = synthetic(running.program_inputs(compiled), 3)
    before = running.run_program(load(tmp_path / "digits.npu"), target("easynpu"), data)
    for name in EVIDENCE:
        (tmp_path / "digits.npu" / name).unlink()
    after = running.run_program(load(tmp_path / "digits.npu"), target("easynpu"), data)
    assert before.keys() == after.keys()
    for name, values in before.items():
        np.testing.assert_array_equal(values, after[name])
