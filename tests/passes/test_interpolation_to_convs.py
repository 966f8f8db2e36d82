"""Interpolation as convolutions: what onnxruntime makes of the Resize, at every border."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from npuc.interpreter import run
from npuc.ir import Graph, Node, TensorType
from npuc.ops import build
from npuc.passes.expansion.resizes import (
    MOST_PHASES,
    interpolation_to_blocks,
    interpolation_to_convs,
)
from npuc.reference import graph_session
from npuc.targets.nvdla.machine.parameters import MOST_KERNEL, MOST_STRIDE

COORDINATES = ("half_pixel", "pytorch_half_pixel", "asymmetric", "align_corners")


def resize(shape: tuple[int, ...], scales: tuple[float, ...], coordinates: str, **attrs: Any) -> Graph:
    sizes = tuple(round(extent * scale) for extent, scale in zip(shape, scales, strict=True))
    found = {"mode": "linear", "coordinate_transformation_mode": coordinates, "scales": scales, "sizes": sizes}
    node = Node("Resize", ("x",), ("y",), {**found, **attrs}, "n", ("n",))
    return build("g", [node], {"x": TensorType(shape)}, ["y"], {})


def assert_same(before: Graph, after: Graph) -> None:
    """The meaning is onnxruntime's, in operators and fields that NVDLA has."""
    assert {node.op for node in after.nodes} <= {"Slice", "Concat", "Conv", "Interleave"}
    convs = [node for node in after.nodes if node.op == "Conv"]
    assert len(convs) <= MOST_PHASES
    for conv in convs:
        assert max(after.shape(conv.inputs[1])[2:]) <= MOST_KERNEL
        assert max(conv.integers("strides")) <= MOST_STRIDE
    x = np.random.default_rng(0).normal(0.5, 2, before.shape("x")).astype(np.float32)
    (wanted,) = graph_session(before, ["y"]).run(None, {"x": x})
    np.testing.assert_allclose(run(after, {"x": x})["y"], wanted, rtol=1e-4, atol=1e-4)
    assert interpolation_to_convs(after) is after


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize(("shape", "size"), [
    ((1, 3, 5, 4), (10, 8)), ((1, 3, 5, 4), (15, 6)), ((2, 1, 4, 5), (16, 5)), ((1, 2, 3, 5), (3, 25)),
    ((1, 2, 3, 2), (9, 4)), ((1, 2, 10, 6), (15, 4)), ((1, 1, 7, 9), (4, 12)), ((1, 2, 5, 7), (2, 13)),
])  # fmt: skip
def test_linear_interpolation_is_what_onnxruntime_computes(
    shape: tuple[int, ...], size: tuple[int, int], coordinates: str
) -> None:
    before = resize(shape, (1.0, 1.0, size[0] / shape[2], size[1] / shape[3]), coordinates)
    after = interpolation_to_convs(before)
    assert after is not before
    assert_same(before, after)


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_a_ratio_becomes_convolutions_or_stays(coordinates: str, mode: str) -> None:
    """Extents from 1 on, larger and smaller, ratios of small and of large numbers."""
    became = 0
    for extent, size in product((1, 2, 3, 7, 16, 33), (1, 2, 3, 5, 8, 12, 50)):
        if extent != size:
            before = resize((1, 1, extent, 2), (1.0, 1.0, size / extent, 1.0), coordinates, mode=mode)
            after = interpolation_to_convs(before)
            if after is not before:
                became += 1
                assert_same(before, after)
    assert became >= 18


def test_a_long_extent_takes_memory_in_proportion() -> None:
    """A dense matrix of taps would be 14 TiB."""
    before = resize((1, 1, 1_000_000, 1), (1.0, 1.0, 2.0, 1.0), "half_pixel")
    assert interpolation_to_convs(before) is not before


@pytest.mark.parametrize("scale", [1.3, 0.7, 2.5])
def test_a_scale_that_gives_no_whole_size_counts_as_it_is(scale: float) -> None:
    sizes = (1, 2, int(10 * scale), 7)
    before = resize((1, 2, 10, 7), (1.0, 1.0, scale, 1.0), "half_pixel", sizes=sizes)
    assert_same(before, interpolation_to_convs(before))


@pytest.mark.parametrize(
    "before",
    [
        resize((1, 2, 4, 4), (1.0, 2.0, 2.0, 2.0), "half_pixel"),
        resize((1, 2, 40, 40), (1.0, 1.0, 1.4, 1.6), "align_corners"),
        resize((1, 2, 90, 4), (1.0, 1.0, 0.1, 1.0), "half_pixel"),
        resize((1, 2, 9, 9), (1.0, 1.0, 9.0, 9.0), "half_pixel"),
        resize((1, 2, 4, 4), (1.0, 1.0, 1.0, 1.0), "half_pixel"),
        resize((1, 2, 4, 4), (1.0, 1.0, 2.0, 2.0), "asymmetric", mode="nearest", nearest_mode="floor"),
        resize((1, 2, 8, 4), (1.0, 1.0, 2.0, 2.0), "half_pixel", mode="cubic", exclude_outside=1),
        resize((2, 4, 4), (1.0, 2.0, 2.0), "half_pixel"),
    ],
    ids=["channels", "many phases", "a long stride", "81", "1", "repeated", "excluding", "rank 3"],
)
def test_other_resizes_stay(before: Graph) -> None:
    assert interpolation_to_convs(before) is before


@pytest.mark.parametrize("mode", ["linear", "cubic", "nearest"])
@pytest.mark.parametrize("coordinates", ["half_pixel", "asymmetric"])
@pytest.mark.parametrize("ratio", [0.25, 0.5, 1.5, 2.0, 2.5, 3.0])
def test_blocks_are_what_onnxruntime_computes(ratio: float, coordinates: str, mode: str) -> None:
    before = resize((1, 3, 8, 12), (1.0, 1.0, ratio, ratio), coordinates, mode=mode)
    after = interpolation_to_blocks(before)
    if after is before:
        assert mode == "nearest" and ratio in (2.0, 3.0), "copies"
        return
    assert {node.op for node in after.nodes} <= {"Slice", "Concat", "Conv", "DepthToSpace"}
    x = np.random.default_rng(0).normal(0.5, 2, before.shape("x")).astype(np.float32)
    (wanted,) = graph_session(before, ["y"]).run(None, {"x": x})
    np.testing.assert_allclose(run(after, {"x": x})["y"], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [(16, 9), (16, 6), (12, 7), (13, 9)])
def test_other_ratios_of_rows_than_of_columns_and_broken_blocks_stay(size: tuple[int, int]) -> None:
    before = resize((1, 3, 8, 6), (1.0, 1.0, size[0] / 8, size[1] / 6), "half_pixel")
    assert interpolation_to_blocks(before) is before
