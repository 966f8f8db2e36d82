"""Indices, axes and divisors that are constant are checked at import, over the borders of what is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime
import pytest

import npuc
from npuc.errors import NpucError
from tests.onnx_models import parse

CASES: dict[str, tuple[str, dict[str, Any], str | None]] = {
    "the last index": ("y = Gather <axis = 1> (a, c)", {"c": [3]}, None),
    "an index behind it": ("y = Gather <axis = 1> (a, c)", {"c": [0, 4]}, "indices from 0 to 4"),
    "the first index from behind": ("y = Gather <axis = 1> (a, c)", {"c": [-4, 3]}, None),
    "an index before it": ("y = Gather <axis = 1> (a, c)", {"c": [-5]}, "indices from -5 to -5"),
    "an index into a constant": ("b = Gather <axis = 0> (d, c)\n y = Add (a, b)", {"c": [4]}, "from 4 to 4"),
    "an index into a shape": ("s = Shape (a)\n y = Gather <axis = 0> (s, c)", {"c": [3]}, "indices from 3 to 3"),
    "no index at all": ("b = Gather <axis = 1> (a, c)\n y = Concat <axis = 1> (a, b)", {"c": []}, None),
    "a divisor of 1": ("i = Cast <to = 7> (a)\n j = Div (i, c)\n y = Cast <to = 1> (j)", {"c": [1]}, None),
    "a divisor of -1": ("i = Cast <to = 7> (a)\n j = Div (i, c)\n y = Cast <to = 1> (j)", {"c": [-1]}, None),
    "a divisor of 0": ("i = Cast <to = 7> (a)\n j = Div (i, c)\n y = Cast <to = 1> (j)", {"c": [0]}, "by 0"),
    "a 0 among divisors": ("i = Cast <to = 7> (a)\n y = Div (i, c)", {"c": [1, 2, 0, 4, 5]}, "divided by 0"),
    "constants divided": ("i = Div (c, c)\n f = Cast <to = 1> (i)\n y = Add (a, f)", {"c": [0]}, "by 0"),
    "floats divided by 0": ("b = Div (a, z)\n y = Clip (b, z, o)", {"z": np.float32(0), "o": np.float32(1)}, None),
    "the last axis": ("y = ReduceSum (a, c)", {"c": [2]}, None),
    "an axis behind it": ("y = ReduceSum (a, c)", {"c": [3]}, "axis 3 of a tensor with 3 dimensions"),
    "steps of 0": ("y = Slice (a, c, o, o, z)", {"c": [0], "o": [2], "z": [0]}, "steps [0]"),
    "what only the host knows": ("y = CumSum (a, c)", {"c": np.int64(3)}, "cannot run it"),
}  # fmt: skip


@pytest.mark.parametrize("target", ["bm1684", "easynpu"])
@pytest.mark.parametrize("name", CASES)
def test_constants_are_checked_at_import(name: str, target: str) -> None:
    body, constants, said = CASES[name]
    held = {key: value if np.size(value) else np.asarray(value, np.int64) for key, value in constants.items()}
    text = f"g (float[1,4,5] x) => (y) {{ a = Abs (x)\n {body} }}"
    model = parse(text, **{"d": np.ones((4, 5)), **held})
    x = np.random.default_rng(0).uniform(1, 5, (3, 1, 4, 5)).astype(np.float32)
    precision = "fp32" if target == "bm1684" else "int8"
    if said is not None:
        with pytest.raises(NpucError) as caught:
            npuc.compile(model, target, precision=precision, calibration={"x": x}, level="0")
        assert said in str(caught.value) and {each.code for each in caught.value.problems} == {"E105"}
        return
    program = npuc.compile(model, target, precision=precision, calibration={"x": x}, level="0")
    session: Any = onnxruntime.InferenceSession(model.SerializeToString())
    wanted = np.concatenate([session.run(None, {"x": each})[0] for each in x])
    np.testing.assert_allclose(program.run({"x": x})["y"], wanted, rtol=0.05, atol=0.1)
