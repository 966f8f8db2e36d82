"""split_max_pool: large windows as maxima of maxima."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npuc.interpreter import run
from npuc.ir import Attr, Graph
from npuc.onnx_files.export import to_onnx
from npuc.ops.windows import window_of
from npuc.passes.expansion.split_max_pool import AxisPool, division, split_max_pool
from tests.conftest import Reference
from tests.passes.networks import feeds, network, node, operators, sources


def pooled(shape: tuple[int, int], **attrs: Attr) -> Graph:
    return network((1, 2, *shape), "y", node("MaxPool", "x", "y", **attrs))


def assert_small(graph: Graph) -> None:
    for each in graph.nodes:
        window = window_of(each, each.integers("kernel_shape"))
        assert window.reach[0] * window.reach[1] <= 64
        assert max(window.strides) <= 15
        assert max(window.dilations) <= 16


def assert_equal_to(expected: np.ndarray, graph: Graph) -> None:
    np.testing.assert_array_equal(run(graph, feeds(graph))["y"], expected)


@pytest.mark.parametrize(
    ("shape", "attrs", "pools"),
    [
        ((9, 9), {"kernel_shape": (9, 9)}, 2),
        ((20, 20), {"kernel_shape": (9, 9), "pads": (4, 4, 4, 4)}, 2),
        ((20, 20), {"kernel_shape": (13, 5), "strides": (3, 2), "pads": (6, 0, 1, 4), "ceil_mode": 1}, 2),
        ((30, 30), {"kernel_shape": (3, 3), "dilations": (4, 5), "strides": (1, 2)}, 2),
        ((100, 3), {"kernel_shape": (100, 3)}, 3),
        ((200, 2), {"kernel_shape": (70, 1), "strides": (35, 1)}, 2),
        ((90, 80), {"kernel_shape": (66, 66), "pads": (1, 0, 2, 3)}, 4),
        ((64, 64), {"kernel_shape": (32, 32), "strides": (32, 32)}, 4),
        ((128, 1), {"kernel_shape": (70, 1), "strides": (20, 1), "pads": (8, 0, 7, 0), "ceil_mode": 1}, 2),
    ],
)
def test_a_large_window_is_divided_exactly(
    shape: tuple[int, int], attrs: dict[str, Attr], pools: int, onnxruntime_values: Reference
) -> None:
    graph = pooled(shape, **attrs)
    found = split_max_pool(graph)
    assert operators(found) == ["MaxPool"] * pools
    assert_small(found)
    assert_equal_to(onnxruntime_values(to_onnx(graph), feeds(graph))["y"], found)
    assert split_max_pool(found) is found
    assert sources(found, "y") == ("y",)


@pytest.mark.parametrize("shape", [(14, 14), (65, 1), (1, 113), (101, 67), (16, 4), (1, 5000), (9, 9)])
def test_global_maxima_of_any_length_are_divided(shape: tuple[int, int]) -> None:
    graph = network((1, 2, *shape), "y", node("GlobalMaxPool", "x", "y"))
    found = split_max_pool(graph)
    if shape == (16, 4):
        assert found is graph
        return
    assert_small(found)
    assert_equal_to(run(graph, feeds(graph))["y"], found)
    assert split_max_pool(found) is found


def test_rows_come_before_columns() -> None:
    found = split_max_pool(pooled((20, 20), kernel_shape=(9, 11), strides=(2, 3), pads=(1, 2, 3, 4)))
    windows = [{key: each.integers(key) for key in ("kernel_shape", "strides", "pads")} for each in found.nodes]
    assert windows == [
        {"kernel_shape": (9, 1), "strides": (2, 1), "pads": (1, 0, 2, 0)},
        {"kernel_shape": (1, 11), "strides": (1, 3), "pads": (0, 2, 0, 4)},
    ]


@pytest.mark.parametrize(
    "attrs",
    [
        {"kernel_shape": (8, 8)},
        {"kernel_shape": (3, 3), "dilations": (3, 4)},
        {"kernel_shape": (140, 1)},
        {"kernel_shape": (3, 1), "dilations": (40, 1)},
        {"kernel_shape": (9, 9), "strides": (17, 1)},
    ],
)
def test_small_windows_and_those_without_a_division_stay(attrs: dict[str, Attr]) -> None:
    graph = pooled((150, 20), **attrs)
    assert split_max_pool(graph) is graph


@settings(max_examples=200, deadline=None, derandomize=True)
@given(st.integers(1, 300), st.integers(0, 40), st.integers(0, 30), st.integers(0, 30), st.integers(0, 40))
def test_a_division_has_the_windows_of_the_whole(
    kernel: int, stride: int, begin: int, end: int, more: int
) -> None:
    begin, end = min(begin, kernel - 1), min(end, kernel - 1)
    steps = division(AxisPool(kernel, stride, 1, begin, end))
    if steps is None:
        return
    extent = max(kernel - begin - end, 1) if stride == 0 else kernel + more
    if extent + begin + end < kernel:
        return
    x = [{at} if 0 <= at < extent else set[int]() for at in range(-begin, extent + end)]
    y = x if len(x) == kernel or stride else x[:kernel]
    assert all(step.fits for step in steps)
    for number, step in enumerate(steps):
        assert number == 0 or step.begin == step.end == 0
        assert max(step.begin, step.end) < step.kernel
        starts = range(0, len(y) - step.reach + 1, step.stride or 1)
        y = [set[int]().union(*(y[at + k * step.dilation] for k in range(step.kernel))) for at in starts]
    wanted = [set[int]().union(*x[at : at + kernel]) for at in range(0, len(x) - kernel + 1, stride or len(x))]
    assert y == wanted
