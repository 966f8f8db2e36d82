"""What the host computes between segments is real numbers: their last bits differ between libraries."""

from __future__ import annotations

from pathlib import Path
from unittest.mock import patch

import numpy as np
import onnx
import pytest

from npuc import driver, program
from npuc.host import HostStep
from npuc.ir import Array
from npuc.storage import data
from npuc.target import Options, target
from npuc.verification.checking import verify
from npuc.verification.metrics import Tolerance
from tests.nvdla.networks import network, node, weights

NODES = [node("Conv", "x w", "a"), node("Softsign", "a", "b"), node("Conv", "b v", "y")]


def verified_with(folder: Path, error: float) -> bool:
    """bit_exact of a network whose host step is off by so much, in steps of its result."""
    path, small = folder / "m.onnx", target("nvdla-small")
    onnx.save(network(NODES, (1, 3, 20, 20), {"w": weights(20, 3, 1, 1), "v": weights(4, 20, 1, 1)}), path)
    program.save(driver.compile_model(path, small, Options(), {})[0], folder / "out")
    loaded = program.load(folder / "out")
    given = data.synthetic(driver.program_inputs(loaded), 1, seed=1)
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
