"""copies_to_concats, gathers_to_slices, pads_to_convs, resize_to_products."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npuc.passes.expansion.copies_to_concats import copies_to_concats
from npuc.passes.expansion.gathers_to_slices import gathers_to_slices
from npuc.passes.expansion.pads_to_convs import PadsToConvs
from npuc.targets.easynpu.network.passes import resize_to_products
from tests.passes.networks import assert_same_meaning, network, node, operators

pads_to_convs = PadsToConvs(15)

CUBE = (3, 4, 5)
MOVES = {"Concat", "Slice", "Reshape"}


@pytest.mark.parametrize(("shape", "expected"), [
    ((2, 3, 4), ["Reshape", "Concat", "Concat"]), ((3, 4), ["Concat"]), ((1, 3, 1), ["Reshape"]),
])  # fmt: skip
def test_expand_is_a_concatenation_per_repeated_axis(shape: tuple[int, ...], expected: list[str]) -> None:
    graph = network((3, 1), "y", node("Expand", "x", "y", shape=shape))
    found = copies_to_concats(graph)
    assert operators(found) == expected
    assert_same_meaning(graph, found)
    assert copies_to_concats(found) is found


def test_expand_by_many_stays() -> None:
    graph = network((3, 1), "y", node("Expand", "x", "y", shape=(3, 257)))
    assert copies_to_concats(graph) is graph


@pytest.mark.parametrize("pads", [(1, 0, 2, 2, 0, 3), (-1, 0, 2, 0, -2, 3), (0, 0, 0, 0, -1, -1)])
@pytest.mark.parametrize("mode", ["constant", "reflect", "edge", "wrap"])
def test_padding_is_a_concatenation_per_padded_axis(mode: str, pads: tuple[int, ...]) -> None:
    graph = network(CUBE, "y", node("Pad", "x", "y", pads=pads, mode=mode, value=0.5))
    found = copies_to_concats(graph)
    assert set(operators(found)) <= MOVES
    assert_same_meaning(graph, found)


@pytest.mark.parametrize("mode", ["constant", "edge", "wrap"])
def test_padding_may_exceed_the_tensor(mode: str) -> None:
    graph = network(CUBE, "y", node("Pad", "x", "y", pads=(9, 0, 0, 8, 0, 0), mode=mode))
    assert_same_meaning(graph, copies_to_concats(graph))


@pytest.mark.parametrize(("indices", "expected"), [
    (3, ["Slice", "Reshape"]),
    ([1], ["Slice"]),
    ([0, 1, 2], ["Slice"]),
    ([0, 2, 4], ["Slice"]),
    ([-1, -2, -3, -4, -5], ["Slice"]),
    ([0, 1, 4], ["Slice", "Slice", "Concat"]),
    ([1, 1, 1], ["Slice", "Slice", "Slice", "Concat"]),
    ([[0, 2], [4, 4]], ["Slice", "Slice", "Concat", "Reshape"]),
])  # fmt: skip
def test_a_gather_is_a_slice_per_run_of_indices(indices: Any, expected: list[str]) -> None:
    graph = network((2, 5), "y", node("Gather", "x i", "y", axis=1), i=np.array(indices))
    found = gathers_to_slices(graph)
    assert operators(found) == expected
    assert_same_meaning(graph, found)
    assert gathers_to_slices(found) is found


def test_a_gather_of_many_runs_stays() -> None:
    graph = network((2, 5), "y", node("Gather", "x i", "y", axis=1), i=np.array([0] * 257))
    assert gathers_to_slices(graph) is graph


@pytest.mark.parametrize(("value", "expected"), [(0.0, ["Conv"]), (1.5, ["Conv", "Conv"])])
def test_padding_around_an_image_is_that_of_a_convolution(value: float, expected: list[str]) -> None:
    pad = node("Pad", "x", "y", pads=(0, 0, 1, 2, 0, 0, 3, 4), value=value)
    graph = network((1, 2, 3, 4), "y", pad)
    found = pads_to_convs(graph)
    assert operators(found) == expected
    assert_same_meaning(graph, found)
    assert pads_to_convs(found) is found


@pytest.mark.parametrize(("rule", "count"), [(pads_to_convs, 3), (PadsToConvs(15, 5), 4)])
@pytest.mark.parametrize("value", [0.0, 1.5])
def test_more_padding_than_a_window_may_have_takes_several_convolutions(
    rule: PadsToConvs, count: int, value: float
) -> None:
    graph = network((1, 2, 3, 4), "y", node("Pad", "x", "y", pads=(0, 0, 40, 2, 0, 0, 17, 4), value=value))
    found = rule(graph)
    assert operators(found) == ["Conv"] * (count if value == 0 else count + 1)
    assert_same_meaning(graph, found)
    assert rule(found) is found


@pytest.mark.parametrize(("shape", "attrs"), [
    ((1, 2, 3, 4), {"pads": (0, 1, 0, 0, 0, 0, 0, 0)}),
    ((2, 2, 3, 4), {"pads": (0, 0, 1, 0, 0, 0, 0, 0)}),
    ((1, 2, 3, 4), {"pads": (0, 0, -1, 0, 0, 0, 0, 0)}),
    ((1, 2, 3, 4), {"pads": (0, 0, 121, 0, 0, 0, 0, 0)}),
    ((1, 2, 3, 4), {"pads": (0, 0, 1, 0, 0, 0, 0, 0), "mode": "edge"}),
    ((1, 2, 3, 4), {"pads": (0, 0, 1, 0, 0, 0, 0, 0), "value": -np.inf}),
    ((2, 3, 4), {"pads": (0, 1, 0, 0, 0, 0)}),
])  # fmt: skip
def test_other_padding_stays(shape: tuple[int, ...], attrs: dict[str, Any]) -> None:
    graph = network(shape, "y", node("Pad", "x", "y", **attrs))
    assert pads_to_convs(graph) is graph


@pytest.mark.parametrize("coordinates", ["half_pixel", "align_corners", "asymmetric", "pytorch_half_pixel"])
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_interpolation_is_a_product_per_axis(mode: str, coordinates: str) -> None:
    modes = {"mode": mode, "coordinate_transformation_mode": coordinates}
    resize = node("Resize", "x", "y", sizes=(1, 2, 7, 3), scales=(1.0, 1.0, 7 / 14, 3 / 5), **modes)
    graph = network((1, 2, 14, 5), "y", resize)
    found = resize_to_products(graph)
    assert operators(found) == ["Reshape", "MatMul", "Reshape", "MatMul", "Reshape"]
    assert_same_meaning(graph, found)
    assert resize_to_products(found) is found


def test_interpolation_of_few_pixels_is_one_product() -> None:
    resize = node("Resize", "x", "y", mode="cubic", sizes=(1, 2, 7, 3), scales=(1.0, 1.0, 7 / 4, 3 / 5))
    graph = network((1, 2, 4, 5), "y", resize)
    found = resize_to_products(graph)
    assert operators(found) == ["Reshape", "MatMul", "Reshape"]
    assert_same_meaning(graph, found)


def test_an_axis_that_stays_takes_no_product() -> None:
    resize = node("Resize", "x", "y", mode="linear", sizes=(2, 4, 7), scales=(1.0, 1.0, 7 / 5))
    assert operators(resize_to_products(network((2, 4, 5), "y", resize))) == ["Reshape", "MatMul", "Reshape"]
