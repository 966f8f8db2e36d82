"""volumes_to_images."""

from __future__ import annotations

from typing import Any

import pytest

from npuc.passes.expansion import volumes_to_images as module
from npuc.passes.expansion.volumes_to_images import volumes_to_images
from tests.passes.networks import assert_same_meaning, network, node, operators

WINDOW: dict[str, Any] = {
    "kernel_shape": (3, 2, 3), "strides": (2, 1, 2), "pads": (1, 0, 2, 2, 1, 1), "dilations": (1, 2, 1)
}  # fmt: skip


@pytest.mark.parametrize("ceil_mode", [0, 1])
@pytest.mark.parametrize(("op", "more"), [
    ("MaxPool", {}), ("AveragePool", {"count_include_pad": 0}), ("AveragePool", {"count_include_pad": 1}),
])  # fmt: skip
def test_pooling_goes_over_the_planes_and_then_over_the_depth(
    op: str, more: dict[str, Any], ceil_mode: int
) -> None:
    graph = network((2, 3, 7, 8, 9), "y", node(op, "x", "y", **WINDOW, **more, ceil_mode=ceil_mode))
    found = volumes_to_images(graph)
    assert operators(found) == ["Reshape", op, "Reshape", op, "Reshape"]
    assert_same_meaning(graph, found)
    assert volumes_to_images(found).nodes == found.nodes


def test_a_window_without_depth_leaves_one_pooling() -> None:
    graph = network((1, 3, 4, 8, 8), "y", node("MaxPool", "x", "y", kernel_shape=(1, 2, 2)))
    assert operators(volumes_to_images(graph)) == ["Reshape", "MaxPool", "Reshape"]


@pytest.mark.parametrize("op", ["GlobalMaxPool", "GlobalAveragePool"])
def test_global_pooling_of_a_volume_is_that_of_an_image(op: str) -> None:
    graph = network((2, 3, 4, 5, 6), "y", node(op, "x", "y"))
    found = volumes_to_images(graph)
    assert operators(found) == ["Reshape", op, "Reshape"]
    assert_same_meaning(graph, found)


CONV: dict[str, Any] = {"strides": (2, 1, 2), "pads": (1, 0, 2, 2, 1, 1), "dilations": (2, 1, 1)}


@pytest.mark.parametrize(("op", "attrs", "w", "b"), [
    ("Conv", {**CONV, "activation": "Relu"}, (6, 4, 3, 2, 3), (6,)),
    ("Conv", {"group": 2}, (6, 2, 3, 2, 3), None),
    ("Conv", {"group": 4}, (4, 1, 3, 2, 3), (4,)),
    ("ConvTranspose", {**CONV, "output_padding": (1, 0, 1)}, (4, 3, 3, 2, 3), (3,)),
    ("ConvTranspose", {"group": 2, "strides": (2, 2, 2)}, (4, 3, 2, 2, 2), None),
])  # fmt: skip
def test_a_convolution_has_the_depth_in_its_channels(op: str, attrs: dict[str, Any], w: Any, b: Any) -> None:
    inputs = "x w b" if b else "x w"
    constants = {"w": w, "b": b} if b else {"w": w}
    graph = network((2, 4, 5, 6, 7), "y", node(op, inputs, "y", **attrs), **constants)
    found = volumes_to_images(graph)
    assert [each.split("+")[0] for each in operators(found)] == ["Reshape", op, "Reshape"]
    assert len(found.shape(found.nodes[1].inputs[1])) == 4
    assert_same_meaning(graph, found)
    assert volumes_to_images(found).nodes == found.nodes


def test_a_convolution_whose_kernel_would_be_too_large_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = network((1, 4, 5, 6, 7), "y", node("Conv", "x w", "y"), w=(6, 4, 3, 2, 3))
    monkeypatch.setattr(module, "MOST_WEIGHTS", 1000)
    assert volumes_to_images(graph) is graph
