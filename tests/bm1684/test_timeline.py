"""What local memory holds over time, and how much of it at once: digits, by its calls."""

from __future__ import annotations

from pathlib import Path

import pytest

from npuc.program import load
from npuc.targets.bm1684.machine.local_memory import Position
from npuc.targets.bm1684.program.artefact import instructions
from npuc.targets.bm1684.program.view import timeline
from tests.cli.process import npuc

MODELS = Path(__file__).resolve().parents[2] / "models"


@pytest.fixture(scope="module")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("timeline") / "o"
    options = ("--target", "bm1684", "--precision", "int8", "--calibration", MODELS / "digits_calibration.npz")
    npuc("compile", MODELS / "digits.onnx", *options, "-o", found).done()
    return found


def test_a_buffer_that_is_freed_late_says_when_it_was_used_last(program: Path) -> None:
    """The GDMA loads weights of n9 while n7 is computed: what n7 reads waits for it, and is freed behind it."""
    loaded = load(program)
    found = timeline(loaded)
    calls = list(zip(instructions(loaded), found.activities, strict=True))
    late = {each.label: each for each in found.buffers if each.used is not None}
    assert "n5_MaxPool/int8" in late
    for each in late.values():
        ends = [
            activity.end
            for call, activity in calls
            for place in call.call.args
            if isinstance(place, Position) and each.address <= place.offset < each.address + each.size
            if each.start <= activity.start and activity.end <= each.end
        ]
        assert max(ends) == each.used and each.start < max(ends) < each.end
    (reader,) = (activity for call, activity in calls if call.tensor == "n7_Relu/int8" and not call.call.on_gdma)
    assert late["n5_MaxPool/int8"].used == reader.end
    npuc("report", program, "-o", program.parent / "r.html").done()
    page = (program.parent / "r.html").read_text()
    assert page.count('class="late"') == len(late) and "not yet freed" in page


def test_the_peak_is_what_is_in_use_at_once(program: Path) -> None:
    """Buffers at both ends of local memory with room between take no more than their own bytes."""
    found = timeline(load(program))
    local = [each for each in found.buffers if each.memory == "local"]
    most = max(sum(each.size for each in local if each.start <= at < each.end) for at in range(found.cycles))
    use = load(program).report["memory"]["local"]
    assert use["peak_bytes"] == most < use["capacity_bytes"] / 100
