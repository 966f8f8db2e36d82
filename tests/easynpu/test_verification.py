"""Verification notices what is wrong with a program: faults in words, weights, places, scales and evidence."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import npuc
from npuc import running
from npuc.errors import NpucError
from npuc.models.digits import FOLDER
from npuc.program import Program, load, save
from npuc.samples import loading as data
from npuc.target import Options, Request, target
from npuc.verification import checking
from tests.compiled import compilation

EASYNPU = target("easynpu")
MODEL = FOLDER / "digits.onnx"


@pytest.fixture(scope="module")
def digits() -> Program:
    compiled = compilation(
        Request(MODEL, EASYNPU, Options(level="0", method="mse"), [FOLDER / "digits_calibration.npz"])
    ).program
    return Program(json.loads(json.dumps(compiled.manifest)), compiled.files, compiled.evidence)


def _report(program: Program, folder: Path, samples: int = 8) -> dict[str, Any]:
    save(program, folder / "digits.npu")
    loaded = load(folder / "digits.npu")
    found = data.load([FOLDER / "digits_test.npz"], running.program_inputs(loaded)).first(samples)
    return checking.verify(MODEL, folder / "digits.npu", loaded, EASYNPU, found, checking.Tolerance())


def _segment(manifest: dict[str, Any]) -> dict[str, Any]:
    return next(step for step in manifest["steps"] if step["kind"] == "segment")


def _host(manifest: dict[str, Any], op: str) -> dict[str, Any]:
    return next(step for step in manifest["steps"] if step.get("op") == op)


def test_a_sound_program_agrees_in_every_layer(digits: Program, tmp_path: Path) -> None:
    report = _report(digits, tmp_path)
    assert (report["status"], report["bit_exact"], report["samples"]) == ("ok", True, 8)
    assert all(layer["bit_exact"] and layer["differing_elements"] == 0 for layer in report["layers"])
    assert [each["name"] for each in report["outputs"]] == ["n11_Gemm"]


def _scaled(manifest: dict[str, Any], op: str, factor: float) -> None:
    _host(manifest, op)["attrs"]["scale"] *= factor


FAULTS: dict[str, Callable[[dict[str, Any]], object]] = {
    "stored from another place": lambda m: _segment(m)["stores"][0]["place"].update(base=3),
    "loaded to another place": lambda m: _segment(m)["loads"][0]["place"].update(base=3),
    "input scale": lambda m: _scaled(m, "QuantizeLinear", 2),
    "output scale": lambda m: _scaled(m, "DequantizeLinear", 1.01),
    "a word less": lambda m: _segment(m).update(count=_segment(m)["count"] - 1),
    "a layer without its tensor": lambda m: m["instructions"][0].update(tensor=None),
    "layers exchanged": lambda m: m["instructions"][0].update(tensor=m["instructions"][-1]["tensor"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_manifest_is_noticed(digits: Program, tmp_path: Path, fault: str) -> None:
    manifest = copy.deepcopy(dict(digits.manifest))
    FAULTS[fault](manifest)
    try:
        report = _report(Program(manifest, digits.files, digits.evidence), tmp_path)
    except NpucError:
        return
    assert (report["status"], report["bit_exact"]) == ("mismatch", False)


def test_flipped_signs_of_weights_are_noticed(digits: Program, tmp_path: Path) -> None:
    """Not every weight matters on eight images; nine of ten do."""
    weights = np.frombuffer(digits.files["weight.bin"], np.uint8)
    random, noticed = np.random.default_rng(0), 0
    for at in random.choice(np.flatnonzero(weights), 30):
        changed = weights.copy()
        changed[at] ^= 0x80
        try:
            files = {**digits.files, "weight.bin": changed.tobytes()}
            noticed += not _report(Program(digits.manifest, files, digits.evidence), tmp_path)["bit_exact"]
        except NpucError:
            noticed += 1
    assert noticed >= 27


def test_the_first_layer_that_differs_is_the_one_with_the_fault(digits: Program, tmp_path: Path) -> None:
    layers = digits.manifest["report"]["layers"]
    faulty = next(position for position, layer in enumerate(layers) if layer["name"] == "n7_Relu")
    start = sum(layer["weight_words"] for layer in layers[:faulty]) + 5 * 4  # behind its bias-scale block
    weights = np.frombuffer(digits.files["weight.bin"], np.int8).reshape(-1, 16).copy()
    weights[start : start + 100] ^= -1
    report = _report(
        Program(digits.manifest, {**digits.files, "weight.bin": weights.tobytes()}, digits.evidence), tmp_path
    )
    names = [layer["name"] for layer in report["layers"]]
    at = names.index("n7_Relu")
    assert [layer["bit_exact"] for layer in report["layers"][:at]] == [True] * at
    assert report["layers"][at]["bit_exact"] is False


def test_another_model_is_refused_and_compared_all_the_same_if_that_is_allowed(
    digits: Program, tmp_path: Path
) -> None:
    other = tmp_path / "other.onnx"
    other.write_bytes(MODEL.read_bytes() + b"\x08\x08")  # ir_version once more: the same model, other bytes
    save(digits, tmp_path / "digits.npu")
    loaded = load(tmp_path / "digits.npu")
    samples = data.synthetic(running.program_inputs(loaded), 2)
    arguments = (other, tmp_path / "digits.npu", loaded, EASYNPU, samples, checking.Tolerance())
    with pytest.raises(NpucError) as caught:
        checking.verify(*arguments)
    assert caught.value.problems[0].code == "E501"
    assert checking.verify(*arguments, allow_modified=True)["bit_exact"] is True


EVIDENCE = [
    ("graph.json", b""), ("graph.json", b"[]"), ("graph.json", b"{}"), ("graph.json", b"\xff"),
    ("graph.json", b'{"tensors": {}, "layers": [{"tensor": "a"}]}'),
    ("graph.json", b'{"tensors": {"a": {"float": "b", "scale": 1.0, "shape": [1]}}, "layers": []}'),
    ("graph.json", b'{"tensors": {"a": {}}, "layers": []}'), ("graph.json", b'{"tensors": [], "layers": {}}'),
    ("reference.onnx", b""), ("reference.onnx", b"hello"), ("reference.onnx", b"\x08\x08"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "content"), EVIDENCE)
def test_evidence_that_is_none_is_refused(digits: Program, tmp_path: Path, name: str, content: bytes) -> None:
    changed = Program(digits.manifest, digits.files, {**digits.evidence, name: content})
    with pytest.raises(NpucError):
        _report(changed, tmp_path, samples=1)


def test_evidence_of_another_program_is_refused_or_differs(digits: Program, tmp_path: Path) -> None:
    compiled = compilation(Request(MODEL, EASYNPU, Options(machine="large", method="minmax"))).program
    for name in digits.evidence:
        changed = Program(digits.manifest, digits.files, {**digits.evidence, name: compiled.evidence[name]})
        try:
            report = _report(changed, tmp_path, samples=2)
        except NpucError:
            continue
        assert name == "graph.json" or report["status"] == "mismatch"  # graph.json: the same tensors, other scales


def test_an_output_without_elements_is_exact(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[1,4,3,3] x) => (float[1,0,3,3] y)'
        " <int64[1] s = {4}, int64[1] e = {9}, int64[1] a = {1}> { y = Slice(x, s, e, a) }"
    )
    path = tmp_path / "empty.onnx"
    onnx.save(parser.parse_model(text), path)
    report = npuc.verify(path, npuc.compile(path, target="easynpu", calibration="synthetic"))
    assert report["status"] == "ok" and report["argmax_agreement"] is None
    assert [each["exact"] for each in report["outputs"]] == [True]
