"""Functions of one element in fp16: EW's tables against the functions themselves, for every fp16 input."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from npuc.ir import Array
from npuc.target import target
from npuc.targets.nvdla.quantisation.tables import INTERPOLATED
from tests.nvdla.networks import compiled
from tests.onnx_models import network, node


def every_half() -> Array:
    """All finite fp16 numbers as (1, 16, 62, 64) float32."""
    numbers = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    finite = numbers[np.isfinite(numbers)]
    return finite.astype(np.float32).reshape(1, 16, 62, 64)


def erf(x: Array) -> Array:
    return np.vectorize(math.erf)(x)


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


FUNCTIONS: dict[str, tuple[Callable[[Array], Array], float]] = {
    "Sigmoid": (sigmoid, 8e-4),
    "Tanh": (np.tanh, 8e-4),
    "Erf": (erf, 8e-4),
    "Elu": (lambda x: np.where(x > 0, x, np.expm1(x)), 1.2e-3),
    "HardSwish": (lambda x: x * np.clip(x / 6 + 0.5, 0, 1), 1.2e-3),
    "Softplus": (lambda x: np.logaddexp(0, x), 1.2e-3),
    "Mish": (lambda x: x * np.tanh(np.logaddexp(0, x)), 1.2e-3),
    "Gelu": (lambda x: x * (1 + erf(x / np.sqrt(2))) / 2, 1.2e-3),
    "Swish": (lambda x: x * sigmoid(x), 1.2e-3),
}
SPELLED = {"Swish": [node("Sigmoid", "x", "s"), node("Mul", "x s", "y")]}
"""Functions that ONNX 20 has no operator for, and passes recognise."""


@pytest.mark.parametrize("op", FUNCTIONS)
def test_a_table_is_within_its_error_for_every_input(op: str, tmp_path: Path) -> None:
    """The error that docs/nvdla.md states: absolute up to 1, relative beyond."""
    function, most = FUNCTIONS[op]
    x = every_half()
    model = network(SPELLED.get(op, [node(op, "x", "y")]), x.shape)
    model.opset_import[0].version = 20
    _, _, loaded = compiled(model, tmp_path, "nvdla-full", precision="fp16")
    assert [layer["op"] for layer in loaded.manifest["report"]["layers"]] == ["elementwise"]
    found = next(iter(target("nvdla-full").runner(loaded)({"x": x[None]}).values()))[0]
    with np.errstate(over="ignore"):
        wanted = function(x.astype(np.float64))
    error = np.abs(found - wanted) / np.maximum(np.abs(wanted), 1)
    assert error.max() < most


def test_every_function_that_interpolates_is_measured_here() -> None:
    assert set(INTERPOLATED) == set(FUNCTIONS)


@pytest.mark.parametrize("op", ["Exp", "Sqrt", "Softsign"])
def test_what_interpolation_gives_too_coarsely_runs_on_the_host(op: str, tmp_path: Path) -> None:
    nodes = [node("Relu", "x", "a"), node(op, "a", "y")]
    _, _, loaded = compiled(network(nodes, (1, 3, 4, 4)), tmp_path, "nvdla-full", precision="fp16")
    assert [step["op"] for step in loaded.manifest["report"]["host_steps"]] == [op]
