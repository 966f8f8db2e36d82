"""The command line on an NVDLA program: every command that applies runs and ends as the contract says."""

from __future__ import annotations

import json
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner

from npuc.cli import npuc
from npuc.models import MODELS


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """digits for nv_small."""
    folder = tmp_path_factory.mktemp("commands")
    onnx.save(MODELS["digits"](), folder / "digits.onnx")
    out = folder / "digits.npu"
    arguments = ["compile", str(folder / "digits.onnx"), "--target", "nvdla-small", "-o", str(out), "-v"]
    result = CliRunner().invoke(npuc, arguments, catch_exceptions=False)
    assert result.exit_code == 0 and "cycles modelled" in result.output
    return out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["dump"], "wait for SDP_0"),
        (["dump", "--format", "csv"], "index,word,text,nodes,tensor"),
        (["dump", "--json"], '"instructions"'),
        (["explain", "n0_Conv"], "CDMA.D_BANK"),
        (["report", "-o", "page.html"], "page.html"),
    ],
)
def test_a_program_is_listed_explained_and_reported(
    artefact: Path, arguments: list[str], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(artefact.parent)
    command, *rest = arguments
    positional = [*rest[:1], *rest[1:]] if command == "explain" else rest
    result = CliRunner().invoke(npuc, [command, str(artefact), *positional], catch_exceptions=False)
    assert result.exit_code == 0 and said in result.output


def test_it_verifies_bit_exact_and_runs(artefact: Path) -> None:
    model = artefact.parent / "digits.onnx"
    result = CliRunner().invoke(npuc, ["verify", str(model), str(artefact), "--json"], catch_exceptions=False)
    assert result.exit_code == 0
    assert json.loads(result.stdout)["bit_exact"] is True


@pytest.mark.parametrize("name", ["nvdla-small", "nvdla-large", "nvdla-full"])
def test_registers_operators_and_targets_are_listed(name: str) -> None:
    layout = CliRunner().invoke(npuc, ["dump", "--layout", "--target", name], catch_exceptions=False)
    assert "CDMA.D_BANK" in layout.output and "WEIGHT_BANK" in layout.output
    operators = CliRunner().invoke(npuc, ["operators", "--target", name], catch_exceptions=False)
    assert "CONV + SDP" in operators.output and "Softmax" in operators.output
    targets = CliRunner().invoke(npuc, ["targets"], catch_exceptions=False)
    assert name in targets.output


def test_the_report_of_a_compilation_has_the_contracts_fields(artefact: Path) -> None:
    report = json.loads((artefact / "manifest.json").read_text("utf-8"))["report"]
    assert {"target", "machine", "instructions", "segments", "macs", "cycles", "ideal_cycles"} <= report.keys()
    assert set(report["memory"]) == {"dram", "cbuf"}
    for layer in report["layers"]:
        assert {"name", "op", "nodes", "macs", "cycles"} <= layer.keys()
    assert report["memory"]["cbuf"]["peak_bytes"] <= report["memory"]["cbuf"]["capacity_bytes"] == 131072


@pytest.mark.parametrize(
    ("target", "form"),
    [("easynpu", "auto"), ("bm1684", "direct"), ("nvdla-small", "sparse"), ("nvdla-large", "winograd")],
)
def test_a_form_of_weights_that_a_target_lacks_is_a_usage_error(target: str, form: str, tmp_path: Path) -> None:
    onnx.save(MODELS["digits"](), tmp_path / "digits.onnx")
    arguments = ["compile", str(tmp_path / "digits.onnx"), "--target", target, "--weights", form]
    result = CliRunner().invoke(npuc, [*arguments, "-o", str(tmp_path / "out")])
    assert result.exit_code == 2 and f"--weights {form} is not for it" in result.output
    assert not (tmp_path / "out").exists()


def test_forms_of_weights_are_told_with_what_each_would_cost(tmp_path: Path) -> None:
    onnx.save(MODELS["digits"](), tmp_path / "digits.onnx")
    arguments = ["compile", str(tmp_path / "digits.onnx"), "--target", "nvdla-full", "--json"]
    result = CliRunner().invoke(npuc, [*arguments, "-o", str(tmp_path / "out")], catch_exceptions=False)
    layers = [each for each in json.loads(result.stdout)["layers"] if each["op"] == "convolution"]
    for layer in layers:
        costs = {each["weight_form"]: (each["cycles"], each["bytes"]) for each in layer["alternatives"]}
        assert costs[layer["weight_form"]] == min(costs.values()) and {"direct", "sparse"} <= costs.keys()
    explained = CliRunner().invoke(
        npuc, ["explain", str(tmp_path / "out"), layers[0]["name"]], catch_exceptions=False
    )
    assert f"weights as {layers[0]['weight_form']}" in explained.output and "direct: " in explained.output
