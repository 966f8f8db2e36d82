"""Utilisation and host traffic of MLPerf Tiny's networks. Source of the bounds: the issue that asked for them."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import npuc
from npuc import program
from npuc.regions.composite import parts, target_of
from npuc.target import Options, Request, target
from npuc.targets.easynpu.view import timeline
from tests.compiled import compilation, program_of
from tests.easynpu_rewrites.nets import Net

RESNET8, DS_CNN, MOBILENET = "tiny_resnet8_fp32", "tiny_kws_dscnn_fp32", "tiny_vww_mbv1_fp32"


@cache
def report(shared: Path, name: str, **options: Any) -> dict[str, Any]:
    compiled = compilation(
        Request(shared / "models" / f"{name}.onnx", target("easynpu"), Options(**options))
    ).program
    return dict(compiled.manifest["report"])


@pytest.mark.parametrize(("name", "isa", "least"), [
    (RESNET8, "extended", 0.99), (DS_CNN, "extended", 0.985), (DS_CNN, "documented", 0.975),
    (MOBILENET, "extended", 0.82),
])  # fmt: skip
def test_the_large_machine_is_busy(name: str, isa: str, least: float, shared: Path) -> None:
    """MobileNet's first layers have 8 of 16 outputs; channels of its last ones, which nothing reads, are gone."""
    assert report(shared, name, machine="large", isa=isa)["utilization"] >= least


@pytest.mark.parametrize(("name", "least", "most"), [(RESNET8, 52_784, 1.7), ("tiny_ad_ae_fp32", 230_000, 1.2)])
def test_the_default_machine_moves_little_more_than_it_must(
    name: str, least: int, most: float, shared: Path
) -> None:
    """ResNet-8 has 77,360 weights, the autoencoder 264,192, of which some are rounded to zero; 24,576 may stay."""
    traffic = report(shared, name)["host_traffic"]
    moved = traffic["map_bytes"] + traffic["weight_bytes"]
    assert least < traffic["least_bytes"] <= traffic["optimum_bytes"] <= moved <= most * traffic["least_bytes"]


def equivalents(seed: int) -> dict[str, Net]:
    """One convolution in several forms, each of which computes the same from the same data."""
    random = np.random.default_rng(seed)
    channels, outputs, stride = (int(random.integers(*each)) for each in ((1, 40), (1, 40), (1, 4)))
    high, wide = (int(each) for each in random.integers(8, 30, 2))
    w = random.standard_normal((outputs, channels, 1, 1)).astype(np.float32)
    x, h, v = (1, channels, high, wide), -(-high // stride), -(-wide // stride)
    y, steps = (1, outputs, h, v), f"strides = [{stride}, {stride}]"
    bordered = np.pad(w, ((0, 0), (0, 0), (1, 1), (1, 1)))
    block = np.kron(np.eye(2, dtype=np.float32)[:, :, None, None], w)
    cut = {"low": np.array([0, 0]), "high": np.array([high, wide]), "axes": np.array([2, 3])}
    cut["steps"] = np.array([stride, stride])
    half = max(outputs // 2, 1)
    found = {
        "as it is": Net(x, y, f"y = Conv <{steps}> (x, w)", {"w": w}),
        "zeros around": Net(x, y, f"y = Conv <{steps}, pads = [1, 1, 1, 1]> (x, w)", {"w": bordered}),
        "cut before": Net(x, y, "s = Slice (x, low, high, axes, steps) y = Conv (s, w)", {"w": w} | cut),
        "twice": Net(x, (1, 2 * outputs, h, v), f"y = Conv <{steps}> (x, w)", {"w": np.concatenate([w, w])}),
        "zero channels": Net(
            (1, 2 * channels, high, wide), (1, 2 * outputs, h, v), f"y = Conv <{steps}> (x, w)", {"w": block}
        ),
    }
    if outputs > 1:
        halves = f"a = Conv <{steps}> (x, w) b = Conv <{steps}> (x, v) y = Concat <axis = 1> (a, b)"
        found["halves"] = Net(x, y, halves, {"w": w[:half], "v": w[half:]})
    if (high, wide) == (h * stride, v * stride) and stride > 1:
        folded = np.zeros((outputs, stride, stride, channels, 1, 1), np.float32)
        folded[:, 0, 0] = w
        text = f"d = SpaceToDepth <blocksize = {stride}> (x) y = Conv (d, w)"
        found["folded"] = Net(x, y, text, {"w": folded.reshape(outputs, -1, 1, 1)})
    return found


@pytest.mark.parametrize("seed", range(12))
def test_no_equivalent_model_moves_less_than_the_bound(seed: int, tmp_path: Path) -> None:
    bounds, moved = dict[str, int](), dict[str, int]()
    for name, net in equivalents(seed).items():
        onnx.save(net.model(), tmp_path / f"{name}.onnx")
        asked = Options(level="0", objective="traffic")
        program = compilation(Request(tmp_path / f"{name}.onnx", target("easynpu"), asked)).program
        traffic = program.manifest["report"]["host_traffic"]
        bounds[name], moved[name] = traffic["least_bytes"], traffic["map_bytes"] + traffic["weight_bytes"]
    larger = {"twice", "zero channels"}  # more outputs; more of both
    assert all(bounds[each] <= moved[each] for each in bounds)
    assert max(bounds[each] for each in bounds.keys() - larger) <= min(moved.values())
    assert min(bounds.values()) > 0


@pytest.mark.parametrize(("name", "isa"), [
    *product([RESNET8, DS_CNN, "mtcnn_pnet"], ["documented", "extended"]), (MOBILENET, "extended"),
    ("ppocr_cls", "extended"),
])  # fmt: skip
def test_no_plan_moves_less_than_the_bound(name: str, isa: str, shared: Path) -> None:
    """The bound is the network's own: neither instruction set changes its weights."""
    traffic = report(shared, name, isa=isa, level="0", objective="traffic")["host_traffic"]
    assert traffic["least_bytes"] <= traffic["map_bytes"] + traffic["weight_bytes"]


def test_the_bound_of_parts_is_the_sum_of_theirs() -> None:
    """Both parts load 3 x 64 pixels, and store as many; their weights stay in the DTCM."""
    text = "a = Conv (x, w) b = Hardmax <axis = 1> (a) y = Conv (b, v)"
    w, v = (np.arange(1, 10, dtype=np.float32).reshape(3, 3, 1, 1) * each for each in (1, -1))
    model = Net((1, 3, 8, 8), (1, 3, 8, 8), text, {"w": w, "v": v}).model()
    found = npuc.compile(model, "easynpu", calibration="synthetic").report
    assert found["host_traffic"]["least_bytes"] == 2 * 2 * 192
    assert found["traffic_bytes"] >= found["host_traffic"]["least_bytes"]


def test_taps_in_padding_do_not_count_as_used(tmp_path: Path) -> None:
    """3x3 dilated by 5 on 6x6: of 9 taps, 4 meet only one pixel."""
    attrs = "dilations = [5, 5], pads = [5, 5, 5, 5]"
    w = np.random.default_rng(0).standard_normal((16, 64, 3, 3)).astype(np.float32)
    net = Net((1, 64, 6, 6), (1, 16, 6, 6), f"y = Conv <{attrs}> (x, w)", {"w": w})
    onnx.save(net.model(), tmp_path / "m.onnx")
    for machine in ("default", "large", "author"):
        asked = Options(level="0", machine=machine)
        found = compilation(Request(tmp_path / "m.onnx", target("easynpu"), asked)).program.manifest["report"]
        assert found["utilization"] <= 1
        assert all(each["ideal_cycles"] <= each["cycles"] for each in found["layers"])


@pytest.mark.parametrize(("name", "words"), [(RESNET8, 7998), (MOBILENET, 29324)])
def test_the_least_traffic_is_not_above_the_references(name: str, words: int, shared: Path) -> None:
    """The reference's plans with base and pitch fields; it counts no blocks of fused additions (35 words)."""
    traffic = report(shared, name, isa="extended", level="0", objective="traffic")["host_traffic"]
    assert traffic["optimum_bytes"] <= 16 * (words + 35)


def test_objectives_trade_traffic_for_halo(shared: Path) -> None:
    found = report(shared, "ppocr_cls", isa="extended", level="0", objective="traffic")
    plans = {each["objective"]: each for each in found["host_traffic"]["plans"]}
    assert plans["traffic"]["bytes"] < plans["time"]["bytes"]
    assert plans["traffic"]["halo_cycles"] > plans["time"]["halo_cycles"]


@pytest.mark.parametrize("name", [RESNET8, DS_CNN])
@pytest.mark.parametrize("isa", ["documented", "extended"])
def test_the_report_s_cycles_with_transfers_are_those_of_the_trace(
    name: str, isa: str, shared: Path, tmp_path: Path
) -> None:
    model = shared / "models" / f"{name}.onnx"
    compiled = compilation(Request(model, target("easynpu"), Options(level="0", flags={"isa": isa}))).program
    program.save(compiled, tmp_path / "o")
    traffic = compiled.manifest["report"]["host_traffic"]
    assert traffic["cycles_with_transfers"] == timeline(program.load(tmp_path / "o")).cycles


def test_the_report_s_cycles_of_several_parts_are_those_of_their_trace(shared: Path, tmp_path: Path) -> None:
    """Each part overwrites what another has loaded before the first inference, and loads it again."""
    model = onnx.load(shared / "models" / f"{RESNET8}.onnx")
    found = program_of(model, tmp_path, options={"deny": ("Add",)})
    traffic, whole = found.report["host_traffic"], target_of(found).timeline(found)
    assert len(parts(found)) > 1 and traffic["initial_bytes"] > 0
    assert traffic["cycles_with_transfers"] == traffic["first_inference_cycles"] == whole.cycles
    moved = sum(each.bytes for each in whole.activities if each.engine != whole.array)
    assert moved == sum(traffic[f"{each}_bytes"] for each in ("map", "weight", "instruction", "initial"))
