"""Infinite values in data: legal in an input that only the host reads, such as a mask before a Softmax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import npuc
from npuc.errors import DataError
from tests.cli.process import SYNTHETIC
from tests.cli.process import npuc as npuc_run
from tests.onnx_models import parse

INFINITE = np.float32(-np.inf)


def _model() -> onnx.ModelProto:
    """A layer on the NPU, a Softmax of its masked result on the host, and another layer."""
    model = parse(
        "g (float[1,8,6,6] x, float[1,1,1,6] mask) => (float[1,8,6,6] y) "
        "{ a = Conv(x, w)\n b = Add(a, mask)\n c = Softmax(b)\n y = Conv(c, v) }"
    )
    random = np.random.default_rng(0)
    for name in ("w", "v"):
        values = (random.standard_normal((8, 8, 1, 1)) / 3).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model


def _data() -> dict[str, np.ndarray[Any, Any]]:
    x = np.random.default_rng(1).standard_normal((4, 8, 6, 6)).astype(np.float32)
    mask = np.zeros((4, 1, 1, 6), np.float32)
    mask[:, ..., 4:] = INFINITE
    return {"x": x, "mask": mask}


def _expected(model: onnx.ModelProto, data: dict[str, np.ndarray[Any, Any]]) -> np.ndarray[Any, Any]:
    session = onnxruntime.InferenceSession(model.SerializeToString())
    rows = ({name: each[at : at + 1] for name, each in data.items()} for at in range(4))
    return np.concatenate([np.asarray(session.run(None, feed)[0]) for feed in rows])


@pytest.mark.parametrize("name", ["easynpu", "nvdla-small"])
def test_a_mask_of_the_host_may_be_infinite(name: str) -> None:
    """Before, compile and run refused the data (E402)."""
    model, data = _model(), _data()
    program = npuc.compile(model, name, calibration=data)
    assert {each["place"] for each in program.report["partitions"]} == {"npu", "host"}
    found, wanted = program.run(data)["y"].reshape(4, 8, 6, 6), _expected(model, data)
    assert np.isfinite(wanted).all()
    assert np.square(found - wanted).sum() < 0.03 * np.square(wanted).sum()
    assert npuc.verify(model, program, data)["status"] == "ok"


@pytest.mark.parametrize("shares", ["s = Softmax(h)", "s = Exp(h)", "t = Transpose<perm=[0,2,1]>(h)\n s = Exp(t)"])
def test_the_host_computes_shares_of_exponents_that_it_masks(shares: str) -> None:
    """BM1684 multiplies what the host gives: the shares, whose exponents are infinite where they are masked."""
    text = f"g (float[1,6,6] x) => (float[1,6,6] y) {{ h = Add(x, mask)\n {shares}\n y = MatMul(s, x) }}"
    model = parse(text, mask=np.triu(np.full((6, 6), -np.inf, np.float32), 1))
    x = np.random.default_rng(1).standard_normal((4, 1, 6, 6)).astype(np.float32)
    program = npuc.compile(model, "bm1684", precision="int8", calibration={"x": x})
    assert [each["place"] for each in program.report["partitions"]] == ["host", "npu"]
    assert npuc.verify(model, program, {"x": x})["bit_exact"] is True


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
def test_what_the_npu_reads_must_be_finite(value: float) -> None:
    data = _data()
    program = npuc.compile(_model(), "easynpu", calibration=data)
    data["x"][2, 1, 3, 3] = value
    with pytest.raises(DataError) as error:
        program.run(data)
    assert [(each.code, each.tensor) for each in error.value.problems] == [("E402", "x")]
    with pytest.raises(DataError):
        npuc.compile(_model(), "easynpu", calibration=data)


def test_nan_and_what_float32_makes_infinite_are_refused_everywhere() -> None:
    data = _data()
    program = npuc.compile(_model(), "easynpu", calibration=data)
    wide = {**data, "mask": np.full((4, 1, 1, 6), -1e300)}
    for each in (wide, {**data, "mask": np.full((4, 1, 1, 6), np.nan, np.float32)}):
        with pytest.raises(DataError) as error:
            program.run(each)
        assert [problem.tensor for problem in error.value.problems] == ["mask"]


def test_the_command_line_runs_them(tmp_path: Path) -> None:
    onnx.save(_model(), tmp_path / "m.onnx")
    np.savez(tmp_path / "d.npz", **_data())
    out = tmp_path / "m.npu"
    compiled = npuc_run("compile", *SYNTHETIC, tmp_path / "m.onnx", "--target", "easynpu", "-o", out)
    assert compiled.code == 0
    done = npuc_run("run", out, "--data", tmp_path / "d.npz", "-o", tmp_path / "y.npz")
    assert done.code == 0
    assert np.isfinite(np.load(tmp_path / "y.npz")["y"]).all()
    checked = npuc_run("verify", tmp_path / "m.onnx", out, "--data", tmp_path / "d.npz")
    assert checked.code == 0, checked.err
