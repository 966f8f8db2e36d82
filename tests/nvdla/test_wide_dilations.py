"""Convolutions with dilations beyond the field: the phases of the map, interleaved."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import pytest

from npuc import api
from npuc.reference import session
from npuc.target import Options


@pytest.mark.parametrize(("target", "precision"), [("nvdla-small", "int8"), ("nvdla-full", "fp16")])
@pytest.mark.parametrize(
    ("kernel", "dilations", "pads", "result"),
    [
        ((3, 3), (36, 36), (36, 36, 36, 36), (17, 14)),
        ((3, 3), (33, 33), (33, 30, 32, 33), (16, 11)),
        ((3, 3), (36, 1), (36, 1, 36, 1), (17, 14)),
        ((3, 1), (40, 1), (40, 0, 40, 0), (17, 14)),
        ((3, 3), (2, 40), (2, 40, 2, 41), (17, 15)),
        ((2, 3), (48, 66), (48, 66, 0, 66), (17, 14)),
    ],
)
def test_a_dilation_beyond_the_field_is_computed_by_phases(
    kernel: tuple[int, int],
    dilations: tuple[int, int],
    pads: tuple[int, ...],
    result: tuple[int, int],
    target: str,
    precision: str,
) -> None:
    """Before, the host computed it."""
    high, wide = result
    attributes = f"dilations = {list(dilations)}, pads = {list(pads)}"
    model = onnx.parser.parse_model(
        f'<ir_version: 8, opset_import: ["": 17]> g (float[1,8,17,14] x) => (float[1,8,{high},{wide}] y) '
        f"{{ a = Conv <{attributes}> (x, w)\n y = Conv(a, v) }}"
    )
    random = np.random.default_rng(0)
    for name, shape in {"w": (8, 8, *kernel), "v": (8, 8, 1, 1)}.items():
        values = random.normal(0.02, 0.3, shape).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(values, name))
    x = random.normal(0.3, 1, (3, 1, 8, 17, 14)).astype(np.float32)
    found = api.compile(model, target, calibration={"x": x}, options=Options(precision=precision, strict=True))
    wanted = np.stack([session(model).run(None, {"x": each})[0] for each in x])
    got = found.run({"x": x})["y"].reshape(wanted.shape)
    assert np.square(got - wanted).sum() < 2e-3 * np.square(wanted).sum()
