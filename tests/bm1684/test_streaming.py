"""Convolutions of an input of the network, strip by strip: rows may count as channels, results stay the same."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from npuc.program import Program, as_loaded
from npuc.target import Options, Request
from npuc.targets.bm1684.program.table import TABLE_FILE
from npuc.targets.bm1684.target import BM1684
from tests.bm1684.kernels import need_compiler, vendor_libraries
from tests.compiled import compilation
from tests.onnx_models import parse

TEXT = "g (float[1,{c},{h},{w}] x) => (float[1,{o},{ho},{wo}] y) {{ {before} y = Conv<{how}>({x}, w, b) }}"


@dataclass(frozen=True)
class Shape:
    """An image of one sample and the convolution that reads it; pairs are of rows and columns."""

    channels: int
    image: tuple[int, int]
    outputs: int
    kernel: tuple[int, int]
    strides: tuple[int, int]
    begins: tuple[int, int] = (0, 0)
    ends: tuple[int, int] = (0, 0)
    dilation: int = 1

    def extent(self, axis: int) -> int:
        """Rows or columns of the result."""
        padded = self.image[axis] + self.begins[axis] + self.ends[axis]
        return (padded - (self.kernel[axis] - 1) * self.dilation - 1) // self.strides[axis] + 1


CASES = {
    "ResNet": Shape(3, (64, 48), 64, (7, 7), (2, 2), (3, 3), (3, 3)),
    "AlexNet": Shape(3, (91, 67), 70, (11, 11), (4, 4)),
    "AlexNet of even rows": Shape(3, (92, 67), 70, (11, 11), (4, 4), (2, 2), (2, 2)),
    "rows that are no multiple": Shape(3, (63, 48), 64, (7, 7), (2, 2), (3, 3), (3, 3)),
    "two of three strides": Shape(3, (60, 40), 20, (8, 5), (6, 2), (5, 1), (4, 0)),
    "one channel": Shape(1, (48, 48), 33, (5, 5), (2, 2), (2, 2), (1, 1)),
    "rows alone": Shape(3, (48, 40), 16, (6, 1), (3, 1), (1, 0), (2, 0)),
    "no padding above": Shape(2, (50, 44), 8, (4, 4), (2, 2), (0, 1), (3, 2)),
    "much padding below": Shape(3, (40, 40), 8, (7, 7), (2, 2), (0, 0), (6, 6)),
    "dilated": Shape(3, (60, 48), 64, (4, 4), (2, 2), (3, 3), (3, 3), 2),
    "many outputs": Shape(3, (32, 32), 200, (7, 7), (2, 2), (3, 3), (3, 3)),
}


def _model(name: str, before: str = "", x: str = "x") -> onnx.ModelProto:
    """The model of a case. before: a node that makes x of the input, whose rows and columns are exchanged then."""
    case = CASES[name]
    pads, dilations = [*case.begins, *case.ends], [case.dilation] * 2
    how = f"strides = {list(case.strides)}, pads = {pads}, dilations = {dilations}"
    h, w = reversed(case.image) if before else case.image
    extents = {"c": case.channels, "h": h, "w": w, "o": case.outputs, "ho": case.extent(0), "wo": case.extent(1)}
    text = TEXT.format(**extents, how=how, before=before, x=x)
    return parse(text, w=(case.outputs, case.channels, *case.kernel), b=(case.outputs,))


def _compiled(model: onnx.ModelProto, folder: Path) -> Program:
    onnx.save(model, folder / "m.onnx")
    return as_loaded(compilation(Request(folder / "m.onnx", BM1684, Options(precision="fp32"))).program)


def _expect_right(model: onnx.ModelProto, program: Program, chip_model: str = "own") -> None:
    (port,) = program.inputs
    x = np.random.default_rng(5).normal(0.7, 2, port.shape).astype(np.float32)
    (wanted,) = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"]).run(
        None, {"x": x}
    )
    (found,) = BM1684.runner(program, chip_model)({"x": x[np.newaxis]}).values()
    np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-4 * float(np.abs(wanted).max()))


def _windows(program: Program) -> set[tuple[str, ...]]:
    """Input channels, kernel and strides of the convolutions."""
    pattern = r"bdc_conv2d \S+ \S+ \S+ \S+ \(1,(\d+),\d+,\d+\) \d+ (\d+) (\d+) .* <(\d+),(\d+)> <\S+>$"
    return set(re.findall(pattern, program.files[TABLE_FILE].decode(), re.MULTILINE))


@pytest.mark.parametrize("name", CASES)
def test_a_convolution_of_the_input_is_right(name: str, tmp_path: Path) -> None:
    need_compiler()
    model = _model(name)
    _expect_right(model, _compiled(model, tmp_path))


@pytest.mark.parametrize("name", ["ResNet", "AlexNet of even rows", "two of three strides"])
def test_a_convolution_of_the_input_is_right_on_the_vendor_s_model(name: str, tmp_path: Path) -> None:
    vendor_libraries()
    model = _model(name)
    program = _compiled(model, tmp_path)
    _expect_right(model, program, "vendor")


@pytest.mark.parametrize(
    ("name", "window"),
    [
        # 4 * 7 taps on three pairs of channels, not 7 * 7 on two
        ("ResNet", ("6", "4", "7", "1", "2")),
        # in 63 rows the last pair is incomplete
        ("rows that are no multiple", ("4", "7", "7", "2", "2")),
        # rows of a window that are not neighbours
        ("dilated", ("4", "4", "4", "2", "2")),
    ],
)
def test_rows_count_as_channels_where_that_takes_fewer_products(
    name: str, window: tuple[str, ...], tmp_path: Path
) -> None:
    assert _windows(_compiled(_model(name), tmp_path)) == {window}


def test_an_input_in_another_order_is_folded_as_well(tmp_path: Path) -> None:
    need_compiler()
    model = _model("ResNet", "t = Transpose<perm = [0, 1, 3, 2]>(x)\n", "t")
    program = _compiled(model, tmp_path)
    _expect_right(model, program)


def test_an_image_whose_rows_are_not_evenly_spaced_is_not_streamed(tmp_path: Path) -> None:
    """Rows 0..7 of channel 0, then those of channel 1 and so on, are the rows of the image that the Conv reads."""
    text = """g (float[1,3,8,5] x) => (float[1,2,12,5] y) <int64[4] s = {1, 2, 12, 5}> {
        t = Transpose<perm = [2, 0, 1, 3]>(x) r = Reshape(t, s) c = Conv(r, w) y = Relu(c) }"""
    model = parse(text, w=(2, 2, 1, 1))
    _expect_right(model, _compiled(model, tmp_path))
