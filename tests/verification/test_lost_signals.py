"""A network whose signal its number format loses: compile warns, and verify does not call the program right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import npuc
from npuc.api import Compiled
from tests.cli.process import npuc as npuc_run
from tests.onnx_models import parse

Case = tuple[onnx.ModelProto, np.ndarray[Any, Any]]
FORMATS = [("easynpu", "int8"), ("nvdla-small", "int8"), ("nvdla-full", "fp16"), ("bm1684", "int8")]


def _case(offset: float) -> Case:
    """Relu(Conv(x) + offset) - offset, whose result only a format with enough bits holds, and samples."""
    random = np.random.default_rng(1)
    model = parse(
        "g (float[1,4,6,6] x) => (float[1,8,6,6] y) "
        f"<float c = {{{offset}}}> "
        "{ a = Conv(x, w)\n s = Add(a, c)\n r = Relu(s)\n d = Sub(r, c)\n y = Conv(d, v) }"
    )
    for name, channels in {"w": 4, "v": 8}.items():
        values = (random.standard_normal((8, channels, 1, 1)) / 3).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model, random.standard_normal((4, 4, 6, 6)).astype(np.float32)


def _warned(program: Compiled) -> list[tuple[str, str]]:
    return [(each["code"], each["tensor"]) for each in program.report.get("warnings", ())]


@pytest.mark.parametrize(
    ("name", "precision", "proof"), [*((*each, "one") for each in FORMATS), (*FORMATS[0], "all")]
)
def test_outputs_that_are_noise_are_warned_of_and_not_called_right(name: str, precision: str, proof: str) -> None:
    """Before, nothing was said, and in int8 verify called 0 dB right."""
    model, x = _case(1e4)
    program = npuc.compile(model, name, precision=precision, calibration=x, proof=proof)
    assert _warned(program) == [("W302", "y")]
    assert npuc.verify(model, program, x)["status"] == "mismatch"


@pytest.mark.parametrize(("name", "precision"), FORMATS)
def test_synthetic_samples_show_it_too(name: str, precision: str) -> None:
    model, _ = _case(1e4)
    assert _warned(npuc.compile(model, name, calibration="synthetic", precision=precision)) == [("W302", "y")]


def test_an_output_that_is_noise_on_one_sample_of_several_gives_no_warning() -> None:
    """Of 100 + Conv(x) int8 keeps steps of 0.8: nothing of the first sample, and of the second 20 dB."""
    model, x = _case(100.0)
    x[:2] *= np.array([1e-2, 10], np.float32).reshape(2, 1, 1, 1)
    first, both = (npuc.compile(model, "easynpu", calibration=x[:2], proof=proof) for proof in ("one", "all"))
    assert _warned(first) == [("W302", "y")]
    assert _warned(both) == []


@pytest.mark.parametrize(("name", "precision"), FORMATS)
def test_a_signal_that_the_format_keeps_gives_no_warning(name: str, precision: str) -> None:
    model, x = _case(10.0)
    program = npuc.compile(model, name, precision=precision, calibration=x)
    assert _warned(program) == []
    assert npuc.verify(model, program, x)["status"] == "ok"


@pytest.mark.parametrize("precision", ["fp32", "int8"])
def test_a_result_that_is_zero_in_float32_itself_gives_no_warning(precision: str) -> None:
    model, x = _case(1e9)
    assert _warned(npuc.compile(model, "bm1684", precision=precision, calibration=x)) == []


def test_the_command_line_prints_it(tmp_path: Path) -> None:
    model, x = _case(1e4)
    onnx.save(model, tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=x[:, None])
    done = npuc_run(
        *("compile", tmp_path / "m.onnx", "--target", "easynpu", "--calibration", tmp_path / "x.npz"),
        *("-o", tmp_path / "m.npu", "--json"),
    )
    assert done.code == 0 and "warning[W302] tensor 'y': it is hardly more than noise" in done.err
    assert [each["code"] for each in done.json["warnings"]] == ["W302"]
