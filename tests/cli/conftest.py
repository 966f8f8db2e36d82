"""Digits, compiled once; copies of it; models written on the spot."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from tests.cli.process import Digits, WriteModel, compiled
from tests.onnx_models import parse

MODELS = Path(__file__).resolve().parents[2] / "models"


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Digits:
    folder = tmp_path_factory.mktemp("digits")
    model, calibration, test = (
        MODELS / name for name in ("digits.onnx", "digits_calibration.npz", "digits_test.npz")
    )
    with np.load(test) as file:
        np.savez(folder / "few.npz", x=file["x"][:4], y=file["y"][:4])
    program = folder / "digits.npu"
    compiled(model, program, "-O0", "--calibration", calibration).done()
    return Digits(model, calibration, test, folder / "few.npz", program)


@pytest.fixture
def copy(digits: Digits, tmp_path: Path) -> Path:
    """A copy of the program, to be damaged."""
    return shutil.copytree(digits.program, tmp_path / "copy.npu")


@pytest.fixture
def write(tmp_path: Path) -> WriteModel:
    """Writes a model; keywords are its constants (float32, drawn from a fixed seed) by shape."""

    def write_model(
        model: str | onnx.ModelProto | bytes, name: str = "m.onnx", opset: int = 17, **constants: tuple[int, ...]
    ) -> Path:
        path = tmp_path / name
        if isinstance(model, str):
            model = parse(model, opset)
        if isinstance(model, onnx.ModelProto):
            random = np.random.default_rng(0)
            for constant, shape in constants.items():
                values = random.standard_normal(shape).astype(np.float32)
                model.graph.initializer.append(numpy_helper.from_array(values, constant))
            model = model.SerializeToString()
        path.write_bytes(model)
        return path

    return write_model
