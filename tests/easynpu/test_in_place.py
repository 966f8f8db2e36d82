"""Results in the place of maps that they are the last to read, and maps inside their copies with padding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from npuc.target import Options, Request, target
from npuc.targets.easynpu.export.assembling import expect_legal
from tests.compiled import verified
from tests.easynpu_rewrites.nets import Net

SHAPE = (1, 16, 8, 8)
"""64 words a map."""
PADS = "pads = [1, 1, 1, 1]"
RESIDUAL = f"a = Conv <{PADS}> (x, w) b = Relu (a) c = Conv <{PADS}> (b, v) d = Relu (c) e = Conv <{PADS}> (d, w)"


def moved(text: str, folder: Path, words: int, *samples: Path, **asked: Any) -> int:
    """Words of maps that a proved program moves on a machine with two DTCMs of this size."""
    net = Net(SHAPE, SHAPE, text, {"w": (16, 16, 3, 3), "v": (16, 16, 3, 3)})
    onnx.save(net.model(), folder / "m.onnx")
    sizes = f"fmap_words = {words}\nskip_words = {words}\n"
    (folder / "small.toml").write_text(sizes, encoding="ascii")
    options = Options(machine=str(folder / "small.toml"), **asked)
    found, report = verified(Request(folder / "m.onnx", target("easynpu"), options, samples), folder)
    assert report["bit_exact"] is True
    expect_legal(found)
    return int(found.manifest["report"]["host_traffic"]["map_bytes"]) // 16


@pytest.mark.parametrize(("words", "whole"), [(64, True), (63, False)])
def test_a_residual_block_takes_two_maps_and_no_word_more(words: int, whole: bool, tmp_path: Path) -> None:
    text = f"{RESIDUAL} f = Add (e, b) y = Relu (f)"
    assert (moved(text, tmp_path, words, level="0") == 2 * 64) is whole


def test_a_map_that_is_read_again_keeps_its_place(tmp_path: Path) -> None:
    """b is read behind the sum: of 64 + 64 words none is left for it."""
    text = f"{RESIDUAL} f = Add (e, b) g = Relu (f) y = Add (g, b)"
    assert moved(text, tmp_path, 64, level="0") > 2 * 64


def test_a_sum_and_a_function_of_it_lie_where_an_operand_lay(tmp_path: Path) -> None:
    text = f"{RESIDUAL} f = Mul (e, b) y = Sigmoid (f)"
    assert moved(text, tmp_path, 128, level="0") == 2 * 64


@pytest.mark.parametrize("words", [90, 100, 101, 200])
def test_maps_with_zero_points_lie_inside_their_padding(words: int, tmp_path: Path) -> None:
    """Two maps of 10 x 10 words, of which the inner ones are computed; a word of the pixel."""
    text = f"a = Conv <{PADS}> (x, w) b = Relu (a) c = Conv <{PADS}> (b, v) d = Relu (c) y = Conv <{PADS}> (d, w)"
    found = moved(text, tmp_path, words)
    assert found >= 2 * 64
    assert words < 101 or found <= 2 * 64 + 1


@pytest.mark.parametrize(("words", "whole"), [(109, True), (108, False), (125, True)])
def test_a_sum_with_factors_follows_its_convolution_band_by_band(words: int, whole: bool, tmp_path: Path) -> None:
    """Two maps inside their padding take 100 words each, and in one DTCM a row of the third map 8, the pixel 1."""
    x = np.random.default_rng(0).standard_normal((12, *SHAPE)).astype(np.float32)
    np.savez(tmp_path / "x.npz", x=x)
    text = f"{RESIDUAL} f = Add (e, b) g = Relu (f) y = Conv <{PADS}> (g, v)"
    assert (moved(text, tmp_path, words, tmp_path / "x.npz") == 2 * 64 + 1) is whole
