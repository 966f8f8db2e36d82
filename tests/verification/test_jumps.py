"""Elements of outputs that jump at a threshold or a tie do not count; all other errors do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import parser

import npuc
from npuc.verification.exact import jumping
from npuc.verification.metrics import Difference
from npuc.verification.original import JudgedModel
from tests.onnx_models import parse

THRESHOLD = """<ir_version: 8, opset_import: ["": 17]> g (float[1,64] x) => (float[1,64] y)
    <float half = {0.5}, float low = {-1.0}> { m = Greater(x, half) y = Where(m, x, low) }"""
STEPS = """<ir_version: 8, opset_import: ["": 17]> g (float[1,64] x) => (float[1,64] y)
    <float s = {0.25}, int8 z = {0}> { q = QuantizeLinear(x, s, z) y = DequantizeLinear(q, s, z) }"""
SMOOTH = """<ir_version: 8, opset_import: ["": 17]> g (float[1,64] x) => (float[1,64] y) { y = Tanh(x) }"""
FAR = np.linspace(-3, 3, 64, dtype=np.float32).reshape(1, 64)
FAR[np.abs(FAR - 0.5) < 0.1] = 1.0
FAR = np.where(np.abs(FAR * 4 % 1 - 0.5) < 0.1, np.float32(0.75), FAR)


@pytest.mark.parametrize(
    ("text", "at", "moved", "precision", "jumps"),
    [
        (THRESHOLD, 0.5 + 2**-12, 1.5, "fp16", True),  # nearer than fp16 rounds, from 0.5 to -1
        (THRESHOLD, 0.5 + 2**-7, 1.5, "fp16", False),  # 8 times as far as all results are moved
        (THRESHOLD, 0.5 + 2**-12, 1.5, "fp32", False),  # fp32 is right there
        (THRESHOLD, 0.5 + 2**-18, 1.5, "fp32", True),
        (THRESHOLD, 0.5 + 2**-12, 4.0, "fp16", False),  # further than it jumps
        (THRESHOLD, 2.0, 0.01, "fp16", False),  # above the threshold it is smooth
        (STEPS, 0.375 + 2**-13, 0.25, "fp16", True),
        (STEPS, 0.375 + 2**-13, 0.75, "fp16", False),  # three steps
        (STEPS, 0.375 + 2**-7, 0.25, "fp16", False),
        (SMOOTH, 0.5, 2**-9, "fp16", False),
    ],
)
def test_an_element_jumps_if_rounding_decides_it_and_by_no_more_than_that(
    text: str, at: float, moved: float, precision: str, jumps: bool, tmp_path: Path
) -> None:
    onnx.save(parser.parse_model(text), tmp_path / "m.onnx")
    form, x = JudgedModel(tmp_path / "m.onnx", tmp_path), FAR.copy()
    x[0, 7] = at
    wanted = form.run({"x": x})
    found = {"y": wanted["y"].copy()}
    found["y"][0, 7] -= moved
    mask = jumping(form, precision, {"x": x}, wanted, found)["y"]
    assert mask.sum() == mask[0, 7] == jumps


@pytest.mark.parametrize(("score", "jumps"), [(0.5 + 1e-6, 2), (0.51, 0)])
def test_rows_jump_if_rounding_decides_how_many_there_are(score: float, jumps: int, tmp_path: Path) -> None:
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,4] x) => (float[1,n] y) <float half = {0.5}> {
        m = Greater (x, half)
        i = NonZero (m)
        c = Gather <axis = 0> (i, one)
        y = Gather <axis = 1> (x, c)
    }"""
    onnx.save(parse(text, one=np.array(1)), tmp_path / "m.onnx")
    feed = {"x": np.array([[0.9, score, 0.1, 0.8]], np.float32)}
    form = JudgedModel(tmp_path / "m.onnx", tmp_path)
    wanted = form.run(feed)
    assert wanted["y"].shape == (1, 3)
    found = {"y": wanted["y"] + np.array([[0, 0.125, 0.25]], np.float32)}
    assert jumping(form, "fp32", feed, wanted, found)["y"].sum() == jumps


def test_what_is_left_out_of_a_difference_counts_as_exact() -> None:
    exact, found = np.float64([1, 2, 3, 4]), np.float64([1, 2.5, 3, 4.25])
    apart, wanted = Difference(), Difference()
    apart.add(exact, found)
    apart.leave_out(exact[1:2], found[1:2])
    wanted.add(exact, np.float64([1, 2, 3, 4.25]))
    assert apart.sqnr_db == pytest.approx(wanted.sqnr_db) and apart.cosine == pytest.approx(wanted.cosine)


MASKED = """<ir_version: 8, opset_import: ["": 17]> g (float[1,3,8,8] x) => (float[1,4,8,8] y)
    <float t = {0.0}, float low = {-1.0}>
    { c = Conv<pads = [1, 1, 1, 1]>(x, w) m = Greater(c, t) y = Where(m, c, low) }"""


@pytest.mark.parametrize("spoilt", [False, True])
def test_a_threshold_after_a_convolution_in_fp16_is_judged_by_the_other_elements(spoilt: bool) -> None:
    """Sums near 0 fall on either side of it in fp16; another threshold is a mismatch all the same."""
    random = np.random.default_rng(0)
    weight = onnx.numpy_helper.from_array((random.standard_normal((4, 3, 3, 3)) * 0.3).astype(np.float32), "w")

    def model(threshold: str) -> onnx.ModelProto:
        found = parser.parse_model(MASKED.replace("{0.0}", threshold))
        found.graph.initializer.append(weight)
        return found

    x = random.standard_normal((40, 1, 3, 8, 8)).astype(np.float32)
    program = npuc.compile(model("{0.0}"), "nvdla-full", precision="fp16", calibration={"x": x})
    if spoilt:
        region = next(name for name in program.program.files if name.startswith("host/"))
        host = onnx.ModelProto.FromString(program.program.files[region])
        for each in host.graph.initializer:
            if each.name == "t":
                each.CopyFrom(onnx.numpy_helper.from_array(np.float32(0.02), "t"))
        files = {**program.program.files, region: host.SerializeToString()}
        program = replace(program, program=replace(program.program, files=files))
    report: Any = npuc.verify(model("{0.0}"), program, {"x": x})
    assert report["status"] == ("mismatch" if spoilt else "ok")
    assert report["outputs"][0]["sqnr_db"] < 60 and (spoilt or report["outputs"][0]["jumps"] > 0)


SCORES = """<ir_version: 8, opset_import: ["": 17]> g (float[1,3,8,8] x) => (float[1,4,8,8] y)
    { c = Conv<pads = [1, 1, 1, 1]>(x, w, b) y = Sigmoid(c) }"""


@pytest.mark.parametrize(("bias", "code"), [(0.0, None), (-9.0, "W304")])
def test_a_compile_warns_of_scores_that_verify_would_refuse(bias: float, code: str | None) -> None:
    """A table of a Sigmoid in fp16 has an absolute accuracy: scores near 0 have few digits."""
    random = np.random.default_rng(3)
    constants = {"w": random.standard_normal((4, 3, 3, 3)) * 0.4, "b": np.full(4, bias)}
    found = parse(SCORES, **constants)
    x = random.standard_normal((8, 1, 3, 8, 8)).astype(np.float32)
    program = npuc.compile(found, "nvdla-full", precision="fp16", calibration={"x": x})
    assert [each["code"] for each in program.report.get("warnings", ())] == ([code] if code else [])
    assert npuc.verify(found, program, {"x": x})["status"] == ("mismatch" if code else "ok")
