"""The two bounds of a compile report, worked out on paper."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.cli.process import SYNTHETIC, npuc
from tests.onnx_models import parse

TEXT = "g (float[{n},64,8,8] x) => (float[{n},64,8,8] y) {{ {body} }}"
CONV = "a = Conv<pads = [1, 1, 1, 1]>(x, w)\n y = Relu(a)"
WEIGHTS = (64, 64, 3, 3)


def _report(tmp_path: Path, images: int, *options: str, body: str = CONV) -> dict[str, object]:
    onnx.save(parse(TEXT.format(n=images, body=body), w=WEIGHTS), tmp_path / "m.onnx")
    given = ("--target", "bm1684", "-o", tmp_path / "a.npu", *SYNTHETIC, *options, "--json")
    found: dict[str, object] = npuc("compile", tmp_path / "m.onnx", *given).json
    return found


@pytest.mark.parametrize(
    ("images", "options", "least", "bound"),
    [
        # 147,456 bytes of weights and 16,384 of each map, 53.369 a cycle; 2,359,296 MACs at 2,048 would take 1,152
        (1, (), 180_224, 3_377),
        # eight images: 18,874,368 MACs take 9,216 cycles, 409,600 bytes 7,675
        (8, (), 409_600, 9_216),
        # of 8 bits: 36,864 bytes of weights and 16,384 of each map of four images
        (4, ("--precision", "int8"), 69_632, 1_305),
    ],
)
def test_no_program_takes_less_than_its_macs_and_the_bytes_of_the_network(
    images: int, options: tuple[str, ...], least: int, bound: int, tmp_path: Path
) -> None:
    report = _report(tmp_path, images, *options)
    assert (report["least_traffic_bytes"], report["network_bound_cycles"]) == (least, bound)
    assert report["cycles"] >= bound  # type: ignore[operator]


def test_weights_that_two_layers_share_are_moved_once(tmp_path: Path) -> None:
    twice = "a = Conv<pads = [1, 1, 1, 1]>(x, w)\n y = Conv<pads = [1, 1, 1, 1]>(a, w)"
    assert _report(tmp_path, 1, body=twice)["least_traffic_bytes"] == 180_224


def test_the_busier_engine_is_the_larger_of_the_two(tmp_path: Path) -> None:
    report = _report(tmp_path, 1)
    assert report["busier_engine_cycles"] == max(report["bdc_cycles"], report["gdma_cycles"])  # type: ignore[type-var]
