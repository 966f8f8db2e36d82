"""Dilated convolutions in blocks: every tap reads its own window of a map that no DTCM holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import pytest

from npuc import program
from npuc.target import Options, Request, target
from npuc.targets.easynpu.export.assembling import expect_legal
from tests.compiled import verified
from tests.easynpu_rewrites.nets import Net

EASYNPU = target("easynpu")
SMALL = "fmap_words = {maps}\nskip_words = {maps}\nweight_words = 400\n"


def proved(net: Net, folder: Path, maps: int = 150) -> program.Program:
    """The program for a machine with DTCMs of this many words, bit exact and with all nodes on the array."""
    onnx.save(net.model(), folder / "m.onnx")
    (folder / "small.toml").write_text(SMALL.format(maps=maps), encoding="ascii")
    asked = Options(level="0", machine=str(folder / "small.toml"), strict=True)
    loaded, report = verified(Request(folder / "m.onnx", EASYNPU, asked), folder)
    assert report["bit_exact"] is True
    expect_legal(loaded)
    return loaded


def dilated(d: int, pads: tuple[int, ...] | None = None, kernel: tuple[int, int] = (3, 3), **given: Any) -> Net:
    channels, extents, nodes = given.get("channels", 16), given.get("extents", (21, 23)), given.get("nodes", "")
    pads = (d, d, d, d) if pads is None else pads
    high, wide = (
        extent + pads[at] + pads[at + 2] - (taps - 1) * d
        for at, (extent, taps) in enumerate(zip(extents, kernel, strict=True))
    )
    attrs = f"dilations = [{d}, {d}], pads = [{', '.join(map(str, pads))}]"
    text = nodes or "y = Conv <ATTRS> (x, w)"
    values: dict[str, Any] = {"w": (16, channels, *kernel), "v": (16, 16, 1, 1), "b": (16,)}
    known = {name: shape for name, shape in values.items() if f", {name}" in text}
    return Net((1, channels, *extents), (1, 16, high, wide), text.replace("ATTRS", attrs), known)


@pytest.mark.parametrize(
    "net",
    [
        dilated(9),
        dilated(17),
        dilated(20, channels=32),
        dilated(8, (8, 0, 3, 5)),
        dilated(7, (0, 0, 0, 0)),
        dilated(6, (12, 12, 12, 12), (5, 5)),
        dilated(9, nodes="a = Conv <ATTRS> (x, w, b) y = Relu (a)"),
        dilated(9, nodes="a = Conv <ATTRS> (x, w) y = Sigmoid (a)"),
        dilated(9, nodes="a = Conv <ATTRS> (x, w) y = Add (a, x)"),
        dilated(
            9, nodes="a = Conv (x, v) c = Relu (a) d = Conv <ATTRS> (c, w) e = Conv <ATTRS> (d, w) y = Add (d, e)"
        ),
    ],
    ids=["9", "17", "20", "uneven", "no padding", "5x5", "Relu", "table", "residual", "one behind another"],
)
def test_every_element_is_that_of_the_integer_network(net: Net, tmp_path: Path) -> None:
    found = proved(net, tmp_path)
    layers = [each["name"] for each in found.manifest["report"]["layers"]]
    assert len(set(layers)) == len(layers)
    assert found.manifest["report"]["utilization"] <= 1


def test_each_tap_loads_its_rows_and_columns_and_nothing_between(tmp_path: Path) -> None:
    """20 x 20 pixels at a dilation of 18: two of three taps meet rows 0 and 1, two 18 and 19, one the others.

    So 2 * 2 + 16 + 2 * 2 = 24 rows and as many columns are loaded, and 400 pixels stored; 3 x 3 blocks have
    (2 + 1 + 2)^2 = 25 taps of 16 weights. Bias and scale are the same for all: some stay where others have theirs.
    """
    found = proved(dilated(18, extents=(20, 20)), tmp_path, maps=390)
    traffic = found.manifest["report"]["host_traffic"]
    assert traffic["map_bytes"] == 16 * (24 * 24 + 400)
    assert 5 + 25 * 16 <= (traffic["weight_bytes"] + traffic["initial_bytes"]) // 16 <= 9 * 5 + 25 * 16
    assert traffic["computed_macs"] == 24 * 24 * 16 * 16
    assert found.manifest["report"]["host_steps"] == []


@pytest.mark.parametrize("net", [dilated(3, extents=(12, 10)), dilated(2)], ids=["fits", "narrow"])
def test_taps_stay_together_where_that_costs_no_more(net: Net, tmp_path: Path) -> None:
    """Of a map that the DTCMs hold, and where tiles are much larger than what lies between taps."""
    words = EASYNPU.listing(proved(net, tmp_path, maps=390))
    assert {each["fields"]["Hk"] for each in words if each["text"].startswith("conv ")} == {3}
