"""Forms without a call, which passes rewrite: volumes, and in 8 bits also enlargements and tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import onnx
import pytest

from npuc import running
from npuc.driver import compile_model
from npuc.program import Program, load, save
from npuc.regions.artefact import is_composite
from npuc.samples.loading import synthetic
from npuc.target import Options, Request, target
from tests.compiled import checked, places
from tests.onnx_models import parse

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
LINES: dict[str, tuple[str, Shapes]] = {
    "wide dilation": (
        "(float[1,4,33,33] x) => (float[1,6,33,33] y)"
        "{a = Conv <dilations = [24, 24], pads = [24, 24, 24, 24]> (x, w) y = Relu (a)}",
        {"w": (6, 4, 3, 3)},
    ),
    "Resize 1D": (
        "(float[1,4,9] x) => (float[1,4,18] y) <float[3] scales = {1, 1, 2}>"
        '{a = Conv (x, w) y = Resize <mode = "linear"> (a, , scales)}',
        {"w": (4, 4, 1)},
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
    "patches": (
        "(float[1,3,32,48] x) => (float[1,8,2,3] y) {y = Conv <strides = [16, 16]> (x, w)}",
        {"w": (8, 3, 16, 16)},
    ),
    "Resize": (
        "(float[1,6,5,7] x) => (float[1,8,10,14] y) <float[4] scales = {1, 1, 2, 2}>"
        '{a = Resize <mode = "nearest", coordinate_transformation_mode = "asymmetric", nearest_mode = "floor">'
        " (x, , scales) y = Conv (a, w)}",
        {"w": (8, 6, 1, 1)},
    ),
}
TOKENS: dict[str, tuple[str, Shapes]] = {
    "tokens": (
        "(float[1,6,16] x) => (float[1,6,16] y)"
        "{a = MatMul (x, w) b = Add (a, c) d = Relu (b) e = MatMul (d, v) y = Add (e, x)}",
        {"w": (16, 24), "c": (24,), "v": (24, 16)},
    ),
    "tokens of a map": (
        "(float[1,3,8,8] x) => (float[1,16,12] y) <int64[3] rows = {1, 12, 16}>"
        "{a = Conv <strides = [2, 2]> (x, k) b = Reshape (a, rows) d = Transpose <perm = [0, 2, 1]> (b)"
        " y = MatMul (d, w)}",
        {"k": (12, 3, 2, 2), "w": (12, 12)},
    ),
    "heads": (
        "(float[1,6,16] x) => (float[1,4,6,4] y) <int64[4] heads = {1, 6, 4, 4}>"
        "{a = MatMul (x, w) b = Reshape (a, heads) y = Transpose <perm = [0, 2, 1, 3]> (b)}",
        {"w": (16, 16)},
    ),
    "heads of a part": (
        "(float[1,6,16] x) => (float[1,2,6,4] y)"
        "<int64[1] first = {8}, int64[1] end = {16}, int64[1] axis = {2}, int64[4] heads = {1, 6, 2, 4}>"
        "{a = MatMul (x, w) b = Slice (a, first, end, axis) c = Reshape (b, heads)"
        " y = Transpose <perm = [0, 2, 1, 3]> (c)}",
        {"w": (16, 24)},
    ),
    "heads of two parts": (
        "(float[1,6,16] x) => (float[1,2,6,4] y, float[1,6,4,4] z)"
        "<int64[2] parts = {8, 16}, int64[4] two = {1, 6, 2, 4}, int64[4] four = {1, 6, 4, 4}>"
        "{a = MatMul (x, w) b, c = Split <axis = 2> (a, parts) d = Reshape (b, two)"
        " y = Transpose <perm = [0, 2, 1, 3]> (d) z = Reshape (c, four)}",
        {"w": (16, 24)},
    ),
    "rows behind rows": (
        "(float[1,6,16] x) => (float[1,10,8] y) <int64[2] rows = {6, 8}, int64[1] none = {0},"
        " int64[1] end = {4}, int64[3] joined = {1, 10, 8}>"
        "{a = MatMul (x, w) b = Reshape (a, rows) c = MatMul (x, v) d = Reshape (c, rows)"
        " e = Slice (d, none, end, none) f = Concat <axis = 0> (b, e) y = Reshape (f, joined)}",
        {"w": (16, 8), "v": (16, 8)},
    ),
}
CASES = [
    pytest.param(precision, *case, id=f"{precision} {name}")
    for precision, cases in (
        ("fp32", {**VOLUMES, **LINES}),
        ("int8", {**{f"{op} 3D": each for op, each in VOLUMES.items()}, **ENLARGEMENTS, **TOKENS}),
    )
    for name, case in cases.items()
]


def _compiled(model: onnx.ModelProto, precision: str, folder: Path) -> Program:
    """As `program_of`, in this precision."""
    onnx.save(model, folder / "m.onnx")
    made, _ = compile_model(Request(folder / "m.onnx", target("bm1684"), Options(precision=precision, level="0")))
    save(made, folder / "out.npu")
    return load(folder / "out.npu")


@pytest.mark.parametrize(("precision", "text", "shapes"), CASES)
def test_the_network_runs_without_the_host(precision: str, text: str, shapes: Shapes, tmp_path: Path) -> None:
    program = _compiled(parse(f"g {text}", **shapes), precision, tmp_path)
    assert not is_composite(program)
    found = checked(program, tmp_path, synthetic(running.program_inputs(program), 5, seed=5))
    assert found["status"] == "ok"
    assert found["bit_exact"] is (True if precision == "int8" else None)


def test_limits_on_both_sides_are_a_table_behind_a_convolution(tmp_path: Path) -> None:
    text = (
        "g (float[1,4,6,6] x) => (float[1,4,6,6] y) <float low = {-1}, float high = {1}>"
        "{a = Conv (x, w) b = Clip (a, low, high) y = Conv (b, w)}"
    )
    program = _compiled(parse(text, w=(4, 4, 1, 1)), "int8", tmp_path)
    assert places(program) == [("npu", ("Conv", "Clip", "Conv"))]
    assert checked(program, tmp_path)["bit_exact"] is True


def test_products_run_beside_a_function_that_the_host_computes(tmp_path: Path) -> None:
    text = (
        "g (float[1,6,16] x) => (float[1,6,16] y)"
        "{a = MatMul (x, w) b = Ceil (a) c = Mul (a, b) d = Relu (c) y = MatMul (d, w)}"
    )
    program = _compiled(parse(text, w=(16, 16)), "int8", tmp_path)
    assert places(program) == [("npu", ("MatMul",)), ("host", ("Ceil", "Mul")), ("npu", ("Relu", "MatMul"))]
    assert program.manifest["report"]["npu_macs_share"] == 1.0


def test_the_images_of_a_batch_stay_apart_in_a_product(tmp_path: Path) -> None:
    model = parse("g (float[5,16] x) => (float[5,8] y) {a = MatMul (x, w) y = Relu (a)}", w=(16, 8))
    program = _compiled(model, "int8", tmp_path)
    assert not is_composite(program)
    assert checked(program, tmp_path)["bit_exact"] is True
