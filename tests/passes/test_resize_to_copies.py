"""resize_to_copies: enlargement by repetition."""

import numpy as np
import pytest

from npuc.interpreter import run
from npuc.ir import Graph
from npuc.onnx_files.export import to_onnx
from npuc.ops.attributes import COORDINATES, NEAREST_MODE
from npuc.passes.expansion.resizes import resize_to_copies
from tests.conftest import Reference
from tests.passes.networks import assert_close, assert_same_meaning, feeds, network, node, operators, sources


def resized(shape: tuple[int, ...], scales: tuple[float, ...], **attrs: str) -> Graph:
    sizes = tuple(int(extent * scale) for extent, scale in zip(shape, scales, strict=True))
    return network(shape, "y", node("Resize", "x", "y", sizes=sizes, scales=scales, **attrs))


@pytest.mark.parametrize(("scale", "steps"), [(2, [4]), (3, [9]), (8, [64]), (16, [4, 64]), (11, [121])])
def test_repeated_pixels_are_copies_of_the_map(
    scale: int, steps: list[int], onnxruntime_values: Reference
) -> None:
    attrs = {"coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    graph = resized((1, 2, 3, 4), (1.0, 1.0, scale, scale), **attrs)
    found = resize_to_copies(graph)
    assert operators(found) == ["Concat", "DepthToSpace"] * len(steps)
    assert [len(each.inputs) for each in found.nodes if each.op == "Concat"] == steps
    assert_same_meaning(graph, found)
    assert resize_to_copies(found) is found
    assert sources(found, "y") == ("y",)
    given = feeds(graph)
    assert_close(onnxruntime_values(to_onnx(graph), given)["y"], run(found, given)["y"], "y")


@pytest.mark.parametrize("nearest", NEAREST_MODE.choices)
@pytest.mark.parametrize("coordinates", COORDINATES.choices)
@pytest.mark.parametrize("scale", [2, 3])
def test_any_mode_that_repeats_pixels_is_recognised(coordinates: str, nearest: str, scale: int) -> None:
    shape = (1, 2, 4, 4)
    attrs = {"coordinate_transformation_mode": coordinates, "nearest_mode": nearest}
    graph = resized(shape, (1.0, 1.0, scale, scale), **attrs)
    x = feeds(graph)["x"]
    repeats = np.array_equal(run(graph, {"x": x})["y"], x.repeat(scale, 2).repeat(scale, 3))
    found = resize_to_copies(graph)
    assert operators(found) == (["Concat", "DepthToSpace"] if repeats else ["Resize"])
    assert_same_meaning(graph, found)


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_one_pixel_is_repeated_in_every_mode(mode: str) -> None:
    graph = resized((1, 3, 1, 1), (1.0, 1.0, 6.0, 6.0), mode=mode)
    found = resize_to_copies(graph)
    assert operators(found) == ["Concat", "DepthToSpace"]
    assert_same_meaning(graph, found)


@pytest.mark.parametrize(
    ("scales", "attrs"),
    [
        ((1.0, 1.0, 2.0, 2.0), {"mode": "linear"}),
        ((1.0, 1.0, 1.5, 1.5), {}),
        ((1.0, 1.0, 2.0, 4.0), {}),
        ((1.0, 1.0, 0.5, 0.5), {}),
        ((1.0, 2.0, 2.0, 2.0), {}),
    ],
)
def test_other_interpolation_stays(scales: tuple[float, ...], attrs: dict[str, str]) -> None:
    graph = resized((1, 2, 4, 4), scales, **attrs)
    assert resize_to_copies(graph) is graph
