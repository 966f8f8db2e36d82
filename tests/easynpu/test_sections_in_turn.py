"""Maps of many channels, loaded section by section with their weights while psums stay in the pads."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from npuc import program
from npuc.target import Options, Request, target
from npuc.targets.easynpu.export.assembling import expect_legal
from tests.compiled import verified
from tests.easynpu_rewrites.nets import Net

MACHINE = "fmap_words = {0}\nskip_words = {0}\nweight_words = {1}\n"


def proved(net: Net, folder: Path, maps: int, weights: int) -> program.Program:
    onnx.save(net.model(), folder / "m.onnx")
    (folder / "small.toml").write_text(MACHINE.format(maps, weights), encoding="ascii")
    asked = Options(level="0", machine=str(folder / "small.toml"), strict=True)
    found, report = verified(Request(folder / "m.onnx", target("easynpu"), asked), folder)
    assert report["bit_exact"] is True
    expect_legal(found)
    return found


def moved(found: program.Program) -> tuple[int, int]:
    """Words of maps, and of weights of the first inference."""
    traffic = found.manifest["report"]["host_traffic"]
    stays = sum(each["words"] for each in found.manifest["init"] if each["memory"] == "weight")
    return traffic["map_bytes"] // 16, traffic["weight_bytes"] // 16 + stays


@pytest.mark.parametrize("maps", [40, 44, 90])
def test_inputs_beyond_both_memories_are_loaded_once_with_their_weights(maps: int, tmp_path: Path) -> None:
    """1,392 inputs are 87 words; 16 outputs take 1,392 words of weights in parts of at most 400."""
    net = Net((1, 1392, 1, 1), (1, 16, 1, 1), "y = Conv (x, w)", {"w": (16, 1392, 1, 1)})
    maps_moved, weights = moved(proved(net, tmp_path, maps, 400))
    assert maps_moved == 87 + 1
    assert 1392 + 4 * 5 <= weights <= 1392 + 6 * 5


@pytest.mark.parametrize("maps", [150, 400])
def test_every_tile_of_a_window_over_many_channels_agrees(maps: int, tmp_path: Path) -> None:
    """304 channels of 6 x 7 pixels are 798 words, 40 outputs with a ReLU and a residual behind them."""
    text = "a = Conv <pads = [1, 1, 1, 1]> (x, w) b = Relu (a) c = Conv (b, v) d = Add (c, b) y = Relu (d)"
    net = Net((1, 304, 6, 7), (1, 40, 6, 7), text, {"w": (40, 304, 3, 3), "v": (40, 40, 1, 1)})
    found = proved(net, tmp_path, maps, 400)
    assert found.manifest["report"]["segments"] > 20
