"""Operators of ai.onnx.ml mean what onnxruntime computes for them."""

from __future__ import annotations

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import parser

from npuc.errors import NpucError
from npuc.frontend import import_model
from npuc.interpreter import run


def scaled(shape: str, offset: str, scale: str) -> onnx.ModelProto:
    node = f"y = ai.onnx.ml.Scaler<offset = {offset}, scale = {scale}>(x)"
    return parser.parse_model(
        '<ir_version: 8, opset_import: ["": 17, "ai.onnx.ml": 3]>'
        f" g (float{shape} x) => (float{shape} y) {{ {node} }}"
    )


@pytest.mark.parametrize(
    ("shape", "offset", "scale"),
    [
        ("[3]", "[1.5, -2.0, 0.25]", "[0.5, 3.0, -7.0]"),
        ("[4,3]", "[1.5, -2.0, 0.25]", "[0.5, 3.0, -7.0]"),
        ("[4,3]", "[1.5]", "[0.5]"),
    ],
)
def test_a_scaler_subtracts_and_multiplies_feature_by_feature(shape: str, offset: str, scale: str) -> None:
    model = scaled(shape, offset, scale)
    x = {
        "x": np.random.default_rng(0).standard_normal([int(n) for n in shape[1:-1].split(",")]).astype(np.float32)
    }
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    found = run(import_model(model), x)["y"]
    np.testing.assert_allclose(found, np.asarray(session.run(["y"], x)[0]), rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "offset", "code"),
    [("[1,4,3]", "[1.0, 1.0, 1.0]", "E202"), ("[4,3]", "[1.0, 1.0]", "E105")],
)
def test_a_scaler_of_other_shapes_is_refused(shape: str, offset: str, code: str) -> None:
    with pytest.raises(NpucError) as refused:
        import_model(scaled(shape, offset, offset))
    assert refused.value.problems[0].code == code


def test_other_operators_of_the_domain_are_not_known() -> None:
    model = scaled("[3]", "[1.0]", "[1.0]")
    model.graph.node[0].op_type = "Normalizer"
    model.graph.node[0].ClearField("attribute")
    with pytest.raises(NpucError) as refused:
        import_model(model)
    assert refused.value.problems[0].code == "E201"
