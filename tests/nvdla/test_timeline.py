"""The timeline of NVDLA: the report's cycles, and maps in memory that never share a byte at the same time."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path

import pytest

import npuc
from npuc.models import MODELS
from npuc.view import BufferUse, Timeline

TARGETS = ("nvdla-small", "nvdla-large", "nvdla-full")


def _found(model: str, target: str) -> tuple[npuc.Compiled, Timeline]:
    compiled = npuc.compile(MODELS[model](), target=target, calibration="synthetic")
    return compiled, compiled.timeline


def _apart(one: BufferUse, other: BufferUse) -> bool:
    at_once = one.memory == other.memory and one.start < other.end and other.start < one.end
    disjoint = one.address + one.size <= other.address or other.address + other.size <= one.address
    return disjoint or not at_once


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("model", ["resnet8", "small_cnn"])
def test_maps_in_memory_keep_apart_and_end_where_the_report_says(model: str, target: str) -> None:
    compiled, found = _found(model, target)
    assert found.cycles == compiled.report["cycles"] == max(each.end for each in found.activities)
    for name, use in compiled.report["memory"].items():
        held = [each for each in found.buffers if each.memory == name]
        assert held and max(each.address + each.size for each in held) == use["peak_bytes"]
    assert all(_apart(one, other) for one, other in combinations(found.buffers, 2))
    assert all(0 <= each.start < each.end <= found.cycles for each in found.buffers)


def test_a_short_cut_stays_in_memory_until_it_is_added() -> None:
    """ResNet-8's first block adds the stem's result to the second convolution's: it lies beside both."""
    compiled, found = _found("resnet8", "nvdla-large")
    layers = compiled.report["layers"]
    ends = [sum(each["cycles"] for each in layers[: number + 1]) for number in range(len(layers))]
    maps = [each for each in found.buffers if each.memory == "dram" and each.start == 0 and each.end == ends[2]]
    assert len(maps) == 1 and maps[0].size == 16 * 32 * 32 * 2  # 16 channels in atoms of 32 bytes


def test_the_report_draws_every_memory(tmp_path: Path) -> None:
    from tests.cli.process import npuc as command

    npuc.compile(MODELS["small_cnn"](), target="nvdla-small", calibration="synthetic").save(tmp_path / "p.npu")
    command("report", tmp_path / "p.npu", "-o", tmp_path / "r.html").done()
    page = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert "What the dram memory holds over time" in page and "What the cbuf memory holds over time" in page
