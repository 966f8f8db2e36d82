"""Resize by fractions in int8: depthwise convolutions and DepthToSpace on the NPU."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import numpy_helper

import npuc
from tests.onnx_models import parse


def _model(scale: tuple[float, float], mode: str) -> onnx.ModelProto:
    model = parse(
        "g (float[1,4,6,8] x) => (float[1,8,?,?] y) "
        f"<float[4] s = {{1, 1, {scale[0]}, {scale[1]}}}> "
        f'{{ a = Conv(x, w)\n b = Resize<mode = "{mode}">(a, , s)\n y = Conv(b, v) }}'
    )
    random = np.random.default_rng(0)
    for name, channels in {"w": 4, "v": 8}.items():
        values = (random.standard_normal((8, channels, 1, 1)) / 2).astype(np.float32)
        model.graph.initializer.append(numpy_helper.from_array(values, name))
    return model


EQUAL = [((scale, scale), mode) for scale in (0.5, 1.5, 2.0, 3.0) for mode in ("linear", "cubic")]
UNEQUAL = [((2.0, 1.0), "linear"), ((1.5, 2.0), "cubic"), ((3.0, 1.0), "nearest"), ((1.5, 2.0), "nearest")]


@pytest.mark.parametrize(("scale", "mode"), [*EQUAL, *UNEQUAL])
def test_interpolation_is_as_onnxruntimes(scale: tuple[float, float], mode: str) -> None:
    """Before, the host computed it."""
    model = _model(scale, mode)
    x = np.random.default_rng(1).standard_normal((4, 4, 6, 8)).astype(np.float32)
    program = npuc.compile(model, "bm1684", precision="int8", calibration=x)
    assert [each["place"] for each in program.report["partitions"]] == ["npu"]
    assert program.report["proof"]["bit_exact"]
    session = onnxruntime.InferenceSession(model.SerializeToString())
    wanted = np.concatenate([np.asarray(session.run(None, {"x": each[None]})[0]) for each in x])
    error = program.run(x)["y"].reshape(wanted.shape) - wanted
    assert np.square(error).sum() < 3e-3 * np.square(wanted).sum()


def test_factors_with_many_phases_run_on_the_host() -> None:
    program = npuc.compile(_model((11 / 6, 13 / 8), "linear"), "bm1684", calibration="synthetic", precision="int8")
    assert [each["place"] for each in program.report["partitions"]] == ["npu", "host", "npu"]


def test_maps_too_large_to_be_interleaved_in_local_memory_go_through_the_systems() -> None:
    """Of 512 KiB, the result takes 452, and its even and odd columns before that as much."""
    model = parse(
        "g (float[1,3,170,170] x) => (float[1,3,85,85] y) <float[4] s = {1, 1, 2, 2}> "
        '{ b = Resize<mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">'
        "(x, , s)\n"
        " y = MaxPool<kernel_shape = [4, 4], strides = [4, 4]>(b) }"
    )
    x = np.random.default_rng(1).standard_normal((2, 1, 3, 170, 170)).astype(np.float32)
    program = npuc.compile(model, "bm1684", precision="int8", calibration=x)
    assert [each["place"] for each in program.report["partitions"]] == ["npu"]
    assert program.report["proof"]["bit_exact"] and program.report["gdma_cycles"] > 50_000
