"""`npuc run --stepping` and `--trace`: outputs, counts, the dump, and refusals."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest

from npuc.models.digits import FOLDER
from npuc.targets.easynpu.target import EasyNpu
from tests.cli.process import compiled, npuc
from tests.easynpu_stepping import vcd
from tests.files import arrays


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("digits") / "digits.npu"
    compiled(FOLDER / "digits.onnx", folder, "--calibration", FOLDER / "digits_calibration.npz").done()
    return folder


@pytest.fixture(scope="module")
def samples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "samples.npz"
    np.savez(path, x=arrays(FOLDER / "digits_test.npz")["x"][:3])
    return path


def test_stepping_gives_the_outputs_of_the_fast_simulator(artefact: Path, samples: Path, tmp_path: Path) -> None:
    npuc("run", artefact, "--data", samples, "-o", tmp_path / "fast.npz").done()
    text = npuc("run", artefact, "--data", samples, "-o", tmp_path / "slow.npz", "--stepping").done()
    with np.load(tmp_path / "fast.npz") as fast, np.load(tmp_path / "slow.npz") as slow:
        assert fast.files == slow.files
        for name in fast.files:
            np.testing.assert_array_equal(fast[name], slow[name])
    assert "cycles a sample" in text
    assert "n6_Conv n7_Relu" in text


def test_the_counts_are_part_of_the_json_object(artefact: Path, samples: Path, tmp_path: Path) -> None:
    options = ("run", artefact, "--data", samples, "-o", tmp_path / "y.npz", "--json")
    plain, stepped = npuc(*options).json, npuc(*options, "--stepping").json
    assert "cycles" not in plain
    assert stepped["cycles"] == sum(layer["cycles"] for layer in stepped["layers"])
    assert {key: stepped[key] for key in plain} == plain


def test_a_trace_holds_every_cycle_of_the_first_sample(artefact: Path, samples: Path, tmp_path: Path) -> None:
    dump = tmp_path / "signals.vcd"
    found = npuc("run", artefact, "--data", samples, "-o", tmp_path / "y.npz", "--trace", dump, "--json").json
    waves = vcd.read(dump.read_text(encoding="ascii"))
    assert len(waves["state"]) == found["cycles"]
    single = found["layers"][-1]  # the last layer has one psum: every other of its compute cycles is a bubble
    compute = sum(layer["compute_cycles"] for layer in found["layers"])
    assert waves["pe_en"].sum() == compute - single["compute_cycles"] // 2
    assert waves["bus_valid"].sum() == sum(layer["bus_words"] for layer in found["layers"])
    assert [each.name for each in tmp_path.iterdir() if each.name.startswith(".")] == []


def test_a_trace_that_cannot_be_written_is_refused(artefact: Path, samples: Path, tmp_path: Path) -> None:
    dump = tmp_path / "no folder" / "signals.vcd"
    npuc("run", artefact, "--data", samples, "-o", tmp_path / "y.npz", "--trace", dump).refused("E506")


@pytest.mark.parametrize("option", [["--stepping"], ["--trace", "signals.vcd"]])
def test_a_target_without_a_stepping_simulator_is_a_usage_error(
    option: list[str], artefact: Path, samples: Path, tmp_path: Path
) -> None:
    with patch.object(EasyNpu, "stepper", lambda *_: None):
        message = npuc("run", artefact, "--data", samples, "-o", tmp_path / "y.npz", *option).usage()
    assert "easynpu has no simulator for --stepping and --trace" in message
