"""Very small and very large values: int8 from 2^-100 to 2^56, and the host beyond."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

import npuc
from npuc.driver import compile_model
from npuc.errors import NpucError
from npuc.ir import Node
from npuc.program import load, save
from npuc.quantize.calibration.histograms import NOTHING, uniform
from npuc.quantize.scales.reach import LARGEST, expect_within_reach
from npuc.target import Options, Request, target
from tests.compiled import checked
from tests.onnx_models import parse


def model_of(power: int) -> onnx.ModelProto:
    """Two layers, with values of about 10 to this power between them."""
    random = np.random.default_rng(0)
    model = parse("g (float[1,8,6,6] x) => (float[1,8,6,6] y) { a = Conv(x, w)\n b = Relu(a)\n y = Conv(b, v) }")
    for name, gain in {"w": 10.0**power, "v": 10.0**-power}.items():
        values = (random.standard_normal((8, 8, 1, 1)) * gain).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model


@pytest.mark.parametrize("power", [-37, -32, -28, -20, -14, 0, 16, 17, 37])
@pytest.mark.parametrize("name", ["easynpu", "nvdla-small", "bm1684"])
def test_values_of_any_size_are_accurate(name: str, power: int, tmp_path: Path) -> None:
    """12 dB are asked for. Before, ranges beyond 1e14 and below 1e-15 gave 0 to 2 dB, and E502 beyond 1e18."""
    onnx.save(model_of(power), tmp_path / "m.onnx")
    program, _ = compile_model(Request(tmp_path / "m.onnx", target(name), Options(level="0")))
    save(program, tmp_path / "out.npu")
    program = load(tmp_path / "out.npu")
    assert checked(program, tmp_path)["status"] == "ok"
    hosted = not program.manifest["report"]["instructions"]
    assert hosted == (not -31 < power < 17)


@pytest.mark.parametrize("exponent", [-99, -70, -60, -50, 0])
@pytest.mark.parametrize("name", ["easynpu", "nvdla-small", "nvdla-full", "bm1684"])
def test_tiny_inputs_keep_their_resolution(name: str, exponent: int) -> None:
    """The quality of int8 does not depend on the size of the values. Before, it was 0 dB from 2^-56 down."""
    model = parse("g (float[1,4,8,8] x) => (float[1,4,1,1] y) { a = Relu(x)\n y = GlobalAveragePool(a) }")
    x = (np.random.default_rng(1).standard_normal((8, 4, 8, 8)) * 2.0**exponent).astype(np.float32)
    program = npuc.compile(model, name, calibration=x, precision="int8", strict=True)
    wanted = np.maximum(x.astype(np.float64), 0).mean(axis=(2, 3), keepdims=True)
    error = program.run(x)["y"].reshape(wanted.shape) - wanted
    assert np.square(error).sum() < 1e-4 * np.square(wanted).sum()


def test_values_too_small_for_a_scale_are_refused_by_name() -> None:
    model = parse("g (float[1,4,8,8] x) => (float[1,4,8,8] y) { y = Relu(x) }")
    x = np.full((1, 4, 8, 8), 2.0**-110, np.float32)
    with pytest.raises(NpucError, match="too small for a scale") as error:
        npuc.compile(model, "easynpu", calibration=x, strict=True)
    assert {each.code for each in error.value.problems} == {"E205"}
    hosted = npuc.compile(model, "easynpu", calibration=x)
    np.testing.assert_array_equal(hosted.run(x)["y"], x)


def test_without_the_host_they_are_refused_by_name(tmp_path: Path) -> None:
    onnx.save(model_of(20), tmp_path / "m.onnx")
    with pytest.raises(NpucError, match="would saturate") as error:
        compile_model(Request(tmp_path / "m.onnx", target("easynpu"), Options(strict=True)))
    assert {each.code for each in error.value.problems} == {"E205"}


@pytest.mark.parametrize(
    ("largest", "within"),
    [
        (LARGEST * 0.999, True),
        (LARGEST * 1.001, False),
        (NOTHING * 1.001, True),
        (NOTHING * 0.999, False),
        (0, True),
    ],
)
@pytest.mark.parametrize("place", ["x", "y"])
def test_the_largest_and_the_smallest_scale_are_the_borders(largest: float, within: bool, place: str) -> None:
    node = Node("Relu", ("x",), ("y",), {}, "n")
    found = {name: uniform(largest if name == place else 1.0) for name in ("x", "y")}
    if within:
        expect_within_reach([node], found)
        return
    with pytest.raises(NpucError) as error:
        expect_within_reach([node], found)
    assert [(each.node, each.tensor) for each in error.value.problems] == [("n", place)]
