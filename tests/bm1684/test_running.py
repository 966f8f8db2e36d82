"""Runs of programs on npuc's chip model: weights that are mapped, and layers that are observed."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from npuc.ir import Array
from npuc.program import Program, load, save
from npuc.target import Options, Request
from npuc.targets.bm1684.simulate import simulator
from npuc.targets.bm1684.simulate.running import Runner
from npuc.targets.bm1684.simulate.simulator import MappedPiece
from npuc.targets.bm1684.target import BM1684
from tests.bm1684.kernels import need_compiler
from tests.compiled import compilation
from tests.onnx_models import network, node

ROWS, COLUMNS = 700, 5000
X = np.random.default_rng(3).normal(0.2, 1, (2, 1, COLUMNS)).astype(np.float32)


@pytest.fixture(name="model", scope="module")
def _model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two layers, the first with 14 MB of weights."""
    random = np.random.default_rng(5)
    held = {
        "w": random.normal(0.01, 0.02, (ROWS, COLUMNS)),
        "b": random.normal(0, 1, ROWS),
        "v": random.normal(0, 0.1, (10, ROWS)),
    }
    sums = [node("Gemm", inputs, output, transB=1) for inputs, output in (("x w b", "sum"), ("hidden v", "y"))]
    path = tmp_path_factory.mktemp("heavy") / "heavy.onnx"
    onnx.save(network([sums[0], node("Relu", "sum", "hidden"), sums[1]], (1, COLUMNS), held), path)
    return path


@pytest.fixture(name="program", scope="module")
def _program(model: Path) -> Program:
    need_compiler()
    return compilation(Request(model, BM1684, Options(precision="fp32"))).program


@pytest.fixture(name="made")
def _made(monkeypatch: pytest.MonkeyPatch) -> list[tuple[MappedPiece, ...]]:
    """The parts of every run of the chip model from here on."""
    runs: list[tuple[MappedPiece, ...]] = []
    carry_out = simulator.carry_out

    def watched(*arguments: Any) -> Any:
        runs.append(tuple(arguments[-1]))
        return carry_out(*arguments)

    monkeypatch.setattr(simulator, "carry_out", watched)
    return runs


def _expected(model: Path) -> Array:
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"x": each})[0] for each in X])


@pytest.mark.parametrize("loaded", [False, True])
def test_heavy_weights_are_mapped_and_give_onnxruntimes_values(
    loaded: bool, model: Path, program: Program, made: list[tuple[MappedPiece, ...]], tmp_path: Path
) -> None:
    if loaded:
        save(program, tmp_path / "heavy.npu")
        program = load(tmp_path / "heavy.npu")
    found = Runner(program, "own")({"x": X})["y"][:, 0]
    np.testing.assert_allclose(found, _expected(model), rtol=1e-4, atol=1e-4)
    mapped = [sum(part.bytes for part in parts) for parts in made]
    assert len(mapped) == len(X) and min(mapped) > 0.99 * 4 * ROWS * COLUMNS


def test_an_observed_sample_runs_once_and_has_the_same_outputs(
    program: Program, made: list[tuple[MappedPiece, ...]]
) -> None:
    runner, shown = Runner(program, "own"), dict[str, Array]()
    outputs = runner({"x": X}, shown.__setitem__)
    assert len(made) == len(X)
    alone = Runner(program, "own")
    np.testing.assert_array_equal(outputs["y"], alone({"x": X})["y"])
    np.testing.assert_array_equal(np.maximum(shown["hidden"], 0), shown["hidden"])


def test_layers_are_observed_in_the_order_of_the_program(tmp_path: Path) -> None:
    need_compiler()
    names = ["x", *(f"{letter}0" for letter in "gcafdbe"), "y"]
    path, seen = tmp_path / "chain.onnx", list[str]()
    onnx.save(network([node("Sigmoid", x, y) for x, y in pairwise(names)], (1, 8)), path)
    program = compilation(Request(path, BM1684, Options(precision="fp32"))).program
    Runner(program, "own")({"x": np.zeros((1, 1, 8), np.float32)}, lambda name, _values: seen.append(name))
    assert seen == names[1:-1]


def test_the_cycles_of_an_observed_sample_are_those_without_its_stores(program: Program) -> None:
    observed, alone = Runner(program, "own"), Runner(program, "own")
    assert observed.cycles is None
    observed({"x": X}, lambda _name, _values: None)
    alone({"x": X})
    assert observed.cycles == alone.cycles == program.manifest["report"]["cycles"]
