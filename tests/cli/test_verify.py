"""`npuc verify`: what it compares, what it reports, and when it says no."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from npuc.models import MODELS
from tests.cli.process import Digits, WriteModel, compiled, npuc
from tests.files import arrays

MEASURES = {"sqnr_db", "cosine", "max_abs_error", "exact"}


def test_the_report_has_every_key_of_the_contract(digits: Digits) -> None:
    report = npuc("verify", digits.model, digits.program, "--data", digits.few, "--json").json
    assert report["status"] == "ok" and report["samples"] == 4 and report["bit_exact"] is True
    assert report["argmax_agreement"] == 1.0
    (output,) = report["outputs"]
    assert output["name"] == "n11_Gemm" and output.keys() >= MEASURES and output["sqnr_db"] > 20
    assert len(report["layers"]) >= 5
    for layer in report["layers"]:
        assert {"name", "op"} | MEASURES <= layer.keys()
        assert layer["entire"].keys() == layer["single"].keys() == MEASURES
        assert layer["bit_exact"] is True and layer["differing_elements"] == 0


def test_layers_carry_the_names_of_the_onnx_tensors(digits: Digits) -> None:
    report = npuc("verify", digits.model, digits.program, "--data", digits.few, "--json").json
    written = {name for node in onnx.load(digits.model).graph.node for name in node.output}
    assert {layer["name"] for layer in report["layers"]} <= written


def test_the_table_ends_in_a_verdict(digits: Digits) -> None:
    lines = npuc("verify", digits.model, digits.program, "--data", digits.few).done().splitlines()
    assert lines[0].split()[:2] == ["layer", "op"] and lines[-1] == "verified"
    assert "argmax as fp32: 1.0000 of 4 samples" in lines
    assert "simulator and integer reference agree in every bit" in lines


def test_without_data_eight_fixed_samples_are_announced(digits: Digits) -> None:
    first = npuc("verify", digits.model, digits.program, "--min-sqnr", "-100", "--min-cosine", "-1", "--json")
    second = npuc("verify", digits.model, digits.program, "--min-sqnr", "-100", "--min-cosine", "-1", "--json")
    assert first == second and first.json["samples"] == 8
    assert first.err.startswith("note: verified on synthetic data (8 varied samples, fixed seed)")


def test_the_number_of_samples_can_be_limited(digits: Digits) -> None:
    command = ("verify", digits.model, digits.program, "--data", digits.few, "--json", "--samples")
    assert npuc(*command, "3").json["samples"] == 3
    assert npuc(*command, "99").json["samples"] == 4
    assert "--samples" in npuc(*command[:-2], "--samples", "0").usage()


@pytest.mark.parametrize("tolerance", [("--min-sqnr", "90"), ("--min-cosine", "0.9999999")])
def test_outside_the_tolerance_the_status_is_mismatch(digits: Digits, tolerance: tuple[str, str]) -> None:
    command = ("verify", digits.model, digits.program, "--data", digits.few, *tolerance)
    outcome = npuc(*command, "--json")
    assert outcome.code == 1 and outcome.json["status"] == "mismatch" and outcome.json["bit_exact"] is True
    assert outcome.err == ""
    text = npuc(*command)
    assert text.code == 1 and text.out.splitlines()[-1].startswith("MISMATCH (tolerance: n11_Gemm at least")


def test_a_changed_model_is_refused(digits: Digits, tmp_path: Path) -> None:
    model = onnx.load(digits.model)
    model.producer_name = "someone else"
    onnx.save(model, tmp_path / "changed.onnx")
    command = ("verify", tmp_path / "changed.onnx", digits.program, "--data", digits.few)
    assert "another model" in npuc(*command).refused("E501")
    npuc(*command, "--allow-modified").done()


def test_a_renamed_model_is_the_same_model(digits: Digits, tmp_path: Path) -> None:
    shutil.copy(digits.model, tmp_path / "renamed.onnx")
    npuc("verify", tmp_path / "renamed.onnx", digits.program, "--data", digits.few).done()


def test_another_model_is_refused_without_a_traceback_even_if_modifications_are_allowed(
    digits: Digits, tmp_path: Path
) -> None:
    onnx.save(MODELS["autoencoder"](), tmp_path / "other.onnx")
    outcome = npuc("verify", tmp_path / "other.onnx", digits.program, "--data", digits.few, "--allow-modified")
    assert outcome.code == 1 and outcome.err.startswith("error[E") and outcome.err.count("error[") == 1


def test_a_missing_model_is_reported_as_such(digits: Digits, tmp_path: Path) -> None:
    npuc("verify", tmp_path / "none.onnx", digits.program, "--data", digits.few).refused("E101")


def test_a_changed_weight_is_found_in_its_layer_and_not_before(digits: Digits, copy: Path) -> None:
    weights = bytearray((copy / "weight.bin").read_bytes())
    weights[-16:] = bytes(16 * [0x55])  # the last weights: those of the fully connected layer
    (copy / "weight.bin").write_bytes(weights)
    npuc("verify", digits.model, copy, "--data", digits.few).refused("E502")
    outcome = npuc("verify", digits.model, copy, "--data", digits.few, "--allow-modified", "--json")
    assert outcome.code == 1 and outcome.json["status"] == "mismatch" and outcome.json["bit_exact"] is False
    assert outcome.err == "warning: weight.bin is loaded though it does not match its sha256\n"
    assert [layer["bit_exact"] for layer in outcome.json["layers"][:-1]] == [True] * (
        len(outcome.json["layers"]) - 1
    )
    assert outcome.json["layers"][-1]["differing_elements"] > 0
    text = npuc("verify", digits.model, copy, "--data", digits.few, "--allow-modified")
    assert "simulator and integer reference DIFFER" in text.out


def test_exact_outputs_have_no_decibels(write: WriteModel, tmp_path: Path) -> None:
    np.savez(tmp_path / "x.npz", x=np.zeros((1, 3, 8, 8), np.float32))  # whatever the scale, int8 holds zero
    model = write("g (float[1,3,8,8] x) => (float[1,3,8,8] y) { y = Relu(x) }")
    compiled(model, tmp_path / "o").done()
    report = npuc("verify", model, tmp_path / "o", "--data", tmp_path / "x.npz", "--json").json
    (output,) = report["outputs"]
    assert (output["sqnr_db"], output["cosine"], output["max_abs_error"], output["exact"]) == (
        None,
        1.0,
        0.0,
        True,
    )


def _top(values: np.ndarray, labels: np.ndarray, count: int) -> float:
    """The share of samples whose label is among the largest `count` values."""
    return float(np.mean([label in np.argsort(-each)[:count] for each, label in zip(values, labels, strict=True)]))


def test_labels_give_the_share_of_right_answers_of_every_computation(digits: Digits, tmp_path: Path) -> None:
    with np.load(digits.test) as file:
        images, labels = file["x"][:40], file["y"][:40].copy()
    labels[::4] = (labels[::4] + 1) % 10  # as if a quarter of the answers were wrong
    np.savez(tmp_path / "some.npz", x=images, y=labels)
    command = ("verify", digits.model, digits.program, "--data", tmp_path / "some.npz")
    task = npuc(*command, "--json").json["task"]
    session = onnxruntime.InferenceSession(str(digits.model))
    port = session.get_inputs()[0]
    exact = [session.run(None, {port.name: each.reshape(port.shape)})[0][0] for each in images.astype(np.float32)]
    npuc("run", digits.program, "--data", tmp_path / "some.npz", "-o", tmp_path / "y.npz").done()
    simulated = arrays(tmp_path / "y.npz")["n11_Gemm"]
    for name, values in (("fp32", np.stack(exact)), ("simulator", simulated), ("integer", simulated)):
        assert task[name] == {"top1": _top(values, labels, 1), "top5": _top(values, labels, 5)}
    assert 0.6 < task["fp32"]["top1"] <= 0.75 < 1
    text = npuc(*command).done()
    assert f"simulator  top-1 {100 * task['simulator']['top1']:.2f} %, top-5" in text


def test_without_labels_nothing_is_said_of_the_task(digits: Digits, tmp_path: Path) -> None:
    with np.load(digits.few) as file:
        np.savez(tmp_path / "x.npz", x=file["x"])
    command = ("verify", digits.model, digits.program, "--data", tmp_path / "x.npz")
    assert npuc(*command, "--json").json["task"] is None
    assert "top-1" not in npuc(*command).done()
