"""Tensors as windows of buffers: offsets and strides by hand, for atoms of 8 bytes (nv_small)."""

from __future__ import annotations

import pytest

from npuc.ir import Graph, Node, TensorType
from npuc.ops import build
from npuc.targets.nvdla.machine.parameters import SMALL
from npuc.targets.nvdla.operations.surfaces import (
    Lanes,
    Surfaces,
    contiguous_lanes,
    is_view,
    join_lanes,
    place,
    slice_lanes,
    spaced_lanes,
    with_copies,
)
from npuc.targets.nvdla.selection.phases import lifetimes_of
from tests.passes.networks import node


def _graph(shapes: dict[str, tuple[int, ...]], outputs: str, *nodes: Node) -> Graph:
    return build(
        "g", nodes, {name: TensorType(shape, "int8") for name, shape in shapes.items()}, outputs.split(), {}
    )


def _placed(graph: Graph, loaded: str) -> Surfaces:
    def computed(made: Node, _lanes: object) -> Lanes:
        return contiguous_lanes(graph.shape(made.output)[1])

    return place(graph, graph.nodes, loaded.split(), SMALL, computed)


VIEWS = [
    ((1, 8, 4, 4), node("Identity", "x", "y"), True),
    ((1, 8, 4, 4), node("Slice", "x", "y", starts=(1,), ends=(3,), axes=(2,), steps=(1,)), True),
    ((1, 8, 4, 4), node("Slice", "x", "y", starts=(0,), ends=(4,), axes=(2,), steps=(2,)), False),
    ((1, 8, 4, 4), node("Slice", "x", "y", starts=(0,), ends=(1,), axes=(0,), steps=(1,)), False),
    ((2, 8, 4, 4), node("Slice", "x", "y", starts=(1,), ends=(3,), axes=(2,), steps=(1,)), False),
    ((1, 8, 4, 4), node("Concat", "x x", "y", axis=1), True),
    ((1, 8, 4, 4), node("Concat", "x x", "y", axis=0), False),
    ((1, 8, 4), node("Concat", "x x", "y", axis=1), False),
    ((1, 8, 1, 1), node("Reshape", "x", "y", shape=(1, 8)), True),
    ((1, 8, 4, 4), node("Reshape", "x", "y", shape=(1, 128)), False),
    ((1, 8, 4, 4), node("Interleave", "x x", "y", axis=2), True),
    ((1, 8, 4, 4), node("Interleave", "x x", "y", axis=3), False),
    ((1, 8, 4, 4), node("Relu", "x", "y"), False),
]  # fmt: skip


@pytest.mark.parametrize(("shape", "moved", "whether"), VIEWS, ids=[f"{each[1].op} {each[0]}" for each in VIEWS])
def test_what_moves_nothing_is_a_view(shape: tuple[int, ...], moved: Node, *, whether: bool) -> None:
    assert is_view(_graph({"x": shape}, "y", moved), moved) is whether


def test_lanes_leave_gaps_where_channels_do_not_fill_atoms() -> None:
    assert join_lanes([contiguous_lanes(10), contiguous_lanes(3)], 8) == (*range(10), 16, 17, 18)
    assert spaced_lanes(5, 2, 8) == (0, 1, 8, 9, 16)
    assert slice_lanes((*range(10), 16, 17, 18), 9, 3, 8) == (1, 8, 9)


def test_maps_that_are_loaded_or_stored_live_as_long_as_their_phase() -> None:
    """Two layers on the machine, one on the host, two on the machine: steps 0 and 1, then 2 and 3."""
    nodes = [node("Relu", before, after) for before, after in zip("xabcd", "abcdy", strict=True)]
    graph = _graph({"x": (1, 8, 4, 4)}, "y", *nodes)
    phases = [(True, nodes[:2]), (False, nodes[2:3]), (True, nodes[3:])]
    found = lifetimes_of(graph, phases, _placed(graph, "x c"), ["x", "c"], ())
    spans = {each.name: (each.first, each.last) for each in found}
    assert spans == {"x": (0, 1), "a": (0, 2), "b": (1, 2), "c": (2, 3), "d": (2, 4), "y": (3, 4)}


def test_a_slice_is_a_window_of_its_input() -> None:
    """Surface 1, row 1, column 2 of lines of 6 atoms: (16 * 6 + 6 + 2) * 8 bytes."""
    cut = node("Slice", "a", "y", starts=(8, 1, 2), ends=(16, 16, 6), axes=(1, 2, 3), steps=(1, 1, 1))
    graph = _graph({"x": (1, 16, 16, 6)}, "y", node("Relu", "x", "a"), cut)
    view = _placed(graph, "x").views["y"]
    assert (view.buffer.name, view.offset, view.lanes) == ("a", (16 * 6 + 6 + 2) * 8, contiguous_lanes(8))
    assert (view.height, view.width, view.line_stride) == (15, 4, 6 * 8)


def test_parts_of_a_concat_lie_in_its_buffer_each_from_a_new_surface() -> None:
    nodes = node("Relu", "x", "a"), node("Relu", "z", "b"), node("Concat", "a b", "y", axis=1)
    views = _placed(_graph({"x": (1, 10, 4, 4), "z": (1, 3, 4, 4)}, "y", *nodes), "x z").views
    assert {views[name].buffer.name for name in "aby"} == {"y"}
    assert [views[name].offset for name in "ab"] == [0, 2 * 16 * 8]
    assert views["y"].buffer.surfaces == 3 and views["y"].lanes == (*range(10), 16, 17, 18)


def test_maps_interleaved_along_h_are_alternate_lines() -> None:
    nodes = node("Relu", "x", "a"), node("Neg", "x", "b"), node("Interleave", "a b", "y", axis=2)
    views = _placed(_graph({"x": (1, 8, 4, 6)}, "y", *nodes), "x").views
    assert [(views[name].offset, views[name].line_stride) for name in "aby"] == [(0, 96), (48, 96), (0, 48)]


SIDE_BY_SIDE = {
    "two maps": (node("Neg", "w", "b"), 6, True),
    "a view of another": (node("Identity", "w", "b"), 6, False),
    "a narrower one": (node("Neg", "w", "b"), 5, False),
}


@pytest.mark.parametrize(("second", "width", "together"), SIDE_BY_SIDE.values(), ids=SIDE_BY_SIDE)
def test_maps_interleaved_along_w_lie_side_by_side_if_nothing_else_places_them(
    second: Node, width: int, *, together: bool
) -> None:
    nodes = node("Relu", "x", "a"), second, node("Interleave", "a b", "y", axis=3)
    views = _placed(_graph({"x": (1, 8, 4, 6), "w": (1, 8, 4, width)}, "y", *nodes), "x w").views
    assert [views[name].buffer.name == "y/columns" for name in "ab"] == [together, together]
    if together:
        assert [views[name].offset for name in "ab"] == [0, 4 * 6 * 8]


def test_one_map_interleaved_with_itself_is_not_placed_twice() -> None:
    graph = _graph({"x": (1, 8, 4, 6)}, "y", node("Relu", "x", "a"), node("Interleave", "a a", "y", axis=3))
    assert _placed(graph, "x").views["a"].buffer.name == "a"


@pytest.mark.parametrize(("outputs", "columns"), [("z", 14), ("y z", 13)])
def test_a_result_of_interleaving_has_lines_of_whole_turns_unless_the_host_reads_it(
    outputs: str, columns: int
) -> None:
    """Maps of 7 and 6 columns: a line for 2 x 7."""
    first, second = node("Relu", "x", "a"), node("Relu", "w", "b")
    nodes = first, second, node("Interleave", "a b", "y", axis=3), node("Neg", "y", "z")
    views = _placed(_graph({"x": (1, 8, 4, 7), "w": (1, 8, 4, 6)}, outputs, *nodes), "x w").views
    assert views["y"].buffer.width == columns


COPIED = [
    ("Relu", "x", "a", "a b", []),
    ("Identity", "x", "a", "a b", ["a"]),
    ("Relu", "x", "a", "x b", ["x"]),
    ("Relu", "x", "a", "b b", ["b"]),
]


@pytest.mark.parametrize(("op", "source", "result", "read", "copies"), COPIED)
def test_what_has_another_place_is_copied_into_a_concat(
    op: str, source: str, result: str, read: str, copies: list[str]
) -> None:
    nodes = node(op, source, result), node("Neg", "x", "b"), node("Concat", read, "y", axis=1)
    graph = _graph({"x": (1, 8, 4, 4)}, f"y {result}", *nodes)
    assert [name for _, name in with_copies(graph, graph.nodes, ["x"])] == copies
