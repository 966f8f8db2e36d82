"""Maps that stay in the DTCMs between the ranges of layers that compute and read them."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from npuc import compile as compile_model
from npuc.onnx_files.export import to_onnx
from npuc.target import Options, Request, target
from npuc.targets.easynpu.export.assembling import expect_legal
from npuc.targets.easynpu.program import lowering
from tests.compiled import verified
from tests.easynpu.networks import Network
from tests.easynpu_rewrites.nets import Net

GATED = "a = Conv (x, w) p = GlobalAveragePool (a) g = Conv (p, v) y = Mul (a, g)"
PIXELS, GROUPS = 6 * 8, 6


def moved(folder: Path, fmap: int, skip: int, objective: str = "traffic") -> int:
    """Words of maps that the proved program of a gated map of 6 groups of channels moves."""
    net = Net((1, 16, 6, 8), (1, 96, 6, 8), GATED, {"w": (96, 16, 1, 1), "v": (96, 96, 1, 1)})
    onnx.save(net.model(), folder / "m.onnx")
    (folder / "m.toml").write_text(f"fmap_words = {fmap}\nskip_words = {skip}\n", encoding="ascii")
    asked = Options(level="0", machine=str(folder / "m.toml"), strict=True, flags={"objective": objective})
    found, report = verified(Request(folder / "m.onnx", target("easynpu"), asked), folder)
    assert report["bit_exact"] is True
    expect_legal(found)
    return found.manifest["report"]["host_traffic"]["map_bytes"] // 16


@pytest.mark.parametrize("memories", [(400, 400), (160, 300), (300, 160), (200, 200), (60, 300)])
def test_a_map_that_has_room_beside_its_readers_is_neither_stored_nor_loaded(
    memories: tuple[int, int], tmp_path: Path
) -> None:
    """288 words, in one DTCM or in parts in both, beside x and, of the products, 16 channels or a few pixels."""
    assert moved(tmp_path, *memories) == PIXELS * (1 + GROUPS)


@pytest.mark.parametrize("fmap", [53, 54, 55, 121, 149])
@pytest.mark.parametrize("skip", [47, 48, 49, 144])
def test_whatever_stays_of_a_map_is_exact(fmap: int, skip: int, tmp_path: Path) -> None:
    """At most the map is stored once and loaded once, x is loaded for every 16 channels, and the gates move."""
    most = PIXELS * (GROUPS + 3 * GROUPS) + 8 * GROUPS
    assert PIXELS * (1 + GROUPS) <= moved(tmp_path, fmap, skip, "time") <= most


def test_maps_stay_only_where_the_program_costs_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """More tiles need more instruction words, which plans do not count: 44,248 cycles with maps that stay."""
    (tmp_path / "m.toml").write_text("fmap_words = 64\nskip_words = 300\nweight_words = 600\nitcm_words = 24\n")
    asked, model = Options(level="0", machine=str(tmp_path / "m.toml")), to_onnx(Network(24).graph())
    chosen = compile_model(model, "easynpu", calibration="synthetic", options=asked).report
    monkeypatch.setattr(lowering, "with_staying_maps", lambda _graph, strips, *_: tuple(strips))
    assert chosen == compile_model(model, "easynpu", calibration="synthetic", options=asked).report
