"""A target of another package: found by its entry point, compiled for, verified, run, listed and drawn."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import npuc as package
from npuc.registry import names
from npuc.target import Target, target
from tests.cli.process import SYNTHETIC, npuc

HERE = Path(__file__).resolve().parent


def install(folder: Path, name: str, value: str) -> None:
    """What an installer leaves of a package: the entry points of its pyproject.toml."""
    info = folder / f"npuc_{name}-0.1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: npuc-{name}\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(f"[npuc.targets]\n{name} = {value}\n")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    toml = (HERE / "pyproject.toml").read_text(encoding="utf-8")
    ((name, value),) = re.findall(r'"npuc\.targets"\]\n(\w+) = "(.*)"', toml)
    install(tmp_path / "site", name, value)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.syspath_prepend(str(HERE))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """12 -> 20 with ReLU -> 5."""
    text = """<ir_version: 8, opset_import: ["": 17]>
      perceptron (float[1,12] x) => (float[1,5] y) {
        hidden = Gemm<transB = 1>(x, w1, b1)
        active = Relu(hidden)
        y = Gemm<transB = 1>(active, w2, b2)
      }"""
    found = onnx.parser.parse_model(text)
    random = np.random.default_rng(0)
    shapes = {"w1": (20, 12), "b1": (20,), "w2": (5, 20), "b2": (5,)}
    for name, shape in shapes.items():
        value = random.standard_normal(shape).astype(np.float32)
        found.graph.initializer.append(numpy_helper.from_array(value, name))
    onnx.save(found, tmp_path / "perceptron.onnx")
    return tmp_path / "perceptron.onnx"


@pytest.mark.usefixtures("installed")
def test_the_command_line_compiles_verifies_runs_and_lists_for_an_installed_target(
    model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "perceptron.npu"
    report = npuc("compile", *SYNTHETIC, model, "--target", "abacus", "-o", out, "--json").done()
    assert '"macs": 340' in report
    verified = npuc("verify", model, out, "--json").json
    assert verified["status"] == "ok" and verified["bit_exact"] is True
    assert [layer["bit_exact"] for layer in verified["layers"] if layer["op"] == "IntConv"] == [True, True]
    lines = npuc("dump", out).done().splitlines()
    assert lines[1::2] == ["0:  count 20x12 relu", "1:  count 5x20"] and lines[0].startswith(
        "; Gemm_0, Relu_1 -> "
    )
    assert "count 20x12 relu" in npuc("explain", out, "0").done()
    npuc("report", out, "-o", tmp_path / "page.html").done()
    npuc("export", out, "--format", "bin", "-o", tmp_path / "images").done()
    assert "abacus" in npuc("compare", model, "--target", "abacus").done()
    assert "abacus" in npuc("targets").done() and "a record" in npuc("operators", "--target", "abacus").done()


@pytest.mark.usefixtures("installed")
def test_its_flags_are_options_of_the_commands(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "perceptron.npu"

    def cycles(*arguments: str) -> int:
        return npuc("compile", *SYNTHETIC, model, "-o", out, "--json", *arguments).json["cycles"]

    assert cycles("--target", "abacus") == 2 * cycles("--busy-hands", "two", "--target=abacus") == 340
    assert (
        package.compile(model, target="abacus", calibration="synthetic", busy_hands="two").report["cycles"] == 170
    )
    row = npuc("compare", model, "--targets", "abacus:default", "--busy-hands", "two", "--json").json["rows"][0]
    assert row["cycles"] == 170
    assert "Hands that move beads" in npuc("compile", *SYNTHETIC, "--target", "abacus", "--help").out
    assert (
        "Did you mean 'two'"
        in npuc("compile", *SYNTHETIC, model, "--target", "abacus", "--busy-hands", "tow").usage()
    )
    for other in ("easynpu", "nobody"):
        npuc("compile", *SYNTHETIC, model, "--target", other, "--busy-hands", "two").usage()


@pytest.mark.usefixtures("installed")
def test_it_is_compared_with_npuc_s_own_targets(model: Path) -> None:
    abacus, easynpu = npuc("compare", model, "--targets", "abacus,easynpu", "--json").json["rows"]
    assert (abacus["target"], abacus["status"], easynpu["status"]) == ("abacus", "ok", "ok")
    # a bead moves for each of the 12 x 20 + 20 x 5 products
    assert abacus["cycles"] == 340 and abacus["milliseconds"] is None
    named = npuc("compare", model, "--target", "abacus", "--json").json["rows"]
    assert named == [abacus]


@pytest.mark.usefixtures("installed")
def test_a_damaged_record_is_found_by_verification(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "perceptron.npu"
    npuc("compile", *SYNTHETIC, model, "--target", "abacus", "-o", out).done()
    records = (out / "records.json").read_text()
    (out / "records.json").write_text(records.replace('"relu": 1', '"relu": 0'))
    found = npuc("verify", model, out, "--allow-modified", "--json")
    assert found.code == 1 and found.json["bit_exact"] is False


@pytest.mark.usefixtures("installed")
def test_what_the_abacus_cannot_count_is_refused(tmp_path: Path) -> None:
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[1,3,8,8] x) => (float[1,3,8,8] y) { y = Tanh(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "tanh.onnx")
    arguments = ("compile", *SYNTHETIC, tmp_path / "tanh.onnx", "--target", "abacus", "-o", tmp_path / "t.npu")
    found = npuc(*arguments, "--strict").refused("E202")
    assert "the abacus only has fully connected layers" in found
    assert "NOTHING runs on the NPU" in npuc(*arguments).done()


@pytest.mark.usefixtures("installed")
def test_a_machine_that_it_does_not_have_is_refused(model: Path, tmp_path: Path) -> None:
    arguments = ("compile", *SYNTHETIC, model, "--target", "abacus", "-o", tmp_path / "out.npu", "--machine")
    assert "no machine 'large'" in npuc(*arguments, "large").refused("E305")
    npuc(*arguments, "default").done()


@pytest.mark.usefixtures("installed")
def test_it_has_everything_that_a_target_has() -> None:
    members = {*vars(Target), *Target.__annotations__}
    assert {name for name in members if not name.startswith("_")} <= set(dir(target("abacus")))


@pytest.mark.usefixtures("installed")
def test_python_finds_it_too(model: Path) -> None:
    program = package.compile(str(model), target="abacus", calibration="synthetic")
    assert program.target.name == "abacus" and names()[-1] == "abacus"
    assert package.verify(str(model), program)["bit_exact"]


def test_without_the_package_there_is_no_abacus(model: Path) -> None:
    assert "'abacus' is not one of 'easynpu'" in npuc("compile", *SYNTHETIC, model, "--target", "abacus").usage()


def test_a_package_that_cannot_be_imported_is_named(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path / "site", "broken", "no_such_module:TARGET")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    assert "no_such_module:TARGET" in npuc("compile", *SYNTHETIC, model, "--target", "broken").refused("E507")
