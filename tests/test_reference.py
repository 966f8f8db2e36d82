"""onnxruntime as the reference: what it computes is what the model says."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from npuc import reference
from npuc.ir import Array, Graph
from npuc.onnx_files.export import to_onnx
from npuc.onnx_files.external_data import HEAVY, without_weights
from npuc.ops.interpreter import run
from npuc.reference import graph_session, session
from tests.onnx_models import parse
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


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted by /proc")
def test_onnxruntime_has_no_thread_that_sends_what_it_knows_of_models() -> None:
    """Such a thread may also hold a lock for ever in a copy of the process."""
    code = "import os; from npuc.reference import integers_are_exact; integers_are_exact()"
    process = subprocess.run(
        [sys.executable, "-c", f"{code}; print(*os.listdir('/proc/self/task'))"],
        env={name: value for name, value in os.environ.items() if "TELEMETRY" not in name}
        | {"OPENBLAS_NUM_THREADS": "1"},
        cwd=Path(__file__).resolve().parents[1],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert len(process.stdout.split()) == 1


def heavy() -> Graph:
    """A convolution whose weights are heavier than what is copied."""
    weights = np.random.default_rng(0).standard_normal((64, 4096, 1, 1)).astype(np.float32)
    assert weights.nbytes >= HEAVY
    return network((1, 4096, 2, 2), "y", node("Conv", "x w", "y"), w=weights)


def test_a_graph_runs_with_its_own_constants_beside_a_model_that_has_none_of_their_bytes() -> None:
    graph, weights = heavy(), dict[str, Array]()
    assert len(to_onnx(graph, ["y"], weights).SerializeToString()) < 1000
    assert weights["w"] is graph.constants["w"]
    x = {"x": np.random.default_rng(1).standard_normal((1, 4096, 2, 2)).astype(np.float32)}
    (found,), (whole,) = (run.run(["y"], x) for run in (graph_session(graph, ["y"]), session(to_onnx(graph))))
    np.testing.assert_allclose(found, whole, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("confined", [False, True])
def test_a_model_and_its_weights_apart_compute_what_they_do_together(confined: bool) -> None:
    whole = to_onnx(heavy()).SerializeToString()
    model, weights = without_weights(onnx.ModelProto.FromString(whole))
    assert len(model.SerializeToString()) < 1000 < HEAVY < len(whole)
    x = {"x": np.random.default_rng(1).standard_normal((1, 4096, 2, 2)).astype(np.float32)}
    apart = session(model, weights, confined=confined)
    np.testing.assert_array_equal(apart.run(["y"], x), session(whole).run(["y"], x))


def test_large_weights_are_computed_with_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither rearranged, nor turned into floats beforehand where they are int8; no sum leaves 24 bits."""
    random = np.random.default_rng(0)
    integers = random.integers(-8, 8, (16, 32, 3, 3)).astype(np.int8)
    x = random.integers(-128, 128, (1, 32, 8, 8)).astype(np.float32)
    nodes = [node("Cast", "i", "w", to="float32"), node("Conv", "x w", "y")]
    graph = network((1, 32, 8, 8), "y", *nodes, i=integers)
    (expected,) = session(to_onnx(graph)).run(["y"], {"x": x})
    monkeypatch.setattr(reference, "LARGE", 0)
    np.testing.assert_array_equal(session(to_onnx(graph)).run(["y"], {"x": x})[0], expected)
    plain = network((1, 32, 8, 8), "y", nodes[1], w=integers.astype(np.float32))
    weights: dict[str, Array] = {}
    monkeypatch.setattr("npuc.onnx_files.export.HEAVY", 0)
    found = session(to_onnx(plain, ["y"], weights), weights).run(["y"], {"x": x})
    np.testing.assert_array_equal(found[0], expected)


def test_two_roundings_behind_each_other_are_both_done() -> None:
    """0.37 is 0.36 in steps of 0.03, and then 0.5 in steps of 0.5; 0.2 is 0.21, and then 0."""
    graph = network((2,), "y", node("QuantizeLinear", "x fine zero", "q"),
        node("DequantizeLinear", "q fine zero", "a"), node("QuantizeLinear", "a coarse zero", "r"),
        node("DequantizeLinear", "r coarse zero", "y"), fine=0.03, coarse=0.5, zero=np.int8(5))  # fmt: skip
    (found,) = session(to_onnx(graph)).run(["y"], {"x": np.array([0.37, 0.2], np.float32)})
    np.testing.assert_array_equal(found, np.array([0.5, 0], np.float32))


def test_an_output_behind_which_a_moved_tensor_is_rounded_is_not_rounded() -> None:
    nodes = [
        node("MatMul", "x w", "t"),
        node("Transpose", "t", "m", perm=(1, 0)),
        node("QuantizeLinear", "m fine zero", "q"),
        node("DequantizeLinear", "q fine zero", "a"),
        node("QuantizeLinear", "a coarse zero", "r"),
        node("DequantizeLinear", "r coarse zero", "y"),
    ]
    w = np.random.default_rng(0).standard_normal((3, 2)).astype(np.float32)
    graph = network((4, 3), "t y", *nodes, w=w, fine=0.03, coarse=0.5, zero=np.int8(5))
    x = np.random.default_rng(1).standard_normal((4, 3)).astype(np.float32) + 9
    (found,) = session(to_onnx(graph)).run(["t"], {"x": x})
    np.testing.assert_allclose(found, x @ w, rtol=1e-6)


def test_a_product_behind_pooling_whose_shape_onnxruntime_mistakes_is_computed() -> None:
    """It infers 4 rows, of which the last would lie in padding alone, and joins MatMul and Add for so many."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[1,8,8,8] x) => (float[1,8,3,1] y) {
        a = AveragePool <ceil_mode = 1, kernel_shape = [2, 4], pads = [1, 1, 1, 1], strides = [3, 3]> (x)
        b = MatMul(a, w)
        y = Add(b, c)
    }"""
    w, c = np.array([[1.5], [-2.0], [0.25]], np.float32), np.array([0.5], np.float32)
    model = parse(text, w=w, c=c)
    x = np.random.default_rng(0).normal(0.3, 1, (1, 8, 8, 8)).astype(np.float32)
    (found,) = session(model).run(None, {"x": x})
    (wanted,) = session(model, few_runs=True).run(None, {"x": x})
    np.testing.assert_allclose(found, wanted, rtol=1e-5, atol=1e-5)
