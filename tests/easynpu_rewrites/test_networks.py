"""Networks with operators that EasyNPU has no word for, compiled and compared in every bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from npuc.frontend import import_model
from npuc.models import MODELS
from npuc.ops.interpreter import run
from npuc.passes import FLOAT_PASSES
from npuc.pipeline import run_passes
from npuc.target import Options, Request, target
from npuc.verification.metrics import Tolerance
from tests.compiled import verified
from tests.easynpu_rewrites.nets import NETS, Net
from tests.graphs.drawn import drawn
from tests.onnx_models import network, node
from tests.passes.networks import assert_same_meaning

EASYNPU = target("easynpu")


@pytest.mark.parametrize("machine", ["default", "large"])
@pytest.mark.parametrize("name", NETS)
def test_all_arithmetic_of_a_network_runs_on_the_array_in_every_bit(
    name: str, machine: str, tmp_path: Path
) -> None:
    onnx.save(NETS[name].model(), tmp_path / "m.onnx")
    request = Request(tmp_path / "m.onnx", EASYNPU, Options(machine=machine))
    loaded, report = verified(request, tmp_path, (3, 5), Tolerance())
    assert {step["op"] for step in loaded.manifest["report"]["host_steps"]} <= {"Slice", "Split"}
    assert report["bit_exact"] is True
    assert report["status"] == "ok"
    assert all(output["sqnr_db"] is None or output["sqnr_db"] > 24 for output in report["outputs"])


@pytest.mark.parametrize("name", [*NETS, *MODELS])
def test_the_passes_keep_the_meaning_and_change_nothing_more_the_second_time(name: str) -> None:
    model = NETS[name].model() if name in NETS else MODELS[name]()
    graph = run_passes(import_model(model), FLOAT_PASSES)
    for each in EASYNPU.passes(Options()):
        after = each(graph)
        if after is not graph:
            assert_same_meaning(graph, after)
        assert each(after).nodes == after.nodes, each.__name__
        graph = after


@pytest.mark.parametrize("isa", ["extended", "documented"])
@pytest.mark.parametrize(("channels", "m", "size"), [(16, 2, 20), (32, 3, 9)])
def test_several_results_per_channel_of_an_output_take_no_more_than_theirs(
    channels: int, m: int, size: int, isa: str, tmp_path: Path
) -> None:
    """m words, or as many as 16 channels need, of 9 taps; the host only gives the result another shape."""
    text = f"y = Conv <group = {channels}, pads = [1, 1, 1, 1]> (x, w, b)"
    shapes = {"w": (m * channels, 1, 3, 3), "b": (m * channels,)}
    net = Net((1, channels, size, size), (1, m * channels, size, size), text, shapes)
    onnx.save(net.model(), tmp_path / "m.onnx")
    asked = Options(level="0", strict=True, flags={"isa": isa})
    loaded, report = verified(Request(tmp_path / "m.onnx", EASYNPU, asked), tmp_path)
    assert report["bit_exact"] is True
    products = m * channels // 16 * 9 * size * size
    assert products <= loaded.manifest["report"]["cycles"] <= 1.05 * products


@pytest.mark.parametrize("seed", range(20))
def test_the_passes_keep_the_meaning_of_random_networks(seed: int) -> None:
    before, net = drawn(seed)
    graph = run_passes(before, FLOAT_PASSES)
    found = run_passes(graph, EASYNPU.passes(Options()))
    assert_same_meaning(graph, found, run(graph, net.feeds()[0], list(graph.tensors)))


@pytest.mark.parametrize(("size", "kernel", "attrs"), [
    (64, 16, {"strides": [16, 16]}), (40, 3, {"dilations": [18, 18], "pads": [18, 18, 18, 18]}),
    (40, 3, {"dilations": [17, 3], "pads": [17, 3, 17, 3]}), (20, 20, {"strides": [20, 20]}),
], ids=["stride 16", "dilation 18", "dilation 17 of rows", "one window"])  # fmt: skip
def test_steps_beyond_the_fields_of_a_word_are_bit_exact(
    size: int, kernel: int, attrs: dict[str, Any], tmp_path: Path
) -> None:
    random = np.random.default_rng(0)
    w = (random.standard_normal((8, 3, kernel, kernel)) / kernel).astype(np.float32)
    onnx.save(network([node("Conv", "x w", "y", **attrs)], (1, 3, size, size), {"w": w}), tmp_path / "m.onnx")
    _, report = verified(
        Request(tmp_path / "m.onnx", EASYNPU, Options(machine="large")), tmp_path, (3, 5), Tolerance()
    )
    assert (report["bit_exact"], report["status"]) == (True, "ok")
