"""A part of the sweep over descriptions and targets; all of it: benchmarks/frames.py."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import astuple
from itertools import combinations, islice
from pathlib import Path
from typing import Any

import pytest

from tests.images.sweep import PROCESSORS, Case, cases, check, covering


@pytest.mark.parametrize("processor", PROCESSORS, ids="/".join)
def test_a_program_gives_for_bytes_what_the_model_gives_for_their_floats(
    processor: tuple[str, str], tmp_path: Path
) -> None:
    drawn = (each for each in cases(1) if each.processor == processor)
    found = {str(case): wrong for case in islice(drawn, 5) if (wrong := check(case, tmp_path))}
    assert not found


@pytest.mark.slow
def test_the_benchmark_covers_all_pairs_and_every_frame_on_every_target() -> None:
    def seen(drawn: Iterable[Case], fields: int) -> set[tuple[Any, ...]]:
        values = [astuple(each) for each in drawn]
        return {
            (places, *(each[at] for at in places))
            for places in combinations(range(len(values[0])), fields)
            for each in values
        }

    drawn = [*covering(0)]
    assert seen(drawn, 2) == seen(cases(0), 2)
    firsts = {astuple(each)[:5] for each in cases(0)}  # target, order, frame, layout, mean
    assert {astuple(each)[:5] for each in drawn} == firsts and len(drawn) == len(firsts)


FOUND = [
    Case(("easynpu", "int8"), "bgr", "rgba", "nhwc", "none", 3, last=False),  # a selection took 7 bits of 8
    Case(
        ("bm1684", "int8"), "bgr", "nv21", "nhwc", "mtcnn", 0, last=False, before="Identity"
    ),  # a matrix in 8 bits
    Case(("nvdla-full", "int16"), "rgba", "bgra", "nhwc", "mtcnn", 1, last=False),  # int16 with given scales
    Case(("nvdla-full", "int16"), "rgb", "rgb", "nhwc", "tf", 1, last=False),
    Case(
        ("nvdla-full", "int16"), "rgba", "bgra", "nchw", "none", 3, last=False, before="Mul"
    ),  # scaled a selection
]


@pytest.mark.parametrize("case", FOUND, ids=str)
def test_what_the_sweep_found_stays_right(case: Case, tmp_path: Path) -> None:
    assert check(case, tmp_path) is None
