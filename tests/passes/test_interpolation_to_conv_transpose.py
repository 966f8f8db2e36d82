"""Linear interpolation as a transposed convolution: what onnxruntime makes of the Resize, at every border."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from npuc.interpreter import run
from npuc.ir import Graph, Node, TensorType
from npuc.ops import build
from npuc.reference import graph_session
from npuc.targets.nvdla.network.interpolation_to_conv_transpose import interpolation_to_conv_transpose


def resize(shape: tuple[int, ...], scales: tuple[float, ...], coordinates: str, **attrs: Any) -> Graph:
    sizes = tuple(int(extent * scale) for extent, scale in zip(shape, scales, strict=True))
    found = {"mode": "linear", "coordinate_transformation_mode": coordinates, "scales": scales, "sizes": sizes}
    node = Node("Resize", ("x",), ("y",), {**found, **attrs}, "n", ("n",))
    return build("g", [node], {"x": TensorType(shape)}, ["y"], {})


@pytest.mark.parametrize("coordinates", ["half_pixel", "pytorch_half_pixel", "asymmetric"])
@pytest.mark.parametrize(
    ("shape", "factors"),
    [
        ((1, 3, 5, 4), (2, 2)),
        ((1, 3, 5, 4), (3, 3)),
        ((2, 1, 4, 5), (4, 1)),
        ((1, 2, 3, 5), (1, 5)),
        ((1, 2, 3, 1), (8, 2)),
        ((1, 2, 1, 1), (2, 3)),
    ],
)
def test_interpolation_by_whole_factors_is_what_onnxruntime_computes(
    shape: tuple[int, ...], factors: tuple[int, int], coordinates: str
) -> None:
    before = resize(shape, (1.0, 1.0, *map(float, factors)), coordinates)
    after = interpolation_to_conv_transpose(before)
    assert after.nodes[-1].op == "ConvTranspose"
    assert {node.op for node in after.nodes[:-1]} == {"Slice", "Concat"}
    x = np.random.default_rng(0).normal(0.5, 2, shape).astype(np.float32)
    (wanted,) = graph_session(before, ["y"]).run(None, {"x": x})
    np.testing.assert_allclose(run(after, {"x": x})["y"], wanted, rtol=1e-5, atol=1e-5)
    assert interpolation_to_conv_transpose(after) is after


@pytest.mark.parametrize(
    "before",
    [
        resize((1, 2, 4, 4), (1.0, 1.0, 2.0, 2.0), "align_corners"),
        resize((1, 2, 4, 4), (1.0, 1.0, 1.5, 2.0), "half_pixel"),
        resize((1, 2, 4, 4), (1.0, 1.0, 0.5, 2.0), "half_pixel"),
        resize((1, 2, 4, 4), (1.0, 2.0, 2.0, 2.0), "half_pixel"),
        resize((1, 2, 4, 4), (1.0, 1.0, 9.0, 1.0), "half_pixel"),
        resize((1, 2, 4, 4), (1.0, 1.0, 1.0, 1.0), "half_pixel"),
        resize((1, 2, 4, 4), (1.0, 1.0, 2.0, 2.0), "half_pixel", mode="cubic"),
        resize((1, 2, 4, 4), (1.0, 1.0, 2.0, 2.0), "half_pixel", exclude_outside=1),
        resize((2, 4, 4), (1.0, 2.0, 2.0), "half_pixel"),
    ],
    ids=["corners", "1.5", "smaller", "channels", "9", "1", "cubic", "excluding", "rank 3"],
)
def test_other_interpolation_stays(before: Graph) -> None:
    assert interpolation_to_conv_transpose(before) is before
