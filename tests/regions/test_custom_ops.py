"""Operators that a library of the user brings: the host runs them where it is named, and nothing loads it else."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper

import npuc
from npuc.errors import ArtefactError
from npuc.reference import custom_ops
from tests.cli.process import npuc as command
from tests.compiled import checked, places, program_of
from tests.onnx_models import parse

TARGETS = ("easynpu", "nvdla-small", "bm1684")
SOURCE = Path(__file__).with_name("affine.c")
BODY = "a = Conv<pads = [1, 1, 1, 1]>(x, w)\n d = demo.Affine(a)\n y = Conv<pads = [1, 1, 1, 1]>(d, v)"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """demo::Affine, y = 2 x + 1, as a shared library."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler to build a library of operators with")
    found = tmp_path_factory.mktemp("library") / "affine.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", found, SOURCE], check=True, capture_output=True)
    return found


@pytest.fixture
def model(tmp_path: Path) -> onnx.ModelProto:
    """Two convolutions with the library's operator between them, whose result has a declared shape."""
    made = parse(f"g (float[1,8,6,6] x) => (float[1,8,6,6] y) {{ {BODY} }}", w=(8, 8, 3, 3), v=(8, 8, 3, 3))
    made.opset_import.append(helper.make_opsetid("demo", 1))
    made.graph.value_info.append(helper.make_tensor_value_info("d", onnx.TensorProto.FLOAT, [1, 8, 6, 6]))
    onnx.save(made, tmp_path / "m.onnx")
    return made


@pytest.mark.parametrize("target", TARGETS)
def test_the_host_runs_a_librarys_operator_between_parts(
    target: str, model: onnx.ModelProto, library: Path, tmp_path: Path
) -> None:
    with custom_ops([library]):
        program = program_of(model, tmp_path, target)
        assert places(program) == [("npu", ("Conv",)), ("host", ("Affine",)), ("npu", ("Conv",))]
        steps = program.manifest["steps"]
        assert [step["custom"] for step in steps] == [[], ["demo::Affine"], []]
        report = checked(program, tmp_path)
        assert report["status"] == "ok" and report["bit_exact"] in (True, None)
        region = onnxruntime.SessionOptions()
        region.register_custom_ops_library(str(library))
        session = onnxruntime.InferenceSession(program.files["host/region_0.onnx"], region)
        x = np.random.default_rng(1).normal(3, 2, (1, 8, 6, 6)).astype(np.float32)
        np.testing.assert_array_equal(session.run(None, {session.get_inputs()[0].name: x})[0], 2 * x + 1)
    with pytest.raises(ArtefactError, match="demo::Affine") as refused:
        npuc.load(tmp_path / "out.npu").run(x[None])
    problem = refused.value.problems[0]
    assert problem.code == "E507" and problem.remedy is not None and "NPUC_CUSTOM_OPS" in problem.remedy


def test_commands_take_the_library(model: onnx.ModelProto, library: Path, tmp_path: Path) -> None:
    del model
    net, out = tmp_path / "m.onnx", tmp_path / "m.npu"
    with_it = patch.dict(os.environ, {"NPUC_CUSTOM_OPS": str(library)})
    x = np.random.default_rng(2).normal(1, 2, (3, 8, 6, 6)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    data = ("--data", tmp_path / "x.npz")
    compiling = ("compile", net, "--target", "easynpu", "-o", out, "--calibration", tmp_path / "x.npz", "-O0")
    assert "NPUC_CUSTOM_OPS" in command(*compiling).refused("E201")
    assert not out.exists()
    with with_it:
        command(*compiling).done()
        assert "Affine" in command("check", net, "--target", "easynpu").done()
        command("run", out, *data, "-o", tmp_path / "y.npz").done()
        assert command("verify", net, out, *data, "--json").json["bit_exact"]
    assert command("check", net, "--target", "easynpu").code == 1
    assert "demo::Affine" in command("run", out, *data, "-o", tmp_path / "y.npz").refused("E507")
    command("verify", net, out, *data).refused("E507")


def test_an_artefact_cannot_name_a_library(model: onnx.ModelProto, library: Path, tmp_path: Path) -> None:
    with custom_ops([library]):
        program_of(model, tmp_path)
    files = [each.name for each in (tmp_path / "out.npu").rglob("*")]
    assert "affine.so" not in files
    assert str(library) not in json.dumps(npuc.load(tmp_path / "out.npu").program.manifest)


def test_what_is_no_library_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.so").write_text("no library")
    for name in ("x.so", "missing.so"):
        with pytest.raises(ArtefactError, match="cannot load"), custom_ops([tmp_path / name]):
            pass
