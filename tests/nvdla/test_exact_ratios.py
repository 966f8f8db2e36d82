"""Given scales on NVDLA: results are those of onnxruntime's float ratios, but for a few in a million."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

import npuc as api
from npuc import program, running
from npuc.ir import Array
from npuc.reference import session
from npuc.samples import loading as data
from npuc.target import Options, Request, target
from npuc.targets.nvdla.arithmetic.integer import SdpStage, apply_stage
from npuc.targets.nvdla.quantisation.sums import COLUMN, Sums, two_stages
from npuc.verification.checking import verify
from npuc.verification.metrics import Tolerance
from tests.compiled import compilation
from tests.onnx_models import network, node, parse


def _after(sums: Array, stages: tuple[SdpStage, SdpStage], operands: dict[str, Array]) -> Array:
    for position, stage in enumerate(stages, 1):
        sums = apply_stage(sums, stage, operands[f"x{position}_alu"], operands[f"x{position}_mul"])
    return sums


@pytest.mark.parametrize("taps", [9, 4608])
def test_any_sum_gives_the_rounded_real_product_and_saturates_only_where_that_does(taps: int) -> None:
    random = np.random.default_rng(taps)
    w = random.integers(-127, 128, (24, taps)).astype(np.int8)
    bias = np.rint(random.standard_normal(24) * 3e4)
    ratio = np.exp2(random.uniform(-13, -9, 24)).astype(np.float32).astype(np.float64)
    sums = Sums(w, bias, ratio)
    first, second, operands = two_stages(sums)
    reach = sums.bound - np.abs(bias)
    acc = np.rint(random.uniform(-1, 1, (20_000, 24)) * reach).T.astype(np.int64).reshape(24, 1, -1)
    found = np.clip(_after(acc, (first, second), operands), -255, 255)
    exact = np.clip(np.rint((acc + bias.reshape(COLUMN)) * ratio.reshape(COLUMN)), -255, 255)
    assert (found != exact).mean() < 1e-5
    assert np.abs(found - exact).max() <= 1


SCALES = {
    "as in a residual network": ((0.0762931, -128), (0.104195, 4), (0.0509457, -128)),
    "far apart": ((0.901317, 3), (0.0123719, -77), (0.871619, 11)),
    "equal": ((0.05, -9), (0.05, 100), (0.07, 0)),
}


def _sum(scales: tuple[tuple[float, int], ...]) -> onnx.ModelProto:
    """int8 a + int8 b -> int8 y, each with a scale and a zero point of its own."""
    named = dict(zip("aby", scales, strict=True))
    constants = {f"{name}s": np.float32(scale) for name, (scale, _) in named.items()}
    return parse(
        "g (int8[1,1,256,256] a, int8[1,1,256,256] b) => (int8[1,1,256,256] y) {"
        "fa = DequantizeLinear(a, as, az)\n fb = DequantizeLinear(b, bs, bz)\n"
        "[sum] fy = Add(fa, fb)\n y = QuantizeLinear(fy, ys, yz) }",
        13,
        **constants,
        **{f"{name}z": np.int8(zero) for name, (_, zero) in named.items()},
    )


@pytest.mark.parametrize("name", ["nvdla-small", "nvdla-full"])
@pytest.mark.parametrize("case", SCALES)
def test_a_sum_of_any_two_integers_is_onnxruntimes(case: str, name: str, tmp_path: Path) -> None:
    model, machine = tmp_path / "sum.onnx", target(name)
    onnx.save(_sum(SCALES[case]), model)
    compiled = compilation(Request(model, machine, Options())).program
    program.save(compiled, tmp_path / "p")
    a, b = np.meshgrid(*[np.arange(-128, 128, dtype=np.int8)] * 2)
    feed = {"a": a[None, None], "b": b[None, None]}
    samples = data.Samples({key: each[None] for key, each in feed.items()})
    loaded = program.load(tmp_path / "p")
    (theirs,) = session(model).run(["y"], feed)
    found = running.run_program(loaded, machine, samples)["y"][0]
    off = np.abs(found.astype(int) - theirs.reshape(found.shape))
    constraints = case == "equal"  # 0.05 and 0.07 have common multiples, of which halves are rounded to even there
    assert (off > 0).sum() <= (600 if constraints else 8)
    assert off.max() <= 1
    assert verify(model, tmp_path / "p", loaded, machine, samples, Tolerance(0, 0))["bit_exact"]


def test_float_weights_that_are_integers_of_nine_bits_stay_as_they_are(tmp_path: Path) -> None:
    random = np.random.default_rng(9)
    w = (random.integers(-255, 256, (2, 3, 3, 3)) / 256).astype(np.float32)
    model, machine = tmp_path / "nine.onnx", target("nvdla-small")
    conv = node("Conv", "x w", "y", pads=[1, 1, 1, 1])
    onnx.save(network([conv], (1, 3, 8, 8), {"w": w}, opset=13), model)
    x = random.integers(0, 256, (8, 1, 3, 8, 8)).astype(np.float32)  # whole: steps of 1, so weights are kept
    samples = data.Samples({"x": x})
    np.savez(tmp_path / "x.npz", x=x)
    compiled = compilation(Request(model, machine, Options(), [tmp_path / "x.npz"])).program
    program.save(compiled, tmp_path / "p")
    report = verify(model, tmp_path / "p", program.load(tmp_path / "p"), machine, samples, Tolerance(35, 0.999))
    assert report["bit_exact"]
    assert report["status"] == "ok"


def test_weights_behind_a_given_scale_in_int16_have_16_bits() -> None:
    """Before, weights that are multiples of one step stayed int8, and were packed as bytes."""
    model = parse("g (float[1,3,4,4] x) => (float[1,3,4,4] y) { y = Conv(x, w) }")
    taps = (np.eye(3) * 0.017)[..., None, None].astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(taps, "w"))
    samples = np.random.default_rng(1).integers(-128, 128, (6, 1, 3, 4, 4)).astype(np.float32)
    table = {"x": {"scale": 1 / 128, "precision": "int16"}}
    made = api.compile(model, "nvdla-full", precision="int16", calibration={"x": samples}, scales_in=table)
    assert made.report["proof"]["bit_exact"]
