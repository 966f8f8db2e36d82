"""--mixed auto on NVDLA: a few layers in float on the host."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuc import program, running
from npuc.errors import ArtefactError
from npuc.program import Program
from npuc.samples import loading as data
from npuc.target import Options, Request, target
from npuc.verification.checking import Tolerance, verify
from tests.compiled import compilation

SMALL = target("nvdla-small")


@pytest.fixture(scope="module")
def model(shared: Path) -> Path:
    return shared / "models" / "mnist_cnn.onnx"


@pytest.fixture(scope="module")
def task(shared: Path) -> Path:
    return shared / "tasks" / "mnist_cnn"


@pytest.fixture(scope="module")
def mixed(model: Path, task: Path) -> Program:
    return compilation(Request(model, SMALL, Options(level="0", mixed=True), [task / "calibration.npz"])).program


def _on_host(compiled: Program) -> list[dict[str, str]]:
    return [each for each in compiled.manifest["report"]["host_steps"] if each["op"] == "Conv"]


def test_a_network_gains_with_layers_on_the_host_and_stays_bit_exact(
    model: Path, task: Path, mixed: Program, tmp_path: Path
) -> None:
    array = compilation(Request(model, SMALL, Options(level="0"), [task / "calibration.npz"])).program
    samples = data.load([task / "test.npz"], running.program_inputs(array)).first(10)
    found: dict[bool, float] = {}
    for on_host, compiled in ((False, array), (True, mixed)):
        directory = tmp_path / str(on_host)
        program.save(compiled, directory)
        report = verify(model, directory, program.load(directory), SMALL, samples, Tolerance(0, 0))
        assert report["bit_exact"]
        assert bool(_on_host(compiled)) == on_host
        found[on_host] = report["outputs"][0]["sqnr_db"]
    assert found[True] > found[False] + 3


def test_the_report_names_the_layers_their_share_and_the_gain(mixed: Program) -> None:
    step = mixed.manifest["report"]["quantisation"]["steps"][-1]
    layers = _on_host(mixed)
    assert {each["reason"] for each in layers} == {"int8 would cost accuracy here (--mixed auto)"}
    assert all(f"'{each['node']}'" in step["name"] for each in layers)
    assert step["name"].endswith("% of the MACs")
    assert float(step["name"].rsplit(", ", 1)[1].split()[0]) <= 10
    assert step["after_db"] > step["before_db"] + 0.5


def test_the_stock_runtime_has_no_such_layers(mixed: Program, tmp_path: Path) -> None:
    program.save(mixed, tmp_path / "p")
    with pytest.raises(ArtefactError, match="Conv") as caught:
        SMALL.exported(program.load(tmp_path / "p"), "loadable")
    assert caught.value.problems[0].code == "E506"


def test_a_quantised_model_keeps_its_layers_on_the_machine(shared: Path, task: Path) -> None:
    model, shapes = shared / "models" / "tiny_sww_int8.onnx", {"serving_default_input_1:0": (1, 30, 1, 40)}
    made = compilation(Request(model, SMALL, Options(mixed=True), shapes=shapes)).program
    assert not _on_host(made)
