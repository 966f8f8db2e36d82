"""--precision mixed: a few layers in float on the host."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from npuc import driver, program, running
from npuc.program import Program
from npuc.reference import session
from npuc.samples import loading as data
from npuc.target import Options, Request, target
from npuc.verification.checking import Tolerance, verify
from tests.compiled import compilation

EASYNPU = target("easynpu")


@pytest.fixture(scope="module")
def model(shared: Path) -> Path:
    return shared / "models" / "tiny_resnet8_fp32.onnx"


@pytest.fixture(scope="module")
def task(shared: Path) -> Path:
    return shared / "tasks" / "cifar20_resnet8"


@pytest.fixture(scope="module")
def mixed(model: Path, task: Path) -> Program:
    return compilation(Request(model, EASYNPU, Options(level="0", mixed=True), [task / "calibration.npz"])).program


def test_resnet8_gains_with_layers_on_the_host_and_stays_bit_exact(
    model: Path, task: Path, mixed: Program, tmp_path: Path
) -> None:
    array = compilation(Request(model, EASYNPU, Options(level="0"), [task / "calibration.npz"])).program
    samples = data.load([task / "test.npz"], running.program_inputs(array)).first(10)
    for on_host, compiled in ((False, array), (True, mixed)):
        directory = tmp_path / str(on_host)
        program.save(compiled, directory)
        report = verify(model, directory, program.load(directory), EASYNPU, samples, Tolerance(0, 0))
        assert report["bit_exact"]
        assert any(each.get("op") == "Conv" for each in compiled.manifest["steps"]) == on_host
    *_, step = mixed.manifest["report"]["quantization"]["steps"]
    assert step["kept"] and step["after_db"] > step["before_db"] + 0.5


def test_a_quantised_network_with_layers_on_the_host_opens_elsewhere(
    model: Path, task: Path, mixed: Program
) -> None:
    made, _ = driver.quantise_model(
        Request(model, EASYNPU, Options(level="0", mixed=True), [task / "calibration.npz"])
    )
    runs = [session(each) for each in (made, mixed.evidence["reference.onnx"])]
    with np.load(task / "test.npz") as archive:
        images = archive["x"][:8, None].astype(np.float32)
    theirs, ours = (
        np.stack([run.run(None, {run.get_inputs()[0].name: each})[0].ravel() for each in images]) for run in runs
    )
    assert (theirs.argmax(axis=1) == ours.argmax(axis=1)).all()
    assert np.square(theirs).sum() > 1e3 * np.square(theirs - ours).sum()  # 30 dB
    kernels = [each for each in onnx.load_from_string(made).graph.initializer if len(each.dims) == 4]
    assert {each.data_type for each in kernels} == {onnx.TensorProto.FLOAT, onnx.TensorProto.INT8}
