"""Channels that every reader multiplies by 0 are not computed, and the results stay the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from npuc import api
from npuc.frontend import load
from npuc.ir import Graph
from npuc.reference import session
from npuc.targets.easynpu.network.unread_channels import drop_unread_channels
from tests.easynpu_rewrites.nets import Net

TEXT = """
    a = Conv (x, v, b) c = Relu (a) d = Conv <group = 24, pads = [1, 1, 1, 1]> (c, k) e = Relu (d) y = Conv (e, w)
"""
SHAPES = {"v": (24, 8, 1, 1), "b": (24,), "k": (24, 1, 3, 3), "w": (5, 24, 1, 1)}
X, Y = (1, 8, 6, 7), (1, 5, 6, 7)


def changed(folder: Path, text: str, values: dict[int, float]) -> tuple[onnx.ModelProto, Graph]:
    """The model with the weights w of some channels set to a part of the largest, and its graph after the pass."""
    model = Net(X, Y, text, SHAPES).model()
    (w,) = (each for each in model.graph.initializer if each.name == "w")
    array = onnx.numpy_helper.to_array(w).copy()
    array[0, 0] = 1
    array = np.clip(array, -1, 1)
    for channel, value in values.items():
        array[:, channel] = value
    w.CopyFrom(onnx.numpy_helper.from_array(array, "w"))
    onnx.save(model, folder / "m.onnx")
    return model, drop_unread_channels(load(folder / "m.onnx"))


def outputs_of(graph: Graph) -> list[int]:
    return [graph.shape(node.output)[1] for node in graph.nodes if node.op == "Conv"]


def test_a_channel_below_the_resolution_of_a_sum_is_dropped_from_all_operators(tmp_path: Path) -> None:
    """2^-60 of the largest weight is the border: that part goes, the next larger float stays."""
    above = float(np.nextafter(np.float32(2.0**-60), np.float32(1)))
    _, graph = changed(tmp_path, TEXT, {3: 0, 7: 2.0**-60, 9: above})
    assert outputs_of(graph) == [22, 22, 5]


def test_one_channel_stays_where_none_is_read(tmp_path: Path) -> None:
    model = Net(X, Y, TEXT, SHAPES).model()
    (w,) = (each for each in model.graph.initializer if each.name == "w")
    w.CopyFrom(onnx.numpy_helper.from_array(np.zeros(SHAPES["w"], np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx")
    assert outputs_of(drop_unread_channels(load(tmp_path / "m.onnx"))) == [1, 1, 5]


@pytest.mark.parametrize(
    "text",
    [
        TEXT.replace("y = Conv (e, w)", "f = Add (e, c) y = Conv (f, w)"),
        TEXT.replace("y = Conv (e, w)", "f = GlobalAveragePool (e) g = Mul (e, f) y = Conv (g, w)"),
    ],
    ids=["a sum", "a product"],
)
def test_channels_that_another_operator_reads_stay(text: str, tmp_path: Path) -> None:
    _, graph = changed(tmp_path, text, {3: 0})
    assert outputs_of(graph)[:2] == [24, 24]


def test_the_program_computes_what_the_model_does(tmp_path: Path) -> None:
    """15 of 24 channels go: one group of 16 is left, and onnxruntime agrees."""
    model, _ = changed(tmp_path, TEXT, dict.fromkeys(range(5, 20), 0))
    samples = np.random.default_rng(1).normal(size=(4, *X[1:])).astype(np.float32)
    found = api.compile(model, "easynpu", calibration={"x": samples})
    assert found.report["proof"]["bit_exact"] is True
    assert [row["macs"] for row in found.report["layers"]] == [8 * 9 * 42, 9 * 9 * 42, 9 * 5 * 42]
    run = session(model.SerializeToString())
    exact = np.concatenate([np.asarray(run.run(None, {"x": each[None]})[0]) for each in samples])
    assert np.abs(found.run({"x": samples})["y"] - exact).max() < 0.05 * np.abs(exact).max()
