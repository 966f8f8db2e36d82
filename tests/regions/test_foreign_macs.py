"""Multiply-accumulates of nodes that onnxruntime runs and npuc does not know, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import helper

from npuc.frontend.importing import import_nodes
from npuc.regions.graphs import node_macs
from tests.frontend.test_fused import CASES, model_of
from tests.onnx_models import network

LSTM = ["x", "W", "R", "", "", "", "", "", "s", "z", "s", "z"]


def of_lstm() -> onnx.ModelProto:
    """5 steps, 4 features, 3 hidden: DynamicQuantizeLSTM."""
    integers = np.ones((1, 4, 12), np.int8)
    held = {"W": integers, "R": integers[:, :3], "s": np.full(1, 0.1), "z": np.zeros(1, np.int8)}
    made = helper.make_node("DynamicQuantizeLSTM", LSTM, ["y"], domain="com.microsoft", hidden_size=3)
    return network([made], (5, 1, 4), held, com_microsoft=1)


@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (of_lstm, 5 * (4 * 12 + 3 * 12)),
        ("FusedConv", 4 * 3 * 3 * 2 * 3 * 3),
        ("FusedGemm", 3 * 4 * 5),
        ("of Tanh", 3 * 4 * 5),
        ("FusedMatMul 10, batches 00", 2 * 3 * 5 * 4),
        ("MatMulNBits 4 32 16 none", 3 * 5 * 32),
        ("SkipLayerNormalization", 0),
    ],
)
def test_a_node_counts_its_products(made: Any, expected: int) -> None:
    model: Any = made() if callable(made) else model_of(*CASES[made])[0]
    network = import_nodes(model, Path(), {})
    unit = network.nodes[0]
    foreign = type(unit)(unit.name, unit.proto, (), None, unit.source)
    assert {node_macs(network, each) for each in (unit, foreign)} == {expected}
