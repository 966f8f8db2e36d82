"""The families compute what they promise in the spelling of every exporter, and compile with their shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from npuc import api
from npuc.models.families import FAMILIES, STYLES, build
from npuc.target import Options

RESULTS = {
    "mobilenet_v3_small": (1, 100),
    "ocr_recogniser": (1, 16, 40),
    "vision_transformer": (1, 10),
    "transformer_encoder": (1, 16, 32),
    "recurrent": (1, 20, 12),
    "audio": (1, 8),
    "dfl_detector": (1, 8, 20),
}
SPELLED = {
    "tensorflow": ("StatefulPartitionedCall/", {"Transpose"}),
    "dynamo": ("node_", {"Shape"}),
    "paddle": ("p2o.", {"Cast"}),
}
"""What every name of a style starts with, and an operator that marks it."""


def _inputs(session: Any, seed: int) -> dict[str, Any]:
    random = np.random.default_rng(seed)
    return {
        each.name: random.integers(0, 100, each.shape)
        if each.type == "tensor(int64)"
        else random.normal(0.3, 1, each.shape).astype(np.float32)
        for each in session.get_inputs()
    }


@pytest.mark.parametrize("style", STYLES)
@pytest.mark.parametrize("family", FAMILIES)
def test_a_family_in_a_style_runs_and_depends_on_its_input(family: str, style: str) -> None:
    model = build(family, style)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    results: list[Any] = [session.run(None, _inputs(session, seed))[0] for seed in (0, 1)]
    first, second = results
    assert first.shape == RESULTS[family]
    assert np.isfinite(first).all()
    assert first.std() > 0.01
    assert np.abs(first - second).max() > 0.2 * first.std()
    prefix, _ = SPELLED[style]
    assert all(node.name.startswith(prefix) for node in model.graph.node)


@pytest.mark.parametrize("style", STYLES)
def test_a_style_has_its_marks(style: str) -> None:
    models = [build(family, style) for family in ("transformer_encoder", "mobilenet_v3_small")]
    used = {node.op_type for model in models for node in model.graph.node}
    assert SPELLED[style][1] <= used
    assert bool(models[0].functions) == (style == "dynamo")


def test_a_family_has_the_same_bytes_on_every_call() -> None:
    assert build("audio", "dynamo").SerializeToString() == build("audio", "dynamo").SerializeToString()
    assert build("audio", "dynamo", 1).SerializeToString() != build("audio", "dynamo").SerializeToString()


@pytest.mark.parametrize(
    ("family", "style", "target", "precision"),
    [
        ("audio", "tensorflow", "easynpu", "int8"),
        ("audio", "dynamo", "nvdla-small", "int8"),
        ("audio", "paddle", "bm1684", "fp32"),
        ("recurrent", "dynamo", "bm1684", "fp32"),
    ],
)
def test_a_family_compiles_and_its_npu_parts_are_exact(
    family: str, style: str, target: str, precision: str
) -> None:
    model = build(family, style)
    compiled = api.compile(model, target, options=Options(precision=precision, level="0"))
    found = api.verify(model, compiled)
    assert found["bit_exact"] is (None if precision == "fp32" else True)
    share = compiled.report["npu_macs_share"]
    assert share >= (0.3 if family == "recurrent" else 0.9)


def test_a_tensor_inside_a_function_may_cross_to_the_host() -> None:
    """Verification knows the tensors of a model's own functions, as programs do."""
    text = """<ir_version: 8, opset_import: ["": 17, "own": 1]>
    g (float[1,8,6,6] x) => (float[1,8,6,6] y) <int32 k = {1}> { y = own.block(x, w, k) }
    <domain: "own", opset_import: ["": 17]> block (a, w, k) => (d) {
        b = Conv<pads = [1, 1, 1, 1]>(a, w)
        c = CumSum(b, k)
        d = Conv<pads = [1, 1, 1, 1]>(c, w)
    }"""
    model = onnx.parser.parse_model(text)
    w = (np.random.default_rng(3).normal(0.02, 0.12, (8, 8, 3, 3))).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(w, "w"))
    found = api.verify(model, api.compile(model, "easynpu", options=Options(level="0")))
    assert found["bit_exact"] is True
