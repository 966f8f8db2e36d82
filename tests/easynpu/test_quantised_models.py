"""Quantised models keep their scales and zero points: simulator, integer network and onnxruntime."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from npuc import driver, program
from npuc.target import Options, target
from npuc.verification import Tolerance, verify

EASYNPU = target("easynpu")
TRAINED = {
    "tiny_resnet8_int8qdq": ("input_1_int8", (1, 32, 32, 3)),
    "tiny_kws_int8qdq": ("input_1", (1, 49, 10, 1)),
    "tiny_vww_int8qdq": ("input_1_int8", (1, 96, 96, 3)),
    "tiny_sww_int8": ("serving_default_input_1:0", (1, 30, 1, 40)),
}


def _verified(
    model: Path, folder: Path, shapes: dict[str, tuple[int, ...]], **options: Any
) -> tuple[program.Program, dict[str, Any]]:
    compiled, made_up = driver.compile_model(model, EASYNPU, Options(**options), shapes)
    directory = folder / "program"
    program.save(compiled, directory)
    loaded = program.load(directory)
    return loaded, verify(model, directory, loaded, EASYNPU, made_up, Tolerance(0, 0))


@pytest.mark.parametrize("name", TRAINED)
def test_a_trained_quantised_model_is_bit_exact_and_close_to_onnxruntime(
    name: str, shared: Path, tmp_path: Path
) -> None:
    x, shape = TRAINED[name]
    loaded, report = _verified(shared / "models" / f"{name}.onnx", tmp_path, {x: shape})
    assert report["bit_exact"]
    assert [port.dtype for port in (*loaded.inputs, *loaded.outputs)] == ["int8", "int8"]
    single = [
        each["single"]["sqnr_db"] for each in report["layers"] if each["single"] and each["single"]["sqnr_db"]
    ]
    assert len(single) > 8
    assert min(single) > 15
