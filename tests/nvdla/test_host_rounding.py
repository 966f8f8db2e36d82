"""What the host computes between segments is real numbers: their last bits differ between libraries."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import pytest

from npuc import program, running
from npuc.host.step import HostStep
from npuc.ir import Array
from npuc.samples import loading as data
from npuc.target import Options, Request, target
from npuc.verification.checking import verify
from npuc.verification.metrics import Tolerance
from tests.compiled import compilation
from tests.graphs.compiling import Case, verified
from tests.onnx_models import network, node, weights
from tests.passes import networks

NODES = [node("Conv", "x w", "a"), node("Softsign", "a", "b"), node("Conv", "b v", "y")]


def verified_with(folder: Path, error: float) -> bool:
    """bit_exact of a network whose host step is off by so much, in steps of its result."""
    path, small = folder / "m.onnx", target("nvdla-small")
    onnx.save(network(NODES, (1, 3, 20, 20), {"w": weights(20, 3, 1, 1), "v": weights(4, 20, 1, 1)}), path)
    program.save(compilation(Request(path, small, Options())).program, folder / "out")
    loaded = program.load(folder / "out")
    given = data.synthetic(running.program_inputs(loaded), 1, seed=1)
    run = HostStep.run

    def off(step: HostStep, tensors: dict[str, Array]) -> None:
        run(step, tensors)
        if step.op == "Softsign":
            tensors[step.outputs[0]] += np.float32(error / 127)

    with patch.object(HostStep, "run", off):
        report = verify(path, folder / "out", loaded, small, given, Tolerance())
    return report["bit_exact"]


@pytest.mark.parametrize(("error", "exact"), [(0.0, True), (0.002, True), (0.3, False), (2.0, False)])
def test_ties_are_rounding_and_more_is_a_mistake(error: float, exact: bool, tmp_path: Path) -> None:
    assert verified_with(tmp_path, error) is exact


def test_what_the_host_interpolates_is_rounded_as_onnxruntime_rounds_it(tmp_path: Path) -> None:
    """A ratio that NVDLA does not resize by, before a rounding: a last bit of a float is a step of an integer."""
    steps = {"scale": 0.05, "zero_point": 7, "dtype": "int8"}
    sizes: dict[str, Any] = {"sizes": (1, 16, 29, 31), "scales": (1.0, 1.0, 1.45, 1.55), "mode": "linear"}
    nodes = (
        networks.node("Conv", "x w", "a", pads=(1, 1, 1, 1)),
        networks.node("FakeQuantize", "a", "b", **steps),
        networks.node("Resize", "b", "c", coordinate_transformation_mode="align_corners", **sizes),
        networks.node("FakeQuantize", "c", "y", **steps),
    )
    graph = networks.network((1, 3, 20, 20), "y", *nodes, w=weights(16, 3, 3, 3))
    assert verified(graph, Case("nvdla-small", "int8", proof="one"), tmp_path)["bit_exact"]
