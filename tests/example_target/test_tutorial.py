"""The target of docs/add-a-target.md: under 60 lines, and every command works with it."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from npuc.program import Program
from npuc.regions.planning import passes_of
from npuc.target import Options, Request, target
from tests.cli.process import SYNTHETIC, npuc
from tests.compiled import compilation
from tests.example_target.test_abacus import install

PAGE = Path(__file__).resolve().parents[2] / "docs" / "add-a-target.md"
PERCEPTRON = """<ir_version: 8, opset_import: ["": 17]> perceptron (float[1,12] x) => (float[1,5] y) {
    hidden = Gemm<transB = 1>(x, w1, b1)
    active = Relu(hidden)
    y = Gemm<transB = 1>(active, w2, b2)
}"""
SHAPES = {"w1": (20, 12), "b1": (20,), "w2": (5, 20), "b2": (5,)}


def _code() -> str:
    (found,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    return found


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A perceptron, where the slate is installed."""
    site = tmp_path / "site"
    install(site, "slate", "slate_of_docs:SLATE")
    (site / "slate_of_docs.py").write_text(f"{_code()}\n\nSLATE = Slate()\n", encoding="utf-8")
    monkeypatch.syspath_prepend(str(site))
    found = onnx.parser.parse_model(PERCEPTRON)
    random = np.random.default_rng(0)
    for name, shape in SHAPES.items():
        value = random.standard_normal(shape).astype(np.float32) + np.float32(0.1)
        found.graph.initializer.append(numpy_helper.from_array(value, name))
    onnx.save(found, tmp_path / "perceptron.onnx")
    return tmp_path / "perceptron.onnx"


def test_it_has_under_60_lines() -> None:
    assert len([line for line in _code().splitlines() if line.strip()]) < 60


def test_every_command_works_with_it(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.npu"
    assert (
        npuc("compile", *SYNTHETIC, model, "--target", "slate", "-o", out, "--json").json["cycles"]
        == 12 * 20 + 20 * 5
    )
    assert npuc("verify", model, out, "--json").json["status"] == "ok"
    np.savez(tmp_path / "x.npz", x=np.ones((2, 1, 12), np.float32))
    npuc("run", out, "--data", tmp_path / "x.npz", "-o", tmp_path / "y.npz").done()
    assert "multiply" in npuc("dump", out).done()
    assert "multiply" in npuc("explain", out, "0").done()
    npuc("report", out, "-o", tmp_path / "page.html").done()
    npuc("trace", out, "-o", tmp_path / "t.json", "--format", "json").done()
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    assert [each["dur"] for each in events if each["ph"] == "X"] == [0.24, 0.1]
    npuc("export", out, "--format", "bin", "-o", tmp_path / "images").done()
    assert "slate" in npuc("compare", model, "--target", "slate").done()
    assert "slate" in npuc("targets").done()
    npuc("operators", "--target", "slate").done()


def test_what_it_has_not_is_refused(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.npu"
    npuc("compile", *SYNTHETIC, model, "--target", "slate", "-o", out).done()
    (tmp_path / "l.txt").write_text("multiply\n")
    npuc("assemble", tmp_path / "l.txt", "--images", out, "-o", tmp_path / "o").refused("E504")
    npuc("compile", *SYNTHETIC, model, "--target", "slate", "-o", tmp_path / "o", "--machine", "large").refused(
        "E305"
    )
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[1,3] x) => (float[1,3] y) { y = Tanh(x) }'
    onnx.save(onnx.parser.parse_model(text), tmp_path / "tanh.onnx")
    arguments = ("compile", *SYNTHETIC, tmp_path / "tanh.onnx", "--target", "slate", "-o", tmp_path / "o")
    npuc(*arguments, "--strict").refused("E202")


@pytest.mark.usefixtures("model")
def test_shared_passes_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    slate = target("slate")
    names = [each.__name__ for each in passes_of(slate, Options())]
    monkeypatch.setattr(slate, "left_out", ("fuse_activation",))
    left = [each.__name__ for each in passes_of(slate, Options())]
    assert left == [name for name in names if name != "fuse_activation"] != names
    monkeypatch.setattr(slate, "left_out", ("fuse_everything",))
    with pytest.raises(ValueError, match="fuse_everything"):
        passes_of(slate, Options())


def test_a_report_that_lacks_something_is_named(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slate = target("slate")
    whole = slate.lower

    def lower(*arguments: Any) -> Program:
        found = whole(*arguments)
        report = {key: value for key, value in found.manifest["report"].items() if key != "ideal_cycles"}
        return replace(found, manifest={**found.manifest, "report": report})

    monkeypatch.setattr(slate, "lower", lower)
    with pytest.raises(ValueError, match=r"slate writes a report .*ideal_cycles"):
        compilation(Request(model, slate, Options(precision="fp32")))
