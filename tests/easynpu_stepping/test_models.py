"""Whole networks: every layer of the stepping simulator against the fast one, every count against the report."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from npuc import program as programs
from npuc import running
from npuc.ir import Array
from npuc.models import MODELS
from npuc.program import Program
from npuc.samples import loading as data
from npuc.target import Options, Request, target
from npuc.targets.easynpu.simulate.events import LayerCount
from npuc.targets.easynpu.simulate.running import SteppingRunner
from tests.compiled import compilation

EASYNPU = target("easynpu")
SMALL = ("digits", "lenet", "resnet8", "ds_cnn", "autoencoder", "residual_awkward")


@cache
def _compiled(name: str, folder: Path, machine: str, isa: str) -> Program:
    model = folder / f"{name}.onnx"
    onnx.save(MODELS[name](), model)
    compiled = compilation(Request(model, EASYNPU, Options(machine=machine, flags={"isa": isa}))).program
    directory = folder / f"{name}-{machine}-{isa}.npu"
    programs.save(compiled, directory)
    return programs.load(directory)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


def _stepped(program: Program, samples: int) -> tuple[SteppingRunner, dict[str, Array], dict[str, Array]]:
    """The stepping runner after a run, its outputs, and its int8 tensors."""
    runner = SteppingRunner(program)
    seen: dict[str, Array] = {}
    outputs = runner(data.synthetic(running.program_inputs(program), samples, seed=5).inputs, seen.__setitem__)
    return runner, outputs, seen


@pytest.mark.parametrize("name", SMALL)
def test_every_layer_is_that_of_the_fast_simulator(name: str, folder: Path) -> None:
    program = _compiled(name, folder, "large", "extended")
    samples = data.synthetic(running.program_inputs(program), 2, seed=5)
    fast: dict[str, Array] = {}
    expected = EASYNPU.runner(program)(samples.inputs, fast.__setitem__)
    _, outputs, seen = _stepped(program, 2)
    assert seen.keys() == fast.keys()
    for tensor, values in fast.items():
        np.testing.assert_array_equal(seen[tensor], values, err_msg=tensor)
    for output, values in expected.items():
        np.testing.assert_array_equal(outputs[output], values)


@pytest.mark.parametrize("name", SMALL)
def test_every_layer_takes_the_cycles_and_bus_words_that_the_compiler_reports(name: str, folder: Path) -> None:
    program = _compiled(name, folder, "large", "extended")
    runner, _, _ = _stepped(program, 1)
    report = program.manifest["report"]
    for row, counts in zip(report["layers"], _by_layer(report["layers"], runner.layers), strict=True):
        for key in ("cycles", "compute_cycles", "bus_words"):
            assert row[key] == sum(getattr(count, key) for count in counts), (row["name"], key)
    assert runner.report()["cycles"] == report["cycles"]


def _by_layer(rows: list[dict[str, Any]], counts: list[LayerCount]) -> list[list[LayerCount]]:
    """The counts of the chains that follow each row's first instruction, up to the next row's."""
    starts = [row["instruction"] for row in rows]
    found: list[list[LayerCount]] = [[] for _ in rows]
    for count in counts:
        found[max(at for at, start in enumerate(starts) if start <= count.instruction)].append(count)
    return found


@pytest.mark.parametrize("machine", ["document", "author"])
@pytest.mark.parametrize("name", ["digits", "ds_cnn", "resnet8"])
def test_with_one_set_of_pads_results_stay_and_cycles_are_the_reported_ones(
    name: str, machine: str, folder: Path
) -> None:
    program = _compiled(name, folder, machine, "extended")
    samples = data.synthetic(running.program_inputs(program), 1, seed=5)
    runner, outputs, _ = _stepped(program, 1)
    for output, values in EASYNPU.runner(program)(samples.inputs).items():
        np.testing.assert_array_equal(outputs[output], values)
    assert runner.report()["cycles"] == program.manifest["report"]["cycles"]


def test_documented_words_step_as_well_and_need_no_addresses(folder: Path) -> None:
    program = _compiled("digits", folder, "default", "documented")
    runner, outputs, _ = _stepped(program, 1)
    samples = data.synthetic(running.program_inputs(program), 1, seed=5)
    for name, values in EASYNPU.runner(program)(samples.inputs).items():
        np.testing.assert_array_equal(outputs[name], values)
    assert runner.report()["cycles"] == program.manifest["report"]["cycles"]


def test_the_pads_of_the_default_machine_suffice_for_resnet_8(folder: Path) -> None:
    """Most entries over all layers: at most what the document gives the pads."""
    runner, _, _ = _stepped(_compiled("resnet8", folder, "large", "extended"), 1)
    limits = {"ifmap_pad_entries": 64, "weight_pad_entries": 16, "psum_entries": 64, "parameter_pad_entries": 64}
    for name, limit in limits.items():
        assert 0 < max(getattr(count, name) for count in runner.layers) <= limit


def test_a_report_names_the_nodes_of_every_layer(folder: Path) -> None:
    runner, _, _ = _stepped(_compiled("digits", folder, "large", "extended"), 1)
    layers = runner.report()["layers"]
    assert layers[0]["nodes"] == ["n0_Conv", "n1_Relu"]
    assert all(row["nodes"] for row in layers)
    assert layers[0]["bus_words"] == sum(layers[0][f"{kind}_words"] for kind in ("ifmap", "padding", "ofmap"))
