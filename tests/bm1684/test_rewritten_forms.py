"""Volumes in both precisions, and in 8 bits enlargements: no call has these forms, so passes rewrite them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest

from npuc import driver
from npuc.program import Program, load, save
from npuc.regions.artefact import is_composite
from npuc.regions.compiling import compile_model
from npuc.storage.data import synthetic
from npuc.target import Options, target
from tests.regions.nets import checked, model_of, places

Shapes = dict[str, Sequence[int]]
VOLUMES: dict[str, tuple[str, Shapes]] = {
    "Conv": (
        "(float[1,4,6,8,8] x) => (float[1,6,3,4,8] y)"
        "{a = Conv <pads = [1, 1, 1, 1, 1, 1], strides = [2, 2, 1]> (x, w) y = Relu (a)}",
        {"w": (6, 4, 3, 3, 3)},
    ),
    "ConvTranspose": (
        "(float[1,4,5,6,6] x) => (float[1,3,9,12,6] y)"
        "{y = ConvTranspose <pads = [1, 1, 1, 1, 1, 1], strides = [2, 2, 1], output_padding = [0, 1, 0]> (x, w)}",
        {"w": (4, 3, 3, 3, 3)},
    ),
    "MaxPool": (
        "(float[1,4,6,8,8] x) => (float[1,4,3,4,4] y)"
        "{y = MaxPool <kernel_shape = [2, 3, 3], strides = [2, 2, 2], pads = [0, 1, 1, 0, 0, 0]> (x)}",
        {},
    ),
}
ENLARGEMENTS: dict[str, tuple[str, Shapes]] = {
    "ConvTranspose": (
        "(float[1,6,5,7] x) => (float[1,8,10,14] y)"
        "{a = ConvTranspose <strides = [2, 2], kernel_shape = [2, 2]> (x, w) y = Relu (a)}",
        {"w": (6, 8, 2, 2)},
    ),
    "unequal strides": (
        "(float[1,6,5,7] x) => (float[1,6,12,20] y)"
        "{y = ConvTranspose <strides = [2, 3], kernel_shape = [4, 2], group = 3> (x, w)}",
        {"w": (6, 2, 4, 2)},
    ),
    "DepthToSpace": (
        "(float[1,6,5,7] x) => (float[1,2,10,14] y)"
        '{a = Conv (x, w) y = DepthToSpace <blocksize = 2, mode = "CRD"> (a)}',
        {"w": (8, 6, 1, 1)},
    ),
    "SpaceToDepth": (
        "(float[1,6,4,8] x) => (float[1,8,2,4] y) {a = SpaceToDepth <blocksize = 2> (x) y = Conv (a, w)}",
        {"w": (8, 24, 1, 1)},
    ),
    "Resize": (
        "(float[1,6,5,7] x) => (float[1,8,10,14] y) <float[4] scales = {1, 1, 2, 2}>"
        '{a = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">'
        " (x, , scales) y = Conv (a, w)}",
        {"w": (8, 6, 1, 1)},
    ),
}
CASES = [
    pytest.param(precision, *case, id=f"{precision} {name}")
    for precision, cases in (
        ("fp32", VOLUMES),
        ("int8", {**{f"{op} 3D": each for op, each in VOLUMES.items()}, **ENLARGEMENTS}),
    )
    for name, case in cases.items()
]


def _compiled(model: onnx.ModelProto, precision: str, folder: Path) -> Program:
    """As `program_of`, in this precision."""
    onnx.save(model, folder / "m.onnx")
    made, _ = compile_model(folder / "m.onnx", target("bm1684"), Options(precision=precision, level="0"), {})
    save(made, folder / "out.npu")
    return load(folder / "out.npu")


@pytest.mark.parametrize(("precision", "text", "shapes"), CASES)
def test_the_network_runs_without_the_host(precision: str, text: str, shapes: Shapes, tmp_path: Path) -> None:
    program = _compiled(model_of(f"g {text}", **shapes), precision, tmp_path)
    assert not is_composite(program)
    found = checked(program, tmp_path, synthetic(driver.program_inputs(program), 5, seed=5))
    assert found["status"] == "ok"
    assert found["bit_exact"] is (True if precision == "int8" else None)


def test_a_convolution_runs_without_the_limits_that_no_8_bit_layer_has(tmp_path: Path) -> None:
    text = (
        "g (float[1,4,6,6] x) => (float[1,4,6,6] y) <float low = {-1}, float high = {1}>"
        "{a = Conv (x, w) b = Clip (a, low, high) y = Conv (b, w)}"
    )
    program = _compiled(model_of(text, w=(4, 4, 1, 1)), "int8", tmp_path)
    assert places(program) == [("npu", ("Conv",)), ("host", ("Clip",)), ("npu", ("Conv",))]
