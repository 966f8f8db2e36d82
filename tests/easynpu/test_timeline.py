"""The timeline: the cycle model's totals, and buffers that never share a byte at the same time."""

from __future__ import annotations

from itertools import combinations, pairwise
from pathlib import Path

import pytest

from npuc.program import Program, as_loaded
from npuc.target import Options, Request
from npuc.targets.easynpu.target import EASYNPU
from npuc.targets.easynpu.view import timeline
from tests.compiled import compilation
from tests.given import GIVEN

SHARED = GIVEN / "models"
DIGITS = Path(__file__).resolve().parents[2] / "models" / "digits.onnx"


def _compiled(model: Path, machine: str) -> Program:
    return as_loaded(compilation(Request(model, EASYNPU, Options(machine=machine))).program)


@pytest.mark.parametrize("machine", ["default", "large"])
@pytest.mark.parametrize("name", ["digits", "tiny_resnet8_fp32", "tiny_kws_dscnn_fp32"])
def test_the_array_works_as_long_as_the_report_says_and_buffers_keep_apart(name: str, machine: str) -> None:
    model = DIGITS if name == "digits" else SHARED / f"{name}.onnx"
    if not model.exists():
        pytest.skip("needs the trained models beside the checkout")
    program = _compiled(model, machine)
    found = timeline(program)
    array = [each for each in found.activities if each.engine == "array"]
    assert sum(each.end - each.start for each in array) == program.manifest["report"]["cycles"]
    assert found.cycles == max(each.end for each in found.activities)
    for one, other in combinations(found.buffers, 2):
        at_once = one.memory == other.memory and one.start < other.end and other.start < one.end
        parts = one.label == other.label  # channel groups of one map lie between one another
        assert (
            not at_once
            or parts
            or one.address + one.size <= other.address
            or other.address + other.size <= one.address
        )


def test_host_and_array_work_in_turn() -> None:
    found = timeline(_compiled(DIGITS, "default"))
    in_order = sorted(found.activities, key=lambda each: each.start)
    assert all(before.end <= after.start for before, after in pairwise(in_order))
    assert in_order[0].engine == "load" and in_order[-1].label.startswith("store")
