"""What many tests share: the folder of trained models, and onnxruntime as the reference."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from npuc.ir import Array

Reference = Callable[[onnx.ModelProto, Mapping[str, Array]], dict[str, Array]]


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder beside the project with trained models and tasks."""
    folder = Path(__file__).resolve().parents[2] / "shared"
    if not folder.is_dir():
        pytest.skip("no folder `shared` with trained models beside the project")
    return folder


@pytest.fixture(scope="session")
def onnxruntime_values() -> Reference:
    """The outputs of a model under onnxruntime, by name, without its graph optimisations."""

    def values(model: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
        options = ort.SessionOptions()
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.log_severity_level = 4
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        names: Sequence[str] = [each.name for each in session.get_outputs()]
        found = session.run(list(names), dict(feeds))
        return {name: np.asarray(value) for name, value in zip(names, found, strict=True)}

    return values
