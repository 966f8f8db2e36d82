"""Multiply-accumulates of nodes that onnxruntime runs and npuc does not know, by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from npuc.frontend.importing import import_nodes
from npuc.regions.graphs import node_macs
from tests.frontend.test_fused import CASES, model_of

LSTM = ["x", "W", "R", "", "", "", "", "", "s", "z", "s", "z"]


def of_lstm() -> onnx.ModelProto:
    """5 steps, 4 features, 3 hidden: DynamicQuantizeLSTM."""
    integers = np.ones((1, 4, 12), np.int8)
    held = {"W": integers, "R": integers[:, :3], "s": np.full(1, 0.1, np.float32), "z": np.zeros(1, np.int8)}
    node = helper.make_node("DynamicQuantizeLSTM", LSTM, ["y"], domain="com.microsoft", hidden_size=3)
    ports = [
        helper.make_tensor_value_info(*each) for each in (("x", TensorProto.FLOAT, [5, 1, 4]), ("y", 1, None))
    ]
    constants = [numpy_helper.from_array(value, name) for name, value in held.items()]
    graph = helper.make_graph([node], "g", ports[:1], ports[1:], constants)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


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
    model = made() if callable(made) else model_of(*CASES[made])[0]
    network = import_nodes(model, Path(), {})
    (unit,) = (each for each in network.nodes if each.op == model.graph.node[0].op_type)
    foreign = type(unit)(unit.name, unit.proto, (), None, unit.source)
    assert {node_macs(network, each) for each in (unit, foreign)} == {expected}
