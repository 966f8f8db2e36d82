"""Where the boxes of a drawn network stand, worked out on paper."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from npuc.page.network import layering

SHORT_CUT = {"a": ("x",), "b": ("a",), "c": ("b", "weights"), "d": ("c", "a")}
"""x and weights are no boxes; d adds what b and c made of a to a itself."""


def test_a_box_stands_below_all_that_it_reads() -> None:
    assert {name: row for name, (row, _) in layering(SHORT_CUT).boxes.items()} == {"a": 0, "b": 1, "c": 2, "d": 3}


def test_an_edge_over_several_rows_passes_beside_their_boxes() -> None:
    found = layering(SHORT_CUT)
    passed = found.edges["a", "d"]
    assert [row for row, _ in passed] == [1, 2]
    for (row, column), name in zip(passed, "bc", strict=True):
        assert found.boxes[name][0] == row and abs(found.boxes[name][1] - column) > 0.5
    assert found.edges.keys() == {("a", "b"), ("b", "c"), ("c", "d"), ("a", "d")}


def test_branches_that_need_not_cross_do_not_cross() -> None:
    # the order of the file lists the second branch's end first
    found = layering({"top": (), "left": ("top",), "right": ("top",), "r": ("right",), "l": ("left",)}).boxes
    assert (found["left"][1] < found["right"][1]) == (found["l"][1] < found["r"][1])


@settings(max_examples=40, deadline=None, derandomize=True)
@given(st.lists(st.lists(st.integers(0, 11), max_size=4), max_size=12))
def test_no_boxes_overlap_and_the_picture_begins_at_its_edge(drawn: list[list[int]]) -> None:
    found = layering({str(at): [str(each) for each in read if each < at] for at, read in enumerate(drawn)})
    rows: dict[int, list[float]] = {}
    for row, column in found.boxes.values():
        rows.setdefault(row, []).append(column)
    assert all(right - left > 0.999 for row in rows.values() for left, right in pairwise(sorted(row)))
    columns = [
        column for _, column in (*found.boxes.values(), *(each for path in found.edges.values() for each in path))
    ]
    assert min(columns, default=0.0) == 0.0
