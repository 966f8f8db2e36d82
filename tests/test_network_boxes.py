"""What the report's network shows: the model's nodes, wherever they run, and where boxes stand."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from npuc.account import BORDER, FOLDED, HOST, NPU, REMOVED, Entry
from npuc.errors import Problem
from npuc.reports.drawing import boxes_of, drawing, layering


def _entry(node: str, op: str, place: str, reads: str, writes: str, **more: Any) -> Entry:
    fields: dict[str, Any] = {
        "because": "", "into": (), "paths": (), "layers": (), "problems": (), "macs": 0, "macs_on_npu": 0,
        "cycles": 0.0, "bytes_in": 0, "bytes_out": 0, "within": (),
    }  # fmt: skip
    fields |= {"reads": tuple(reads.split()), "tensors": {writes: more.pop("now", "")}}
    return Entry(node, op, place, **{**fields, **more})


NO = Problem("E201", "<none>", op="Sin")
ENTRIES = (
    _entry("W", "Constant", FOLDED, "", "w"),
    _entry("A", "Conv", NPU, "x w", "a", layers=(0,), paths=("npu/part_0",), cycles=30.0, now="part_0/a/int8"),
    _entry("I", "Identity", REMOVED, "a", "i", because="it changes nothing: 'i' is 'a'"),
    _entry("H", "Sin", HOST, "i", "h", problems=(NO,), paths=("host/region_0.onnx",), bytes_in=4),
    _entry("B", "Add", NPU, "h a", "b", layers=(1, 2), paths=("npu/part_1",), cycles=60.0),
    _entry("F", "Flatten", BORDER, "b", "y", paths=("npu/part_1",)),
)
LAYERS: list[dict[str, Any]] = [
    {"name": "a", "op": "conv", "nodes": ["A"], "cycles": 30, "bytes": 8, "sqnr_db": None},
    {"name": "b/half", "op": "copy", "nodes": ["B"], "cycles": 20, "bytes": 2, "sqnr_db": 40.0},
    {"name": "b", "op": "add", "nodes": ["B"], "cycles": 40, "bytes": 2, "sqnr_db": None},
]


def test_every_node_that_is_not_folded_has_a_box_that_hangs_together_with_the_others() -> None:
    boxes = boxes_of(ENTRIES, LAYERS)
    assert [(box.name, box.title, box.reads) for box in boxes] == [
        ("A", "Conv", ()), ("I", "Identity", ("A",)), ("H", "Sin", ("I",)), ("B", "Add", ("H", "A")),
        ("F", "Flatten", ("B",)),
    ]  # fmt: skip
    assert [box.region for box in boxes] == [
        "npu/part_0 on the NPU", "", "host/region_0.onnx on the host", "npu/part_1 on the NPU",
        "npu/part_1 on the host",
    ]  # fmt: skip
    assert [box.shades["place"] for box in boxes] == [0, 0, 1, 0, 0.5]
    assert [box.shades.get("cycles") for box in boxes] == [0.5, 0, 0, 1, 0]
    assert [box.layer for box in boxes] == [0, None, None, 1, None]


def test_nodes_in_another_order_than_they_run_are_drawn_the_same() -> None:
    first = boxes_of(ENTRIES, LAYERS)
    assert {box.name: box.reads for box in boxes_of(ENTRIES[::-1], LAYERS)} == {
        box.name: box.reads for box in first
    }


def test_a_box_tells_what_the_node_became() -> None:
    by_name = {box.name: box.hint.splitlines() for box in boxes_of(ENTRIES, LAYERS)}
    assert by_name["A"][1:] == ["layer a: conv, 30 cycles, 8 bytes", "tensor a: now part_0/a/int8"]
    assert by_name["B"][1:3] == [
        "layer b/half: copy, 20 cycles, 2 bytes, 40.0 dB",
        "layer b: add, 40 cycles, 2 bytes",
    ]
    assert by_name["H"][:2] == ["Sin 'H': on the host, host/region_0.onnx, 4 bytes cross", "  Sin: <none> [E201]"]
    assert "it changes nothing" in by_name["I"][0]


def test_every_region_is_outlined_and_what_a_model_names_is_text() -> None:
    picture = drawing(boxes_of(ENTRIES, LAYERS))
    assert picture.count('class="region"') == 5 and picture.count('class="edge"') == 5
    assert "Sin: &lt;none&gt;" in picture and "<none>" not in picture


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
