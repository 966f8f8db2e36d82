"""A part of the sweep over descriptions and targets; all of it: benchmarks/frames.py."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest

from tests.images.sweep import PROCESSORS, cases, check


@pytest.mark.parametrize("processor", PROCESSORS, ids="/".join)
def test_a_program_gives_for_bytes_what_the_model_gives_for_their_floats(
    processor: tuple[str, str], tmp_path: Path
) -> None:
    drawn = (each for each in cases(1) if each.processor == processor)
    found = {str(case): wrong for case in islice(drawn, 5) if (wrong := check(case, tmp_path))}
    assert not found
