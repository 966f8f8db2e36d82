"""Tiles of a convolution that lie wholly in the padding, before the map or behind it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from npuc.api import compile, verify
from tests.onnx_models import network, node


@pytest.mark.parametrize("kernel", [(3, 1), (1, 1)])
@pytest.mark.parametrize("pads", [(5, 5, 5, 5), (5, 0, 5, 0), (0, 0, 4, 9)])
@pytest.mark.parametrize("strides", [(1, 1), (2, 3)])
def test_they_hold_the_bias(
    kernel: tuple[int, int], pads: tuple[int, ...], strides: tuple[int, int], tmp_path: Path
) -> None:
    """Every layer is as onnxruntime computes it; a window that sees only padding gives the bias."""
    random = np.random.default_rng(0)
    w, bias = random.standard_normal((8, 16, *kernel)), random.standard_normal(8)
    conv = node("Conv", "x w b", "y", pads=pads, strides=strides)
    model = network([conv], (1, 16, 7, 11), {"w": w, "b": bias})
    machine = tmp_path / "small.toml"
    machine.write_text("fmap_words = 96\nskip_words = 16\n")
    x = 1 + random.standard_normal((5, 16, 7, 11)).astype(np.float32)
    program = compile(model, "easynpu", machine=machine, calibration={"x": x})
    assert verify(model, program, {"x": x})["bit_exact"]
    (y,) = program.run({"x": x}).values()
    assert np.abs(y[:, :, -1, -1] - bias).max() <= np.abs(y).max() / 127  # a step


@pytest.mark.parametrize("isa", ["extended", "documented"])
@pytest.mark.parametrize(("channels", "kernel", "padding"), [(4, 5, 18), (4, 3, 40), (20, 5, 31)])
def test_padding_behind_that_no_field_states_is_tiled(channels: int, kernel: int, padding: int, isa: str) -> None:
    """A tile of n rows behind the map would take n - 1 + kernel rows of padding before it, of 15."""
    random = np.random.default_rng(0)
    w = random.standard_normal((channels, channels, kernel, kernel)).astype(np.float32)
    model = network([node("Conv", "x w", "y", pads=[padding] * 4)], (1, channels, 9, 9), {"w": w})
    data = {"x": 1 + random.standard_normal((3, 1, channels, 9, 9)).astype(np.float32)}
    program = compile(model, "easynpu", calibration=data, isa=isa, strict=True)
    assert verify(model, program, data)["bit_exact"]
