"""Utilisation and host traffic of MLPerf Tiny's networks. Source of the bounds: the issue that asked for them."""

from __future__ import annotations

from functools import cache
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from npuc import program
from npuc.target import Options, Request, target
from npuc.targets.easynpu.view import timeline
from tests.compiled import compilation

RESNET8, DS_CNN, MOBILENET = "tiny_resnet8_fp32", "tiny_kws_dscnn_fp32", "tiny_vww_mbv1_fp32"


@cache
def report(shared: Path, name: str, **options: Any) -> dict[str, Any]:
    compiled = compilation(
        Request(shared / "models" / f"{name}.onnx", target("easynpu"), Options(**options))
    ).program
    return dict(compiled.manifest["report"])


@pytest.mark.parametrize(
    ("name", "isa", "least"),
    [
        (RESNET8, "extended", 0.99),
        (DS_CNN, "extended", 0.985),
        (DS_CNN, "documented", 0.975),
        (MOBILENET, "extended", 0.89),
    ],
)
def test_the_large_machine_is_busy(name: str, isa: str, least: float, shared: Path) -> None:
    assert report(shared, name, machine="large", isa=isa)["utilization"] >= least


@pytest.mark.parametrize(("name", "most"), [(RESNET8, 1.45), (DS_CNN, 1.28), (MOBILENET, 1.35)])
def test_the_default_machine_moves_little_more_than_it_must(name: str, most: float, shared: Path) -> None:
    traffic = report(shared, name)["host_traffic"]
    moved = traffic["map_bytes"] + traffic["weight_bytes"]
    assert traffic["lower_bound_bytes"] <= traffic["optimum_bytes"] <= moved <= most * traffic["lower_bound_bytes"]


@pytest.mark.parametrize(
    ("name", "isa"),
    [
        *product([RESNET8, DS_CNN, "mtcnn_pnet"], ["documented", "extended"]),
        (MOBILENET, "extended"),
        ("ppocr_cls", "extended"),
    ],
)
def test_no_plan_moves_less_than_the_bound(name: str, isa: str, shared: Path) -> None:
    """The bound is the network's own: neither instruction set changes its weights."""
    traffic = report(shared, name, isa=isa, level="0", objective="traffic")["host_traffic"]
    assert traffic["lower_bound_bytes"] <= traffic["map_bytes"] + traffic["weight_bytes"]


@pytest.mark.parametrize(("name", "words"), [(RESNET8, 7998), (MOBILENET, 29324)])
def test_the_least_traffic_is_not_above_the_references(name: str, words: int, shared: Path) -> None:
    """The reference's plans with base and pitch fields; it counts no blocks of fused additions (35 words)."""
    traffic = report(shared, name, isa="extended", level="0", objective="traffic")["host_traffic"]
    assert traffic["optimum_bytes"] <= 16 * (words + 35)


def test_objectives_trade_traffic_for_halo(shared: Path) -> None:
    plans = {each["objective"]: each for each in report(shared, RESNET8)["host_traffic"]["plans"]}
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
