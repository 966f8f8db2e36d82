"""Integers of a float model need ranges: who gave them is asked for, recorded and told."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import npuc as package
from npuc.errors import DataError
from tests.cli.process import SYNTHETIC, Digits, npuc


@pytest.mark.parametrize("command", [
    ("compile", "--target", "easynpu", "-o", "out"), ("compile", "--target", "nvdla-small", "-q", "-o", "out"),
    ("compile", "--target", "bm1684", "--precision", "int8", "-o", "out"),
    ("compile", "--target", "nvdla-full", "--precision", "int16", "-o", "out"),
    ("quantize", "--target", "easynpu", "-o", "out"),
])  # fmt: skip
def test_integers_of_a_float_model_are_not_compiled_without_samples(
    digits: Digits, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert "--calibration synthetic" in npuc(command[0], digits.model, *command[1:]).refused("E404")
    assert not (tmp_path / "out").exists()


def test_python_and_tables_of_accuracy_refuse_as_the_command_does(digits: Digits) -> None:
    with pytest.raises(DataError, match="E404"):
        package.compile(digits.model, "easynpu")
    with pytest.raises(DataError, match="E404"):
        package.compile_variants(digits.model, "easynpu", input_shapes=[{}, {}])
    target = ("--target", "easynpu")
    assert (
        npuc("compare", digits.model, *target, "--data", digits.few, "--json").json["errors"][0]["code"] == "E404"
    )
    assert npuc("compare", digits.model, *target, "--json").json["status"] == "ok"  # costs need no ranges


@pytest.mark.parametrize(("target", "precision"), [("bm1684", "fp32"), ("nvdla-full", "fp16")])
def test_floating_point_needs_none(digits: Digits, target: str, precision: str, tmp_path: Path) -> None:
    npuc("compile", digits.model, "--target", target, "--precision", precision, "-o", tmp_path / "o").done()
    assert _manifest(tmp_path / "o")["origin"] == "none"


def _manifest(program: Path) -> Any:
    return json.loads((program / "manifest.json").read_text())["ranges"]


def test_the_manifest_and_verify_say_where_ranges_come_from(digits: Digits, tmp_path: Path) -> None:
    target = ("--target", "easynpu")
    npuc("quantize", digits.model, *target, "--calibration", digits.few, "-o", tmp_path / "q.onnx").done()
    npuc("compile", tmp_path / "q.onnx", *target, "-o", tmp_path / "q").done()
    assert _manifest(tmp_path / "q") == {"origin": "model", "files": [], "samples": 0, "sha256": ""}
    npuc("compile", digits.model, *target, "--calibration", digits.few, "-o", tmp_path / "d").done()
    digest = hashlib.sha256(hashlib.sha256(digits.few.read_bytes()).hexdigest().encode()).hexdigest()
    wanted = {"origin": "samples", "files": [digits.few.name], "samples": 4, "sha256": digest}
    assert _manifest(tmp_path / "d") == wanted
    command = ("verify", digits.model, tmp_path / "d", "--data", digits.few)
    assert npuc(*command, "--json").json["ranges"] == wanted
    told = f"activation ranges: 4 samples of {digits.few.name} ({digest[:12]})"
    assert told in npuc(*command).done()
    assert told in npuc("accuracy", *command[1:]).done()
    npuc("report", tmp_path / "d", "-o", tmp_path / "d.html").done()
    assert told in (tmp_path / "d.html").read_text("utf-8").replace("Activation", "activation")
    npuc("compile", digits.model, *target, *SYNTHETIC, "-o", tmp_path / "s").done()
    assert _manifest(tmp_path / "s") == {"origin": "synthetic", "files": [], "samples": 8, "sha256": ""}
    assert "8 synthetic samples, no data" in npuc("verify", digits.model, tmp_path / "s").done()


def test_a_mismatch_names_what_it_likely_comes_from(digits: Digits, tmp_path: Path) -> None:
    with np.load(digits.few) as file:
        pixels = file["x"].astype(np.float32)
    np.savez(tmp_path / "far.npz", x=pixels * 40)
    command = ("verify", digits.model, digits.program)
    assert npuc(*command, "--data", digits.few, "--json").json["causes"] == []
    far = npuc(*command, "--data", tmp_path / "far.npz", "--json").json
    assert far["status"] == "mismatch" and "beyond the calibrated range" in far["causes"][0]["cause"]
    npuc("compile", digits.model, "--target", "easynpu", *SYNTHETIC, "-o", tmp_path / "s").done()
    poor = ("verify", digits.model, tmp_path / "s", "--data", tmp_path / "far.npz")
    assert "likely: the activation ranges come from synthetic samples" in npuc(*poor).out
    other = onnx.load(digits.model)
    other.doc_string = "another"
    onnx.save(other, tmp_path / "other.onnx")
    strange = npuc("verify", tmp_path / "other.onnx", *poor[2:], "--allow-modified", "--json").json
    assert "another model" in strange["causes"][0]["cause"]


def test_synthetic_samples_and_files_exclude_each_other(digits: Digits, tmp_path: Path) -> None:
    given = (*SYNTHETIC, "--calibration", digits.few)
    npuc("compile", digits.model, "--target", "easynpu", *given, "-o", tmp_path / "o").refused("E401")
