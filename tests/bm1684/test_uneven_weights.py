"""A layer with one outlier channel: one step for all weights would round those of the others to almost nothing."""

from __future__ import annotations

import numpy as np

from npuc import api
from tests.onnx_models import network, node, weights

OUTLIER = 100


def test_an_outlier_channel_does_not_cost_the_others_their_accuracy() -> None:
    """A depthwise channel of small values with large weights; with one step for all weights 6 dB remain."""
    w = weights(32, 1, 3, 3)
    w[0] *= OUTLIER
    nodes = [node("Conv", "x w", "y", group=32, pads=[1, 1, 1, 1]), node("HardSwish", "y", "z")]
    model = network(nodes, (1, 32, 12, 12), {"w": w})
    x = np.random.default_rng(3).normal(0.3, 1, (8, 1, 32, 12, 12)).astype(np.float32)
    x[:, :, 0] /= OUTLIER
    program = api.compile(model, "bm1684", calibration={"x": x[:4]}, precision="int8", level=0)
    report = api.verify(model, program, {"x": x[4:]})
    assert report["status"] == "ok"
    assert min(each["sqnr_db"] for each in report["outputs"]) > 12
