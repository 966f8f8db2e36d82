"""onnxruntime as the reference: what it computes is what the model says."""

from __future__ import annotations

import numpy as np

from npuc.export_onnx import to_onnx
from npuc.interpreter import run
from npuc.reference import session
from tests.passes.networks import network, node


def test_float_weights_between_rounded_tensors_stay_float() -> None:
    """onnxruntime's optimiser would quantise them, per tensor."""
    rounded = [
        node("FakeQuantize", "x", "r", scale=0.05, zero_point=0, dtype="int8"),
        node("Conv", "r w", "c"),
        node("FakeQuantize", "c", "y", scale=0.01, zero_point=0, dtype="int8"),
    ]
    weights = np.random.default_rng(0).standard_normal((4, 4, 1, 1)).astype(np.float32) * 0.05
    graph = network((1, 4, 8, 8), "y", *rounded, w=weights)
    x = {"x": np.random.default_rng(1).standard_normal((1, 4, 8, 8)).astype(np.float32)}
    (found,) = session(to_onnx(graph)).run(None, x)
    np.testing.assert_allclose(found, run(graph, x)["y"], atol=1e-6)
