"""Perfetto's own trace processor asks the traces in SQL: their sums are those of the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import onnx
import pytest

from npuc.models.networks import resnet8
from tests.cli.process import SYNTHETIC, Digits, WriteModel, npuc
from tests.cli.trace_processor import answers

TARGETS = {
    "easynpu": ("array", ("load", "store")),
    "nvdla-small": ("CONV", ("DRAM",)),
    "nvdla-full": ("CONV", ("DRAM",)),
    "bm1684": ("BDC", ("GDMA",)),
}
"""The lane that multiplies, and those whose bytes are the traffic."""
NUMBER = "(select int_value from args where args.arg_set_id = slice.arg_set_id and key = 'debug.{}')"
LANES = f"""
    select track.name as lane, count(*) as slices, max(ts + dur) as last,
        sum({NUMBER.format("cycles")}) as cycles, sum(dur) as lasting, sum({NUMBER.format("bytes")}) as bytes
    from slice join track on slice.track_id = track.id where slice.name != 'about' group by 1
"""
COUNTERS = """
    select track.name as counter, counter.ts as begun, counter.value as value
    from counter join track on counter.track_id = track.id where track.name = 'multipliers at work' order by 2
"""
FLOWS = """
    select count(*) as flows, sum(giver.ts > taker.ts) as backward from flow
    join slice giver on giver.id = slice_out join slice taker on taker.id = slice_in
"""
ERRORS = "select name, value from stats where severity in ('error', 'data_loss') and value > 0"


def check(program: Path, target: str, folder: Path) -> None:
    report = json.loads((program / "manifest.json").read_text())["report"]
    npuc("trace", program, "-o", folder / "t.pftrace").done()
    found, levels, flows, errors = answers(folder / "t.pftrace", folder, LANES, COUNTERS, FLOWS, ERRORS)
    assert errors == []
    lanes: dict[str, dict[str, Any]] = {each["lane"]: each for each in found}
    engine, memory = TARGETS[target]
    assert all(each["cycles"] == each["lasting"] > 0 for each in found)
    if target == "easynpu":
        assert lanes[engine]["cycles"] == report["cycles"]
    else:
        assert max(each["last"] for each in found) == report["cycles"]
    extra = report["host_traffic"]["instruction_bytes"] if target == "easynpu" else 0
    assert sum(lanes[each]["bytes"] for each in memory) == report["traffic_bytes"] + extra > 0
    assert flows[0]["flows"] >= len(report["layers"]) - 1 and flows[0]["backward"] == 0
    ends = [each["begun"] for each in levels[1:]]
    work = sum(each["value"] / 100 * (end - each["begun"]) for each, end in zip(levels, ends, strict=False))
    assert work == pytest.approx(sum(each["ideal_cycles"] or 0 for each in report["layers"]))


@pytest.mark.parametrize("target", TARGETS)
def test_digits(target: str, digits: Digits, tmp_path: Path) -> None:
    npuc("compile", *SYNTHETIC, digits.model, "--target", target, "-o", tmp_path / "o").done()
    check(tmp_path / "o", target, tmp_path)


@pytest.mark.parametrize("target", TARGETS)
def test_resnet8(target: str, tmp_path: Path) -> None:
    onnx.save(resnet8(), tmp_path / "m.onnx")
    npuc(
        "compile", *SYNTHETIC, tmp_path / "m.onnx", "--target", target, "-o", tmp_path / "o", "--proof", "off"
    ).done()
    check(tmp_path / "o", target, tmp_path)


FIRE = """g (float[1,8,12,12] x) => (float[1,24,4,4] y) {
    s = Conv(x, w)
    a = Relu(s)
    o = Conv(a, v)
    e = Relu(o)
    t = Conv <pads = [1, 1, 1, 1]> (a, u)
    f = Relu(t)
    c = Concat <axis = 1> (e, f)
    p = MaxPool <kernel_shape = [3, 3], strides = [2, 2]> (c)
    y = AveragePool <kernel_shape = [2, 2]> (p)
}"""
"""A module of SqueezeNet: a map with two readers, a concatenation, pools."""


@pytest.mark.parametrize("target", ["easynpu", "nvdla-full", "bm1684"])
def test_fire(target: str, write: WriteModel, tmp_path: Path) -> None:
    model = write(FIRE, w=(4, 8, 1, 1), v=(12, 4, 1, 1), u=(12, 4, 3, 3))
    npuc("compile", *SYNTHETIC, model, "--target", target, "-o", tmp_path / "o", "--proof", "off").done()
    check(tmp_path / "o", target, tmp_path)
