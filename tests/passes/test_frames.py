"""Frames with a border in place of padding: computed by hand from the pixels, and what keeps its padding."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npuc.ir import Array, Graph, TensorType
from npuc.ops import build
from npuc.ops.interpreter import run
from npuc.passes.frames import lay_out_frames, surround_frames
from tests.passes.networks import node

MEANS, STDS = (123.675, 116.28, 103.53), (58.0, 57.0, 57.375)


def frames(
    means: Any = MEANS, pads: tuple[int, ...] = (1, 2, 0, 3), more: str = "", perm: Any = None, **attrs: Any
) -> Graph:
    """A frame, dequantised and normalised channel by channel, and a convolution. more: what reads it, too."""
    random = np.random.default_rng(1)
    std, group = np.array(STDS), attrs.get("group", 1)
    constants = {
        "s": np.float32(1), "z": np.uint8(128), "w": (1 / std).reshape(3, 1, 1, 1).astype(np.float32),
        "b": ((128 - np.array(means)) / std).astype(np.float32),
        "v": random.normal(0, 1, (6, 3 // group, 3, 3)).astype(np.float32),
    }  # fmt: skip
    moved = [node("Transpose", "f", "d", perm=perm)] if perm else []
    nodes = [
        node("DequantizeLinear", "x s z", "f" if perm else "d"), *moved,
        node("Conv", "d w b", "n", group=3), node("Conv", "n v", "c", pads=pads, **attrs),
    ]  # fmt: skip
    nodes += [node("Relu", more, "y")] if more else []
    shape = (2, 7, 9, 3) if perm else (2, 3, 7, 9)
    outputs = ("c", "y") if more else ("c",)
    return build("net", nodes, {"x": TensorType(shape, "uint8")}, outputs, constants)


def surrounded(pixels: Array, means: Any, pads: tuple[int, ...]) -> Array:
    """The model's values of pixels (N, C, H, W), whose border is the nearest to the mean."""
    top, left, bottom, right = pads
    canvas = np.empty((2, 3, 7 + top + bottom, 9 + left + right))
    canvas[:] = np.rint(means).reshape(3, 1, 1)
    canvas[:, :, top : top + 7, left : left + 9] = pixels
    return (canvas - np.reshape(means, (3, 1, 1))) / np.reshape(STDS, (3, 1, 1))


@pytest.mark.parametrize("means", [MEANS, (0, 255, 127.5), (0.4, 254.6, 255.4)])
@pytest.mark.parametrize("pads", [(1, 2, 0, 3), (1, 1, 1, 1), (0, 0, 0, 1), (3, 0, 0, 0)])
def test_a_border_of_pixels_takes_the_place_of_padding(means: Any, pads: tuple[int, ...]) -> None:
    graph = frames(means, pads)
    found = surround_frames(graph)
    assert [each.op for each in found.nodes][-2:] == ["DequantizeLinear", "Conv"]
    assert surround_frames(found) is found
    pixels = np.random.default_rng(2).integers(0, 256, (2, 3, 7, 9)).astype(np.uint8)
    constants = {"v": graph.constants["v"]}
    plain = build(
        "p",
        [node("Conv", "n v", "c")],
        {"n": TensorType(surrounded(pixels, means, pads).shape)},
        ("c",),
        constants,
    )
    wanted = run(plain, {"n": surrounded(pixels, means, pads).astype(np.float32)})["c"]
    np.testing.assert_allclose(run(found, {"x": pixels})["c"], wanted, atol=2e-4)
    off = np.abs(wanted - run(graph, {"x": pixels})["c"])
    assert off.max() < 0.5 / 57 * np.abs(graph.constants["v"]).sum(axis=(1, 2, 3)).max()


@pytest.mark.parametrize(
    "changed",
    [
        {"means": (123.675, 116.28, -0.6)}, {"means": (255.6, 0, 0)}, {"pads": (0, 0, 0, 0)},
        {"more": "n"}, {"more": "d"}, {"group": 3}, {"perm": (0, 3, 1, 2)},
    ],
)  # fmt: skip
def test_other_convolutions_keep_their_padding(changed: dict[str, Any]) -> None:
    graph = frames(**changed)
    assert surround_frames(graph) is graph


def test_a_frame_with_channels_last_is_laid_out_before_it_is_dequantised() -> None:
    graph = frames(perm=(0, 3, 1, 2))
    found = lay_out_frames(graph)
    assert [each.op for each in found.nodes] == ["Transpose", "DequantizeLinear", "Conv", "Conv"]
    assert lay_out_frames(found) is found and surround_frames(found) is not found
    pixels = np.random.default_rng(2).integers(0, 256, (2, 7, 9, 3)).astype(np.uint8)
    np.testing.assert_array_equal(run(found, {"x": pixels})["c"], run(graph, {"x": pixels})["c"])
