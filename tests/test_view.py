"""Timelines: what a memory holds at a time lies apart, and is no more than the memory."""

from __future__ import annotations

from itertools import combinations

import pytest

from npuc import api
from npuc.models import MODELS
from npuc.target import Options, target


@pytest.mark.parametrize("machine", [None, "large"])
@pytest.mark.parametrize("name", ["residual_awkward", "unet_small", "resnet8"])
def test_buffers_of_easynpu_lie_apart(name: str, machine: str | None) -> None:
    """Maps whose channels or pixels several layers write in turn are drawn, and counted, once."""
    options = Options(level="0", machine=machine, proof="off")
    program = api.compile(MODELS[name](), "easynpu", calibration="synthetic", options=options).program
    found = target("easynpu").timeline(program).buffers
    for one, other in combinations(found, 2):
        together = one.start < other.end and other.start < one.end and one.memory == other.memory
        overlap = one.address < other.address + other.size and other.address < one.address + one.size
        assert not (together and overlap), (one, other)
    report = program.report["memory"]
    for each in found:
        at = each.start
        held = sum(b.size for b in found if b.memory == each.memory and b.start <= at < b.end)
        assert held <= report[each.memory]["capacity_bytes"]
