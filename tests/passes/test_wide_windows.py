"""Strides, dilations and borders beyond the fields of an instruction."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuc.ir import Attr, Graph, Node, TensorType
from npuc.onnx_files.export import to_onnx
from npuc.ops import build
from npuc.ops.interpreter import run
from npuc.ops.windows import window_of
from npuc.passes.expansion.averages import AverageLimits, SplitAveragePool, split_average_borders
from npuc.passes.expansion.fold_strides import FoldStrides
from npuc.passes.expansion.moves_to_convs import StridedSlicesToConvs
from npuc.passes.expansion.wide_dilations import LayInRows, SpreadKernels, WideDilations, drop_padding_taps
from npuc.pipeline import Pass
from npuc.targets.easynpu.network.passes import split_padding
from tests.conftest import Reference
from tests.passes.networks import (
    assert_close,
    assert_same_meaning,
    becomes,
    feeds,
    network,
    node,
    operators,
    sources,
)
from tests.runtime import RUNTIME

fold_strides = FoldStrides(15, 256)


def conv(size: int, kernel: tuple[int, int], channels: int = 3, group: int = 1, **attrs: Any) -> Graph:
    random = np.random.default_rng(0)
    w = random.standard_normal((6, channels // group, *kernel)).astype(np.float32)
    b = random.standard_normal(6).astype(np.float32)
    node = Node("Conv", ("x", "w", "b"), ("y",), {"activation": "Relu", "group": group, **attrs}, "n", ("n",))
    return build("g", [node], {"x": TensorType((1, channels, size, size + 3))}, ["y"], {"w": w, "b": b})


def expect_same(each: Pass, before: Graph, *operators: str) -> Graph:
    """The graph after the pass, which has these operators and the meaning that it had."""
    after = each(before)
    assert [node.op for node in after.nodes] == list(operators)
    x = np.random.default_rng(1).standard_normal(before.shape("x")).astype(np.float32)
    np.testing.assert_allclose(run(after, {"x": x})["y"], run(before, {"x": x})["y"], rtol=1e-4, atol=1e-4)
    assert each(after).nodes == after.nodes
    return after


@pytest.mark.parametrize(("before", "operators", "block"), [
    (conv(32, (16, 16), strides=(16, 16)), ("Slice", "SpaceToDepth", "Conv"), 8),
    (conv(49, (13, 13), strides=(18, 18)), ("Pad", "SpaceToDepth", "Conv"), 9),
    (conv(50, (5, 7), strides=(18, 18)), ("Slice", "SpaceToDepth", "Conv"), 9),
    (conv(48, (21, 20), strides=(16, 32), pads=(2, 3, 2, 3)), ("Pad", "Slice", "SpaceToDepth", "Conv"), 8),
    (conv(40, (17, 17), strides=(17, 17), channels=1), ("Slice", "SpaceToDepth", "Conv"), 17),
], ids=["patches", "no multiple of a block", "small kernel", "padded", "prime"])  # fmt: skip
def test_a_stride_above_15_is_taken_over_blocks_of_pixels(
    before: Graph, operators: tuple[str, ...], block: int
) -> None:
    after = expect_same(fold_strides, before, *operators)
    assert max(after.nodes[-1].integers("strides")) <= 15
    assert after.nodes[-2].integer("blocksize") == block


@pytest.mark.parametrize("before", [
    conv(32, (3, 3), strides=(15, 15)),
    conv(40, (3, 3), strides=(17, 16)),
    conv(40, (3, 3), channels=6, group=6, strides=(16, 16)),
    conv(80, (3, 3), strides=(16, 16), dilations=(2, 2)),
], ids=["15", "no common block", "grouped", "dilated"])  # fmt: skip
def test_other_strides_stay(before: Graph) -> None:
    assert fold_strides(before) is before


def signal(
    length: int, kernel: int, *, down: bool = False, channels: int = 3, group: int = 1, **attrs: Any
) -> Graph:
    """A Conv along one axis of an image of one row, or of one column; attributes are those along that axis."""
    random = np.random.default_rng(0)
    w = random.standard_normal((6, channels // group, kernel, 1)).astype(np.float32)
    shape: tuple[int, ...] = (1, channels, length, 1)
    step, dilation, (begin, end) = attrs["stride"], attrs.get("dilation", 1), attrs.get("pads", (0, 0))
    found: dict[str, Any] = {"strides": (step, 1), "dilations": (dilation, 1), "pads": (begin, 0, end, 0)}
    if not down:
        w, shape = w.transpose(0, 1, 3, 2), (1, channels, 1, length)
        found = {"strides": (1, step), "dilations": (1, dilation), "pads": (0, begin, 0, end)}
    node = Node("Conv", ("x", "w"), ("y",), {"group": group, **found}, "n", ("n",))
    return build("g", [node], {"x": TensorType(shape)}, ["y"], {"w": np.ascontiguousarray(w)})


@pytest.mark.parametrize(("before", "operators", "strides", "kernel"), [
    (signal(512, 32, stride=16), "", (1, 1), (2, 16)),
    (signal(512, 31, stride=16, pads=(8, 8)), "", (1, 1), (3, 16)),
    (signal(512, 32, stride=16, pads=(16, 0), down=True), "", (1, 1), (2, 16)),
    (signal(500, 32, stride=16, pads=(3, 40)), "Pad", (1, 1), (3, 16)),
    (signal(517, 32, stride=16), "Slice", (1, 1), (2, 16)),
    (signal(600, 7, stride=17, dilation=3, down=True), "Pad", (1, 1), (2, 17)),
    (signal(1000, 20, stride=160, pads=(10, 10)), "Slice", (5, 1), (2, 32)),
    (signal(480, 24, stride=16, channels=6, group=6), "", (1, 1), (2, 16)),
    (signal(480, 24, stride=16, channels=6, group=2), "", (1, 1), (2, 16)),
    (signal(16, 9, stride=16, pads=(9, 16)), "", (1, 1), (1, 16)),
])  # fmt: skip
def test_a_signal_at_a_stride_above_15_is_laid_in_rows(
    before: Graph, operators: str, strides: tuple[int, int], kernel: tuple[int, int]
) -> None:
    after = expect_same(fold_strides, before, *operators.split(), "Reshape", "Conv", "Reshape")
    conv = after.nodes[-2]
    assert conv.integers("strides") == strides
    assert after.shape(conv.inputs[1])[2:] == kernel


def test_a_signal_at_a_stride_without_divisors_stays() -> None:
    for before in (signal(512, 5, stride=15), signal(512, 5, stride=37), signal(600, 5, stride=31 * 37)):
        assert fold_strides(before) is before


@pytest.mark.parametrize(
    ("pads", "rest", "copies"),
    [((18, 18, 18, 18), (15, 15), 1), ((0, 40, 20, 3), (0, 15), 2), ((16, 31, 0, 0), (15, 15), 2)],
)
def test_padding_above_15_is_part_of_a_copy(pads: tuple[int, ...], rest: tuple[int, int], copies: int) -> None:
    before = conv(33, (3, 3), pads=pads)
    after = expect_same(split_padding, before, *["Conv"] * (copies + 1))
    assert after.nodes[-1].integers("pads") == (*rest, *pads[2:])
    assert all(max(node.integers("pads")[:2]) <= 15 for node in after.nodes)


def test_padding_behind_the_image_needs_no_field() -> None:
    before = conv(33, (3, 3), pads=(15, 0, 40, 40))
    assert split_padding(before) is before


def test_an_average_at_a_stride_above_15_is_one_of_averages() -> None:
    attrs: dict[str, Any] = {"kernel_shape": (20, 20), "strides": (20, 20)}
    node = Node("AveragePool", ("x",), ("y",), attrs, "n")
    before = build("g", [node], {"x": TensorType((1, 2, 60, 60))}, ["y"], {})
    only_strides = SplitAveragePool(limits=AverageLimits(positions=1 << 30, extent=1 << 30))
    after = expect_same(only_strides, before, "AveragePool", "AveragePool")
    assert all(max(node.integers("strides")) <= 15 for node in after.nodes)
    whole = build("g", [node], {"x": TensorType((1, 2, 20, 20))}, ["y"], {})
    assert only_strides(whole) is whole


MOVE = ["Reshape", "Transpose", "Reshape"]


@pytest.mark.parametrize(("dilations", "pads", "inner"), [
    ((6, 6), (6, 6, 6, 6), (3, 3)), ((8, 1), (8, 1, 8, 1), (4, 1)), ((5, 3), (0, 2, 3, 4), (1, 3)),
    ((6, 9), (1, 9, 9, 9), (3, 3)),
])  # fmt: skip
@pytest.mark.parametrize("group", [1, 2])
def test_a_wide_dilation_becomes_a_permitted_one(
    dilations: tuple[int, int], pads: tuple[int, ...], inner: tuple[int, int], group: int
) -> None:
    conv = node("Conv", "x w b", "y", dilations=dilations, pads=pads, group=group, activation="Relu")
    graph = network((2, 4, 13, 11), "y", conv, w=(6, 4 // group, 3, 3), b=(6,))
    found = becomes(WideDilations(4), graph, ["Pad", *MOVE, "Conv+Relu", *MOVE, "Slice"])
    assert found.nodes[4].integers("dilations") == inner


@pytest.mark.parametrize("attrs", [{"dilations": (4, 4)}, {"dilations": (5, 5), "strides": (2, 1)}])
def test_other_convolutions_stay(attrs: dict[str, tuple[int, int]]) -> None:
    graph = network((1, 4, 13, 13), "y", node("Conv", "x w", "y", **attrs), w=(6, 4, 3, 3))
    assert WideDilations(4)(graph) is graph


@pytest.mark.parametrize(("factor", "extents"), [(2, (13, 11)), (3, (12, 9)), (2, (8, 8))])
@pytest.mark.parametrize("group", [1, 4])
def test_phases_apart_are_convolutions_of_their_own(factor: int, extents: tuple[int, int], group: int) -> None:
    conv = node(
        "Conv", "x w b", "y", dilations=(4 * factor,) * 2, pads=(7, 8, 9, 8), group=group, activation="Relu"
    )
    graph = network((2, 4, *extents), "y", conv, w=(8, 4 // group, 3, 3), b=(8,))
    found = WideDilations(4, apart=True)(graph)
    convs = [each for each in found.nodes if each.op == "Conv"]
    assert [each.integers("dilations") for each in convs] == [(4, 4)] * factor**2
    assert all(found.shape(each.output)[0] == 2 for each in found.nodes)
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(
    ("dilations", "inner"), [((8, 1), (4, 1)), ((2, 12), (2, 4)), ((5, 9), (1, 3)), ((32, 4), (4, 4))]
)
def test_phases_may_differ_between_rows_and_columns(dilations: tuple[int, int], inner: tuple[int, int]) -> None:
    conv = node("Conv", "x w", "y", dilations=dilations, pads=(*dilations, *dilations))
    graph = network((1, 4, 13, 11), "y", conv, w=(6, 4, 3, 3))
    found = WideDilations(4, apart=True)(graph)
    assert {each.integers("dilations") for each in found.nodes if each.op == "Conv"} == {inner}
    assert_same_meaning(graph, found)


def test_phases_that_are_too_many_stay() -> None:
    for dilations in ((36, 36), (1, 36)):
        conv = node("Conv", "x w", "y", dilations=dilations, pads=(36, 36, 36, 36))
        graph = network((1, 4, 13, 13), "y", conv, w=(6, 4, 2, 2))
        assert WideDilations(4, apart=True)(graph) is graph


def dilated_signal(
    length: int, dilation: int, pads: tuple[int, int], group: int = 1, *, down: bool = False
) -> Graph:
    axis = 0 if down else 1
    ends: dict[str, Attr] = {"dilations": (dilation, 1) if down else (1, dilation), "group": group}
    ends["pads"] = (pads[0], 0, pads[1], 0) if down else (0, pads[0], 0, pads[1])
    shape, kernel = ((length, 1), (3, 1)) if down else ((1, length), (1, 3))
    conv = node("Conv", "x w b", "y", activation="Relu", **ends)
    graph = network((2, 4, *shape), "y", conv, w=(8, 4 // group, *kernel), b=(8,))
    assert graph.shape("y")[2 + axis] == length + sum(pads) - 2 * dilation
    return graph


@pytest.mark.parametrize(("graph", "before", "behind", "rows"), [
    (dilated_signal(64, 8, (8, 8)), "", "Reshape", (1, 1)),
    (dilated_signal(62, 8, (8, 8), down=True), "Pad", "Reshape Slice", (1, 1)),
    (dilated_signal(60, 15, (30, 0), group=2), "", "Reshape", (1, 1)),
    (dilated_signal(40, 12, (12, 12)), "Pad", "Reshape Slice", (2, 1)),
    (dilated_signal(40, 3, (18, 15)), "Pad", "Reshape Slice", (1, 1)),
    (dilated_signal(33, 32, (32, 32)), "Pad", "Reshape Slice", (4, 1)),
    (dilated_signal(50, 10, (0, 0)), "", "Reshape", (1, 1)),
    (dilated_signal(50, 10, (0, 7), group=4), "", "Reshape Slice", (1, 1)),
])  # fmt: skip
def test_a_dilated_signal_is_laid_in_rows(graph: Graph, before: str, behind: str, rows: tuple[int, int]) -> None:
    found = becomes(LayInRows(4, 15), graph, [*before.split(), "Reshape", "Conv+Relu", *behind.split()])
    conv = next(each for each in found.nodes if each.op == "Conv")
    assert conv.integers("dilations") == rows


@pytest.mark.parametrize("graph", [
    dilated_signal(64, 4, (4, 4)),
    dilated_signal(64, 7, (3, 3)),
    network((1, 4, 9, 64), "y", node("Conv", "x w", "y", dilations=(1, 8)), w=(4, 4, 1, 3)),
    network((1, 4, 1, 64), "y", node("Conv", "x w", "y", dilations=(1, 8), pads=(1, 0, 0, 0)), w=(4, 4, 1, 3)),
    network((1, 4, 1, 64), "y", node("Conv", "x w", "y", dilations=(1, 8), strides=(1, 2)), w=(4, 4, 1, 3)),
], ids=["permitted", "no common length", "image", "padded across", "stride"])  # fmt: skip
def test_no_other_signal_is_laid_in_rows(graph: Graph) -> None:
    assert LayInRows(4, 15)(graph) is graph


@pytest.mark.parametrize(("extents", "attrs", "kernel", "pads"), [
    ((5, 30), {"dilations": (6, 6), "pads": (6, 6, 6, 6)}, (1, 3), (0, 6, 0, 6)),
    ((5, 5), {"dilations": (4, 5), "pads": (4, 10, 4, 0)}, (3, 1), (4, 0, 4, 0)),
    ((9, 9), {"strides": (4, 4), "pads": (0, 0, 4, 0)}, (3, 3), (0, 0, 4, 0)),
    ((4, 9), {"strides": (4, 1), "pads": (0, 0, 1, 0)}, (3, 3), (0, 0, 1, 0)),
    ((1, 9), {"pads": (2, 2, 0, 0), "kernel_shape": (3, 3)}, (1, 3), (0, 2, 0, 0)),
])  # fmt: skip
def test_taps_that_meet_only_padding_are_dropped(
    extents: tuple[int, int], attrs: dict[str, Attr], kernel: tuple[int, int], pads: tuple[int, ...]
) -> None:
    graph = network((2, 4, *extents), "y", node("Conv", "x w b", "y", **attrs), w=(6, 4, 3, 3), b=(6,))
    found = drop_padding_taps(graph)
    (conv,) = found.nodes
    assert found.shape(conv.inputs[1])[2:] == kernel
    assert (conv.integers("pads") or (0, 0, 0, 0)) == pads
    assert_same_meaning(graph, found)


@pytest.mark.parametrize("dilations", [(2, 2), (1, 3)])
def test_a_dilated_depthwise_kernel_is_spread(dilations: tuple[int, int]) -> None:
    conv = node("Conv", "x w b", "y", dilations=dilations, pads=(2, 3, 1, 0), strides=(1, 2), group=4)
    graph = network((2, 4, 13, 11), "y", conv, w=(4, 1, 3, 3), b=(4,))
    found = SpreadKernels(7)(graph)
    assert found.nodes[0].integers("dilations") == (1, 1)
    assert_same_meaning(graph, found)


def test_only_small_depthwise_kernels_are_spread() -> None:
    for group, dilation, outputs in ((4, 4, 4), (4, 2, 8), (2, 2, 4), (1, 2, 4)):
        conv = node("Conv", "x w", "y", dilations=(dilation, dilation), group=group)
        graph = network((1, 4, 13, 13), "y", conv, w=(outputs, 4 // group, 3, 3))
        assert SpreadKernels(7)(graph) is graph


def pooled(shape: tuple[int, int], **attrs: Attr) -> Graph:
    return network((1, 2, *shape), "y", node("AveragePool", "x", "y", **attrs))


def kernels(graph: Graph) -> set[tuple[int, ...]]:
    return {each.integers("kernel_shape") for each in graph.nodes if each.op == "AveragePool"}


def assert_divided_by_taps(graph: Graph) -> None:
    """No window reaches beyond the padding, and padding counts."""
    for each in graph.nodes:
        if each.op == "AveragePool":
            window = window_of(each, each.integers("kernel_shape"))
            assert each.integer("count_include_pad") or not any((*window.begins, *window.ends))
            extents = zip(graph.shape(each.inputs[0])[2:], graph.shape(each.output)[2:], strict=True)
            for axis, (extent, count) in enumerate(extents):
                end = (count - 1) * window.strides[axis] + window.reach[axis]
                assert end <= window.begins[axis] + extent + window.ends[axis]


@pytest.mark.parametrize(("shape", "attrs", "regions"), [
    ((6, 6), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}, 9),
    ((6, 6), {"kernel_shape": (3, 3), "pads": (1, 0, 1, 0)}, 3),
    ((7, 6), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (2, 2)}, 6),
    ((8, 8), {"kernel_shape": (5, 5), "pads": (2, 2, 2, 2)}, 25),
    ((7, 7), {"kernel_shape": (2, 2), "strides": (2, 2), "ceil_mode": 1}, 4),
    ((7, 5), {"kernel_shape": (3, 3), "strides": (2, 3), "pads": (0, 1, 1, 0), "ceil_mode": 1}, 4),
    ((8, 8), {"kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "ceil_mode": 1,
        "count_include_pad": 1}, 4),
    ((2, 9), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}, 6),
    ((5, 5), {"kernel_shape": (5, 5), "pads": (2, 2, 2, 2), "strides": (2, 2)}, 9),
])  # fmt: skip
def test_every_region_has_its_own_kernel(
    shape: tuple[int, int], attrs: dict[str, Attr], regions: int, onnxruntime_values: Reference
) -> None:
    graph = pooled(shape, **attrs)
    found = split_average_borders(graph)
    assert operators(found).count("AveragePool") == regions
    assert_divided_by_taps(found)
    assert_same_meaning(graph, found)
    assert split_average_borders(found) is found
    if RUNTIME < (1, 29) and "count_include_pad" in attrs:
        return  # it divides windows that reach beyond the padding by another size
    given_values = feeds(graph)
    expected = onnxruntime_values(to_onnx(graph), given_values)
    assert_close(expected["y"], run(found, given_values)["y"], "y")


def test_corners_edges_and_inside_average_4_6_and_9_elements() -> None:
    found = split_average_borders(pooled((5, 5), kernel_shape=(3, 3), pads=(1, 1, 1, 1)))
    assert kernels(found) == {(2, 2), (2, 3), (3, 2), (3, 3)}
    assert operators(found).count("Concat") == 4
    (inside,) = (each for each in found.nodes if each.integers("kernel_shape") == (3, 3))
    assert found.shape(inside.output) == (1, 2, 3, 3)
    assert all(each.sources == ("y",) for each in found.nodes)
    assert sources(found, "y") == ("y",)


def test_padding_that_counts_stays_padding_beside_a_smaller_last_window() -> None:
    attrs: dict[str, Attr] = {"strides": (2, 2), "pads": (1, 1, 0, 0), "ceil_mode": 1, "count_include_pad": 1}
    graph = pooled((7, 7), kernel_shape=(3, 3), **attrs)
    found = split_average_borders(graph)
    assert kernels(found) == {(3, 3), (3, 2), (2, 3), (2, 2)}
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(("shape", "attrs"), [
    ((6, 6), {"kernel_shape": (3, 3)}),
    ((6, 6), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "count_include_pad": 1}),
    ((6, 6), {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0, 0, 1, 1)}),
    ((12, 12), {"kernel_shape": (9, 9), "pads": (4, 4, 4, 4)}),
])  # fmt: skip
def test_what_is_uniform_or_has_more_than_seven_regions_stays(
    shape: tuple[int, int], attrs: dict[str, Attr]
) -> None:
    graph = pooled(shape, **attrs)
    assert split_average_borders(graph) is graph


def test_a_region_with_as_much_padding_as_taps_is_no_pool() -> None:
    """The last window's taps are at 5, 7 and 9: one inside, one in the padding, one beyond."""
    attrs: dict[str, Attr] = {"strides": (1, 5), "dilations": (1, 2), "ceil_mode": 1, "count_include_pad": 1}
    graph = pooled((6, 6), kernel_shape=(1, 3), pads=(0, 0, 0, 2), **attrs)
    assert split_average_borders(graph) is graph


@settings(max_examples=80, deadline=None, derandomize=True)
@given(st.data())
def test_any_geometry_keeps_its_meaning(data: st.DataObject) -> None:
    def pair(low: int, high: int) -> tuple[int, int]:
        return data.draw(st.integers(low, high)), data.draw(st.integers(low, high))

    kernel, strides, dilations, shape = pair(1, 4), pair(1, 3), pair(1, 2), pair(8, 12)
    pads = tuple(data.draw(st.integers(0, taps - 1)) for taps in (*kernel, *kernel))
    attrs: dict[str, Attr] = {"kernel_shape": kernel, "strides": strides, "pads": pads, "dilations": dilations}
    flags = {key: data.draw(st.integers(0, 1)) for key in ("ceil_mode", "count_include_pad")}
    graph = pooled(shape, **attrs, **flags)
    found = split_average_borders(graph)
    if found is not graph or not flags["ceil_mode"] or max(dilations) == 1:
        assert_divided_by_taps(found)
    assert_same_meaning(graph, found)


strided_slices_to_convs = StridedSlicesToConvs(15)


def cut(x: str, y: str, *cuts: tuple[int, int, int, int]) -> Node:
    """cuts: (axis, start, end, step)."""
    axes, starts, ends, steps = zip(*cuts, strict=True)
    return node("Slice", x, y, axes=axes, starts=starts, ends=ends, steps=steps)


def between_functions(*cuts: tuple[int, int, int, int]) -> Graph:
    return network((1, 3, 7, 8), "y", node("Relu", "x", "a"), cut("a", "b", *cuts), node("Sigmoid", "b", "y"))


@pytest.mark.parametrize(("cuts", "strides"), [
    (((2, 0, 7, 2), (3, 1, 8, 2)), (2, 2)), (((3, 2, 8, 5),), (1, 5)), (((2, 1, 6, 3), (3, 0, 8, 1)), (3, 1)),
    (((1, 1, 3, 1), (2, 0, 7, 2)), (2, 1)), (((2, 6, 7, 4),), (4, 1)),
])  # fmt: skip
def test_steps_are_the_strides_of_a_convolution(
    cuts: tuple[tuple[int, int, int, int], ...], strides: tuple[int, int]
) -> None:
    found = becomes(strided_slices_to_convs, between_functions(*cuts), ["Relu", "Slice", "Conv", "Sigmoid"])
    assert found.nodes[2].integers("strides") == strides
    assert sources(found, "b") == ("b",)


@pytest.mark.parametrize(
    "cuts", [((2, 6, -1, -2),), ((1, 0, 3, 2),), ((2, 1, 5, 1),), ((1, 2, -1, -1), (2, 0, 7, 2))]
)
def test_other_steps_stay(cuts: tuple[tuple[int, int, int, int], ...]) -> None:
    graph = between_functions(*cuts)
    assert strided_slices_to_convs(graph) is graph


def test_movement_of_an_input_or_before_an_output_stays() -> None:
    steps = ((2, 0, 7, 2), (3, 1, 8, 2))
    of_input = network((1, 3, 7, 8), "y", cut("x", "b", *steps), node("Relu", "b", "y"))
    assert strided_slices_to_convs(of_input) is of_input
    before_output = network((1, 3, 7, 8), "y", node("Relu", "x", "a"), cut("a", "y", *steps))
    assert strided_slices_to_convs(before_output) is before_output
