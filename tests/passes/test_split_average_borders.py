"""split_average_borders: every window is divided by the number of its taps."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuc.interpreter import run
from npuc.ir import Attr, Graph
from npuc.onnx_files.export import to_onnx
from npuc.ops.windows import window_of
from npuc.passes.expansion.split_average_borders import split_average_borders
from tests.conftest import Reference
from tests.passes.networks import assert_close, assert_same_meaning, feeds, network, node, operators, sources
from tests.runtime import RUNTIME


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


@pytest.mark.parametrize(
    ("shape", "attrs", "regions"),
    [
        ((6, 6), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}, 9),
        ((6, 6), {"kernel_shape": (3, 3), "pads": (1, 0, 1, 0)}, 3),
        ((7, 6), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "strides": (2, 2)}, 6),
        ((8, 8), {"kernel_shape": (5, 5), "pads": (2, 2, 2, 2)}, 25),
        ((7, 7), {"kernel_shape": (2, 2), "strides": (2, 2), "ceil_mode": 1}, 4),
        ((7, 5), {"kernel_shape": (3, 3), "strides": (2, 3), "pads": (0, 1, 1, 0), "ceil_mode": 1}, 4),
        (
            (8, 8),
            {
                "kernel_shape": (3, 3), "strides": (2, 2), "pads": (1, 1, 1, 1), "ceil_mode": 1,
                "count_include_pad": 1,
            },
            4,
        ),
        ((2, 9), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1)}, 6),
        ((5, 5), {"kernel_shape": (5, 5), "pads": (2, 2, 2, 2), "strides": (2, 2)}, 9),
    ],
)  # fmt: skip
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


@pytest.mark.parametrize(
    ("shape", "attrs"),
    [
        ((6, 6), {"kernel_shape": (3, 3)}),
        ((6, 6), {"kernel_shape": (3, 3), "pads": (1, 1, 1, 1), "count_include_pad": 1}),
        ((6, 6), {"kernel_shape": (2, 2), "strides": (2, 2), "pads": (0, 0, 1, 1)}),
        ((12, 12), {"kernel_shape": (9, 9), "pads": (4, 4, 4, 4)}),
    ],
)
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
