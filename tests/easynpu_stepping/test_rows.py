"""A network on a machine with four rows of PEs: the same results, in the cycles that the compiler reports."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx

from npuc import program as programs
from npuc import running
from npuc.models import MODELS
from npuc.samples import loading as data
from npuc.target import Options, Request, target
from npuc.targets.easynpu.simulate.running import SteppingRunner
from tests.compiled import compilation


def test_resnet_8_on_four_rows(tmp_path: Path) -> None:
    """Ideal: 12.5 million MACs on 64 PEs."""
    onnx.save(MODELS["resnet8"](), tmp_path / "resnet8.onnx")
    sizes = "fmap_words = 32768\nskip_words = 32768\nweight_words = 65536\nitcm_words = 1024\npe_rows = 4\n"
    (tmp_path / "rows.toml").write_text(sizes, encoding="utf-8")
    options = Options(machine=str(tmp_path / "rows.toml"))
    compiled = compilation(Request(tmp_path / "resnet8.onnx", target("easynpu"), options)).program
    programs.save(compiled, tmp_path / "resnet8.npu")
    program = programs.load(tmp_path / "resnet8.npu")
    samples = data.synthetic(running.program_inputs(program), 1)
    stepper = SteppingRunner(program)
    found = stepper(samples.inputs)
    for name, values in target("easynpu").runner(program)(samples.inputs).items():
        np.testing.assert_array_equal(found[name], values)
    report = program.manifest["report"]
    assert stepper.report()["cycles"] == report["cycles"]
    assert report["ideal_cycles"] == report["macs"] / 64
    assert report["utilization"] > 0.9
