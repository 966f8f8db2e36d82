"""Convolutions with dilations beyond the field: the phases of the map, interleaved."""

from __future__ import annotations

import numpy as np
import pytest

from npuc import api
from npuc.reference import session
from npuc.target import Options
from tests.onnx_models import parse

CASES = [
    ((3, 3), (36, 36), (36, 36, 36, 36), (17, 14), "int8"),
    ((3, 3), (33, 33), (33, 30, 32, 33), (16, 11), "fp16"),
    ((3, 3), (36, 1), (36, 1, 36, 1), (17, 14), "fp16"),
    ((3, 1), (40, 1), (40, 0, 40, 0), (17, 14), "int8"),
    ((3, 3), (2, 40), (2, 40, 2, 41), (17, 15), "fp16"),
    ((2, 3), (48, 66), (48, 66, 0, 66), (17, 14), "int8"),
]


@pytest.mark.parametrize(("kernel", "dilations", "pads", "result", "precision"), CASES)
def test_a_dilation_beyond_the_field_is_computed_by_phases(
    kernel: tuple[int, int],
    dilations: tuple[int, int],
    pads: tuple[int, ...],
    result: tuple[int, int],
    precision: str,
) -> None:
    """Before, the host computed it."""
    random = np.random.default_rng(0)
    held = {name: random.normal(0.02, 0.3, shape) for name, shape in (("w", (8, 8, *kernel)), ("v", (8, 8, 1, 1)))}
    model = parse(
        f"g (float[1,8,17,14] x) => (float[1,8,{result[0]},{result[1]}] y) "
        f"{{ a = Conv <dilations = {list(dilations)}, pads = {list(pads)}> (x, w)\n y = Conv(a, v) }}",
        **held,
    )
    x = random.normal(0.3, 1, (3, 1, 8, 17, 14)).astype(np.float32)
    target = "nvdla-small" if precision == "int8" else "nvdla-full"
    options = Options(precision=precision, strict=True)
    found = api.compile(model, target, calibration={"x": x}, options=options)
    wanted = np.stack([session(model).run(None, {"x": each})[0] for each in x])
    got = found.run({"x": x})["y"].reshape(wanted.shape)
    assert np.square(got - wanted).sum() < 2e-3 * np.square(wanted).sum()
