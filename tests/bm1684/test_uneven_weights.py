"""Layers whose channels differ by orders of magnitude: one step for all weights would lose the small ones."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npuc import api
from tests.onnx_models import network, node, weights


@pytest.mark.parametrize("group", [1, 32])
def test_channels_of_very_different_weights_keep_their_accuracy(tmp_path: Path, group: int) -> None:
    """Per channel, against onnxruntime: with one step for all weights, small channels are 0 (0 dB)."""
    sizes = np.geomspace(1, 1e-2, 32, dtype=np.float32)[:, None, None, None]
    w = weights(32, 32 // group, 3, 3) * sizes
    back = weights(32, 32, 1, 1) / np.swapaxes(sizes, 0, 1)
    nodes = [node("Conv", "x w", "y", group=group, pads=[1, 1, 1, 1]), node("Conv", "y back", "z")]
    model = network(nodes, (1, 32, 12, 12), {"w": w, "back": back})
    x = np.random.default_rng(3).normal(0.3, 1, (8, 1, 32, 12, 12)).astype(np.float32)
    program = api.compile(model, "bm1684", calibration={"x": x[:4]}, precision="int8", level=0)
    report = api.verify(model, program, {"x": x[4:]})
    assert report["status"] == "ok"
    assert min(each["sqnr_db"] for each in report["outputs"]) > 12
