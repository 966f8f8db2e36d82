"""Batches of images: networks of one image, and fully connected layers on all images at once."""

from __future__ import annotations

from pathlib import Path

import onnx
import pytest

from tests.nvdla.networks import compiled, expect_exact, network, node, verified, weights


def lenet(images: int, channels: int = 8, extent: int = 12) -> onnx.ModelProto:
    """Two convolutions with pooling, two fully connected layers: digits of 12x12."""
    last = extent // 4
    nodes = [
        node("Conv", "x w1", "c1", pads=[1, 1, 1, 1]),
        node("Relu", "c1", "r1"),
        node("MaxPool", "r1", "p1", kernel_shape=[2, 2], strides=[2, 2]),
        node("Conv", "p1 w2", "c2", pads=[1, 1, 1, 1]),
        node("Relu", "c2", "r2"),
        node("MaxPool", "r2", "p2", kernel_shape=[2, 2], strides=[2, 2]),
        node("Flatten", "p2", "f"),
        node("Gemm", "f w3 b3", "g", transB=1),
        node("Relu", "g", "h"),
        node("Gemm", "h w4 b4", "y", transB=1),
    ]
    constants = {
        "w1": weights(channels, 1, 3, 3), "w2": weights(2 * channels, channels, 3, 3),
        "w3": weights(40, 2 * channels * last * last), "b3": weights(40, 1)[:, 0],
        "w4": weights(10, 40), "b4": weights(10, 1)[:, 0],
    }  # fmt: skip
    return network(nodes, (images, 1, extent, extent), constants)


@pytest.mark.parametrize("images", [2, 3, 8])
@pytest.mark.parametrize("target", ["nvdla-small", "nvdla-large", "nvdla-full"])
def test_a_small_network_on_a_batch_is_bit_exact(tmp_path: Path, images: int, target: str) -> None:
    expect_exact(verified(lenet(images), tmp_path, target, samples=1))


def test_fully_connected_layers_fetch_their_weights_once(tmp_path: Path) -> None:
    one, eight = (compiled(lenet(images), tmp_path)[2].manifest["report"] for images in (1, 8))
    connected = [[layer["bytes"] for layer in each["layers"][-2:]] for each in (one, eight)]
    rows = [[8 * (16 * 9 + 40), 8 * (40 + 16)], [144 + 40, 40 + 16]]
    weights = [40 * 144, 10 * 40]
    assert connected[0] == [size + row for size, row in zip(weights, rows[1], strict=True)]
    assert connected[1] == [size + row for size, row in zip(weights, rows[0], strict=True)]
