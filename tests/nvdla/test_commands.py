"""The command line on an NVDLA program: every command that applies runs and ends as the contract says."""

from __future__ import annotations

import json
import re
from pathlib import Path

import onnx
import pytest
from click.testing import CliRunner

from npuc.cli import npuc
from npuc.flags import options_of
from npuc.models import MODELS
from npuc.target import target as named
from tests.cli.process import SYNTHETIC


@pytest.fixture(scope="module")
def artefact(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """digits for nv_small."""
    folder = tmp_path_factory.mktemp("commands")
    onnx.save(MODELS["digits"](), folder / "digits.onnx")
    out = folder / "digits.npu"
    arguments = [
        "compile", *SYNTHETIC, str(folder / "digits.onnx"), "--target", "nvdla-small", "-o", str(out), "-v",
    ]  # fmt: skip
    result = CliRunner().invoke(npuc, arguments, catch_exceptions=False)
    assert result.exit_code == 0 and "cycles modelled" in result.output
    return out


@pytest.mark.parametrize(("arguments", "said"), [
    (["dump"], "wait for SDP_0"), (["dump", "--format", "csv"], "index,word,text,nodes,tensor"),
    (["dump", "--json"], '"instructions"'), (["explain", "n0_Conv"], "CDMA.D_BANK"),
    (["report", "-o", "page.html"], "page.html"),
])  # fmt: skip
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
def test_a_form_of_weights_that_a_target_lacks_is_refused(target: str, form: str) -> None:
    with pytest.raises(ValueError, match=f"{target} has no weights '{form}'"):
        options_of(named(target), None, {"weights": form})


def test_forms_of_weights_are_told_with_what_each_would_cost(tmp_path: Path) -> None:
    onnx.save(MODELS["digits"](), tmp_path / "digits.onnx")
    arguments = ["compile", *SYNTHETIC, str(tmp_path / "digits.onnx"), "--target", "nvdla-full", "--json"]
    result = CliRunner().invoke(npuc, [*arguments, "-o", str(tmp_path / "out")], catch_exceptions=False)
    layers = [each for each in json.loads(result.stdout)["layers"] if each["op"] == "convolution"]
    for layer in layers:
        costs = {each["weight_form"]: (each["cycles"], each["bytes"]) for each in layer["alternatives"]}
        assert costs[layer["weight_form"]] == min(costs.values()) and {"direct", "sparse"} <= costs.keys()
    explained = CliRunner().invoke(
        npuc, ["explain", str(tmp_path / "out"), layers[0]["name"]], catch_exceptions=False
    )
    assert f"weights as {layers[0]['weight_form']}" in explained.output and "direct: " in explained.output


def test_the_dump_groups_writes_by_operation_and_unit_and_decodes_them(artefact: Path) -> None:
    """The first layer of digits by hand: 1 x 8 x 8 to 16 x 8 x 8, 3 x 3 padded, the upper half first."""
    lines = CliRunner().invoke(npuc, ["dump", str(artefact)]).output.splitlines()
    layer = next(line for line in lines if line.startswith("; n0_Conv, n1_Relu"))
    assert "[16x8x8], " in layer and layer.endswith(" cycles")
    operations = [line for line in lines if line.startswith(";   convolution")]
    assert "ping-pong group 0" in operations[0] and "ping-pong group 1" in operations[1]
    assert ": 1x5x8 -> 16x4x8, 0x8" in operations[0] and re.search(r" -> 0x8\d+$", operations[0])
    units = [line for line in lines if line.startswith(";     ")]
    assert ";     CDMA, group 0" in units and ";     CDMA, group 1" in units
    width = next(line for line in lines if "SDP.D_DATA_CUBE_WIDTH" in line)
    assert width.split()[1:] == ["00000007", "SDP.D_DATA_CUBE_WIDTH", "WIDTH=7"]
    numbers = [line.partition(":")[0].strip() for line in lines if line and not line.startswith(";")]
    assert numbers == list(map(str, range(len(numbers))))
