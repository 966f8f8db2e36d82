"""Multiply-accumulates of nodes that onnxruntime runs and npuc does not know, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from npuc.frontend.importing import import_nodes
from npuc.regions.graphs import node_macs
from tests.frontend.test_fused import CASES, model_of
from tests.onnx_models import network, parse

LSTM = ["x", "W", "R", "", "", "", "", "", "s", "z", "s", "z"]


def of_lstm() -> onnx.ModelProto:
    """5 steps, 4 features, 3 hidden: DynamicQuantizeLSTM."""
    integers = np.ones((1, 4, 12), np.int8)
    held = {"W": integers, "R": integers[:, :3], "s": np.full(1, 0.1), "z": np.zeros(1, np.int8)}
    made = helper.make_node("DynamicQuantizeLSTM", LSTM, ["y"], domain="com.microsoft", hidden_size=3)
    return network([made], (5, 1, 4), held, com_microsoft=1)


@pytest.mark.parametrize(("made", "expected"), [
    (of_lstm, 5 * (4 * 12 + 3 * 12)), ("FusedConv", 4 * 3 * 3 * 2 * 3 * 3), ("FusedGemm", 3 * 4 * 5),
    ("of Tanh", 3 * 4 * 5), ("FusedMatMul 10, batches 00", 2 * 3 * 5 * 4),
    ("MatMulNBits 4 32 16 none", 3 * 5 * 32), ("SkipLayerNormalization", 0),
])  # fmt: skip
def test_a_node_counts_its_products(made: Any, expected: int) -> None:
    model: Any = made() if callable(made) else model_of(*CASES[made])[0]
    network = import_nodes(model, Path(), {})
    unit = network.nodes[0]
    foreign = type(unit)(unit.name, unit.proto, (), None, unit.source)
    assert {node_macs(network, each) for each in (unit, foreign)} == {expected}


def _of_body(text: str) -> onnx.ModelProto:
    model = parse(text)
    weights = {"w": np.ones((4, 5), np.float32), "v": np.ones((5, 4), np.float32)}
    model.graph.initializer.extend(numpy_helper.from_array(value, name) for name, value in weights.items())
    return model


LOOP = """
    g (float[3,4] x, int64 n) => (float[3,4] y) <int64 five = {5}, bool on = {1}> {
        y = Loop (%s, on, x) <body = b (int64 i, bool c, float[3,4] s) => (bool c2, float[3,4] s2)
            { c2 = Identity(c) m = MatMul(s, w) s2 = MatMul(m, v) }>
    }
"""
IF = """
    g (float[3,4] x, bool c) => (float[3,5] y) {
        y = If (c) <then_branch = t () => (float[3,5] a) { a = MatMul(x, w) },
            else_branch = e () => (float[3,5] b) { p = MatMul(x, w) q = Relu(p) r = Transpose(w)
                u = MatMul(q, r) b = MatMul(u, w) }>
    }
"""
SCAN = """
    g (float[7,3,4] x, float[3,4] s) => (float[3,4] y, float[7,3,5] z) {
        y, z = Scan <num_scan_inputs = 1, body = b (float[3,4] h, float[3,4] xi) => (float[3,4] h2, float[3,5] o)
            { h2 = Add(h, xi) o = MatMul(h2, w) }> (s, x)
    }
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (LOOP % "five", 5 * (3 * 4 * 5 + 3 * 5 * 4)),
        (LOOP % "n", 3 * 4 * 5 + 3 * 5 * 4),  # the number of passes is not known: one
        (IF, 3 * 3 * 4 * 5),  # the costlier branch
        (SCAN, 7 * 3 * 4 * 5),
    ],
)
def test_a_body_counts_for_every_pass(text: str, expected: int) -> None:
    network = import_nodes(_of_body(text), Path(), {})
    (node,) = network.nodes
    assert node_macs(network, node) == expected
